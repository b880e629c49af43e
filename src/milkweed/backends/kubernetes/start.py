"""What the pods of a job are told: a Secret that each of them has before its eyes, and no more."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import SpecError
from ...image import is_prepared
from ...kube.meshes import API_VERSION, DEFAULT_PORT, KIND, service_name
from ...pki import Authority
from ...spec import JobSpec, MeshSpec
from ...worker import tls, wire
from ..base import Request
from .pod_parts import part as part_of, parts as parts_of

JOB_LABEL = "milkweed.dev/job"
MESH_LABEL = "milkweed.dev/mesh"
NAME_NOTE = "milkweed.dev/name"
HANDLE_NOTE = "milkweed.dev/handle"
"""All that a client needs who has nothing but the cluster."""
MOUNT = "/etc/milkweed"
FILE_MODE = 0o444
"""Nobody but the container sees them, whoever it runs as; the keeper has copies that are closed to others."""
RUN_MOUNT = "/run/milkweed"
"""Where a pod remembers when its container was started first, and whether it left because its lease was over."""
RUN_VOLUME = "milkweed-run"
VOLUME = "milkweed"
LEASE_OVER = "milkweed: the lease is over"
"""What a container says last whose host nobody wants any more; the operator then ends its mesh."""
NAMES_PER_CERTIFICATE = 200
"""A certificate is sent at every connection, so a large mesh needs several."""
MAX_SECRET_BYTES = 1024 * 1024
"""The most that a Secret holds."""
SPARE_HOSTS = 16
"""Names that a certificate carries beyond the hosts there are: a mesh may grow."""

# Reads what the pod was told, and hands over to the worker that came along. A pod's number stands in its name.
# The first process of a pod hears only what it listens for: one that is ended while it starts would be waited for.
LOADER = f"""
import gc
gc.disable()
{wire.CLOSED_PATH}
import json, os, signal, time
signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
os.environ["MILKWEED_INDEX"] = os.environ["MILKWEED_POD"].rpartition("-")[2]
with open("{MOUNT}/invitation.json") as file:
    invitation = json.load(file)
invitation["cwd"] = os.getcwd()
began, left = "{RUN_MOUNT}/began", "{RUN_MOUNT}/left"
invitation["again"] = os.path.exists(began)
invitation["left"] = os.path.exists(left)
if invitation["left"]:
    os.unlink(left)
if not invitation["again"]:
    open(began, "w").close()
invitation["memory"] = began
invitation["age_s"] = max(0.0, time.time() - os.stat(began).st_mtime)
sys.path.insert(0, "{MOUNT}/worker.zip")
from milkweed.worker.remote import main
code = main(invitation)
sys.stderr.flush()
os._exit(code)
""".strip()

# Images differ in what they call Python.
_FIND_PYTHON = """
for python in python python3; do
    command -v "$python" >/dev/null && exec "$python" -u -c "$0"
done
echo "milkweed: this image has no Python: neither python nor python3 is on its PATH" >&2
exit 127
""".strip()


def run_python(code: str) -> list[str]:
    """The command that runs some code with the Python of an image."""
    return ["sh", "-c", _FIND_PYTHON, code]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a mesh's pods are found: the namespace, and the name of the object that makes them."""

    namespace: str
    name: str
    port: int = DEFAULT_PORT

    @property
    def service(self) -> str:
        """The headless service that gives pods their names."""
        return service_name(self.name)

    def pod(self, rank: int) -> str:
        """The name of a pod."""
        return f"{self.name}-{rank}"

    def address(self, rank: int) -> str:
        """The name by which other pods reach a pod, however often it is replaced."""
        return f"{self.pod(rank)}.{self.service}.{self.namespace}.svc"


def secret_name(apply_id: str) -> str:
    """The Secret that all pods of a job see."""
    return f"milkweed-{apply_id[:8]}-hosts"


def authority_name(apply_id: str) -> str:
    """The Secret that only clients see: with it certificates are signed."""
    return f"milkweed-{apply_id[:8]}-authority"


def make_part(
    request: Request,
    mesh: MeshSpec,
    place: Place,
    component: int,
    *,
    met: bool = False,
    certificates: int = 0,
) -> dict[str, Any]:
    """What the keepers of one mesh are told.

    `met` says that a client was connected already, and `certificates` how many pods that are there expect.
    """
    spec = request.spec
    count = max(spare_count(mesh.hosts), (certificates - 1) * NAMES_PER_CERTIFICATE + 1)
    groups = range(0, count, NAMES_PER_CERTIFICATE)
    return {
        "apply_id": request.apply_id,
        "cluster": "",
        "keep": request.keep or bool(request.client_script),
        "idle_timeout_s": spec.lifetime.idle_timeout_s,
        "time_limit_s": spec.lifetime.time_limit_s,
        "queued": not met,
        "reuses_names": True,  # a pod that comes anew has the name of the one before
        "cwd": "",  # that of the container
        "logs": "",
        "record_folder": "",
        "port": place.port,
        "turn": 0,
        "python": "python",
        "addresses": {},
        "bells": [],
        "batch": None,
        "part": f"0.{component}",
        "first": False,
        "held": is_prepared(spec.client, mesh.name),
        "hosts": [{"mesh": mesh.name, "rank": rank} for rank in range(mesh.hosts)],
        "envs": {mesh.name: spec.mesh_env(mesh)},
        "released": [],
        "certificates": [
            {
                "folder": f"{MOUNT}/tls-{number}",
                "nodes": [
                    place.address(rank)
                    for rank in range(at, min(at + NAMES_PER_CERTIFICATE, count))
                ],
            }
            for number, at in enumerate(groups)
        ],
    }


