#!/usr/bin/env python3
"""Makes an OCI image archive from a directory, as one layer: no registry, no daemon.

usage: mkimage.py [--base BASE.json] DIRECTORY NAME:TAG OUT.tar [COMMAND ...]     (import it: ctr -n k8s.io images import OUT.tar)

Writes OUT.json beside it: the layers of the image, for --base. An image with a base has the layers of that below its own, and
its archive has its own only: whoever imports it must have the base already.
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


def pack(root: str, layer: str) -> dict:
    """One layer; the same files give the same bytes."""
    tar = ["tar", "--numeric-owner", "--owner=0", "--group=0", "--sort=name", "--mtime=@0"]
    subprocess.check_call([*tar, "-C", root, "-cf", layer, "."])
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "mediaType": f"{OCI}.layer.v1.tar",
        "digest": f"sha256:{digest}",
        "size": os.path.getsize(layer),
    }


def main(base: str, root: str, reference: str, out: str, *command: str) -> None:
    layer = out + ".layer"
    layers = []
    if base:
        with open(base) as file:
            layers = json.load(file)
    layers.append(pack(root, layer))
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
            # The layers are not compressed, so their digests are those of their content.
            "rootfs": {"type": "layers", "diff_ids": [each["digest"] for each in layers]},
        },
    )
    manifest = blob(
        "manifest",
        {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": config,
            "layers": layers,
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
        archive.add(layer, "blobs/" + layers[-1]["digest"].replace(":", "/"))
    os.unlink(layer)
    with open(out.removesuffix(".tar") + ".json", "w") as file:
        json.dump(layers, file)
    print(out, reference, os.path.getsize(out))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    base = ""
    if arguments[:1] == ["--base"]:
        _, base, *arguments = arguments
    if len(arguments) < 3:
        sys.exit(__doc__)
    main(base, *arguments)
