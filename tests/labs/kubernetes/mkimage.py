#!/usr/bin/env python3
"""Makes an OCI image archive of one layer from a directory: no registry, no daemon.

usage: mkimage.py DIRECTORY NAME:TAG OUT.tar [COMMAND ...]      (import it: ctr -n k8s.io images import OUT.tar)
"""

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OCI = "application/vnd.oci.image"


def main(root: str, reference: str, out: str, *command: str) -> None:
    layer = out + ".layer"
    subprocess.check_call(
        [
            "tar",
            "--numeric-owner",
            "--sort=name",
            "--mtime=@0",
            "-C",
            root,
            "-cf",
            layer,
            ".",
        ]
    )
    with open(layer, "rb") as file:
        layer_digest = hashlib.file_digest(file, "sha256").hexdigest()
    blobs: dict[str, bytes] = {}

    def blob(kind: str, content: dict) -> dict:
        data = json.dumps(content).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {
            "mediaType": f"{OCI}.{kind}.v1+json",
            "digest": f"sha256:{digest}",
            "size": len(data),
        }

    config = blob(
        "config",
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": list(command) or ["/bin/sh"], "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        },
    )
    manifest = blob(
        "manifest",
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": config,
            "layers": [
                {
                    "mediaType": f"{OCI}.layer.v1.tar",
                    "digest": f"sha256:{layer_digest}",
                    "size": os.path.getsize(layer),
                }
            ],
        },
    )
    manifest["annotations"] = {
        "io.containerd.image.name": reference,
        "org.opencontainers.image.ref.name": reference.rsplit(":", 1)[1],
    }
    with tarfile.open(out, "w") as archive:

        def add(name: str, data: bytes) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))

        add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add(
            "index.json",
            json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode(),
        )
        for digest, data in blobs.items():
            add(f"blobs/sha256/{digest}", data)
        archive.add(layer, f"blobs/sha256/{layer_digest}")
    os.unlink(layer)
    print(out, reference, os.path.getsize(out))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