def spare_count(hosts: int) -> int:
    """For how many hosts certificates are made, so that most changes of size need none."""
    return hosts + max(SPARE_HOSTS, hosts // 2)


def make_invitation(apply_id: str, component: int) -> dict[str, Any]:
    """Which share of the job a pod is."""
    return {
        "apply_id": apply_id,
        "part": f"0.{component}",
        "folder": MOUNT,
        "index_env": "MILKWEED_INDEX",
        "node_env": "MILKWEED_NODE",
        "restart_env": "MILKWEED_RESTARTS",
        "source": "",
        "end": ["sh", "-c", f"touch {RUN_MOUNT}/left; echo '{LEASE_OVER}' >/dev/termination-log"],
    }


def make_secret_data(
    parts: Sequence[Mapping[str, Any]], authority: Authority, worker: bytes
) -> dict[str, str]:
    """All files of all meshes, flat as Secrets are; a mesh's volume lays out its own."""
    data: dict[str, bytes] = {"worker.zip": worker, "ca.crt": authority.cert_pem}
    for component, part in enumerate(parts):
        data[f"part-{component}"] = json.dumps(part).encode()
        invitation = make_invitation(part["apply_id"], component)
        data[f"invitation-{component}"] = json.dumps(invitation).encode()
        for number, certificate in enumerate(part["certificates"]):
            leaf = authority.issue([*certificate["nodes"], "localhost", "127.0.0.1"])
            data[f"cert-{component}-{number}"] = leaf.cert_pem
            data[f"key-{component}-{number}"] = leaf.key_pem
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def make_volume(apply_id: str, part: Mapping[str, Any], component: int) -> dict[str, Any]:
    """The volume of one mesh: its own files, in the layout that the worker knows."""
    items = [
        {"key": "worker.zip", "path": "worker.zip"},
        {"key": f"part-{component}", "path": wire.part_file(part["part"])},
        {"key": f"invitation-{component}", "path": "invitation.json"},
    ]
    for number in range(len(part["certificates"])):
        items += [
            {"key": f"cert-{component}-{number}", "path": f"tls-{number}/{tls.CERT_FILE}"},
            {"key": f"key-{component}-{number}", "path": f"tls-{number}/{tls.KEY_FILE}"},
            {"key": "ca.crt", "path": f"tls-{number}/{tls.CA_FILE}"},
        ]
    secret = {"secretName": secret_name(apply_id), "defaultMode": FILE_MODE, "items": items}
    return {"name": VOLUME, "secret": secret}


def files_of(template: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """The files of a template's volume that are ours: which key of the Secret is where."""
    for volume in parts_of(part_of(template, "spec"), "volumes"):
        if volume["name"] == VOLUME:
            return list(parts_of(part_of(volume, "secret"), "items"))
    return []


def count_certificates(template: Mapping[str, Any]) -> int:
    """For how many certificates a template has places."""
    return sum(item["path"].endswith(f"/{tls.CERT_FILE}") for item in files_of(template))


def check_size(data: Mapping[str, str], what: str, *, hint: str) -> None:
    """Refuse what no Secret can hold, before anything of it is made."""
    sizes = {key: len(base64.b64decode(value)) for key, value in data.items()}
    if (size := sum(sizes.values())) > MAX_SECRET_BYTES:
        largest = sorted(sizes, key=lambda key: sizes[key], reverse=True)[:3]
        raise SpecError(
            f"{what} is too large for a Secret: {size} bytes, and one holds at most {MAX_SECRET_BYTES}",
            seen=", ".join(f"{key} has {sizes[key]}" for key in largest),
            hint=hint,
        )


def make_environment(place: Place) -> list[dict[str, Any]]:
    """The variables that tell a pod which one it is."""
    pod = {"fieldRef": {"fieldPath": "metadata.name"}}
    return [
        {"name": "MILKWEED_POD", "valueFrom": pod},
        {
            "name": "MILKWEED_NODE",
            "value": f"$(MILKWEED_POD).{place.service}.{place.namespace}.svc",
        },
        {"name": "MONARCH_PORT", "value": str(place.port)},
    ]


def make_secret(apply_id: str, name: str, data: Mapping[str, str], job: str) -> dict[str, Any]:
    """A Secret that carries the job's mark."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "labels": {JOB_LABEL: apply_id},
            "annotations": {NAME_NOTE: job},
        },
        "data": dict(data),
    }


def make_mesh(
    spec: JobSpec,
    mesh: MeshSpec,
    place: Place,
    template: Mapping[str, Any],
    *,
    apply_id: str,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    handle: Mapping[str, Any],
) -> dict[str, Any]:
    """The object from which an operator makes the pods."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": place.name,
            "namespace": place.namespace,
            "labels": {**labels, JOB_LABEL: apply_id, MESH_LABEL: mesh.name},
            "annotations": {
                **annotations,
                NAME_NOTE: spec.name,
                HANDLE_NOTE: render_note(handle),
            },
        },
        "spec": {"replicas": mesh.hosts, "port": place.port, "podTemplate": template},
    }


def render_note(handle: Mapping[str, Any]) -> str:
    """The handle as its objects carry it: how one client reaches the cluster is nothing to the others."""
    own = {"context", "kubeconfig", "provision", "cluster"}
    return json.dumps({key: value for key, value in handle.items() if key not in own})
