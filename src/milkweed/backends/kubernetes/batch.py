"""Batch mode: the client of a job as a pod beside its hosts, which has no rights in the cluster and needs none."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...errors import SpecError
from ...pki import Authority
from ...spec import JobSpec
from ...state import Record
from ...worker import tls
from ...worker.wire import CLOSED_PATH, STATE_ENV
from ..base import Request
from .blind import CLIENT_FOLDER
from .pod_parts import part
from .pod_template import QUEUE_LABEL, check_resources, find_worker
from .settings import MeshPlan
from .start import FILE_MODE, HANDLE_NOTE, JOB_LABEL, NAME_NOTE, render_note

CLIENT_LABEL = "milkweed.dev/client"
CLIENT_MOUNT = "/etc/milkweed-client"
CONTAINER = "client"
PATIENCE_S = 10 * 365 * 24 * 3600.0
"""How long a client without a time-out waits for hosts that nobody tells it about: as long as it takes."""
MAX_SCRIPT_BYTES = 256 * 1024
POD_KEYS = (
    *("imagePullSecrets", "priorityClassName", "tolerations", "nodeSelector", "affinity"),
    *("securityContext", "runtimeClassName", "schedulerName"),
)
"""What the pod of a client has of a host's: where it may run, and as whom."""
REQUESTS: Mapping[str, str] = {"cpu": "100m", "memory": "512Mi"}
"""What a client asks for: so little that there is room beside its hosts. Nobody limits it who was not asked to."""
PYTHON = "@python"
"""Stands in a command for the Python of the image."""

# Puts the job's files where milkweed looks for them, runs the client, and ends the hosts with it.
RUN = f"""
{CLOSED_PATH}
import json, os, signal, subprocess
with open("{CLIENT_MOUNT}/client.json") as file:
    told = json.load(file)
mask = os.umask(0o077)
home = os.environ["MILKWEED_HOME"] = "/tmp/milkweed-home"
job = os.path.join(home, "jobs", told["apply_id"])
keys = os.path.join(job, "tls", told["folder"])
os.makedirs(keys, exist_ok=True)
for folder in (home, os.path.join(home, "jobs")):
    os.chmod(folder, 0o700)
def put(path, name):
    with open("{CLIENT_MOUNT}/" + name, "rb") as source, open(path, "wb") as target:
        target.write(source.read())
for name in told["keys"]:
    put(os.path.join(keys, name), name)
state = os.environ["{STATE_ENV}"] = os.path.join(job, "state.json")
put(state, "record.json")
put(os.path.join(job, "kubernetes.json"), "handle.json")
sys.path.insert(0, "{CLIENT_MOUNT}/milkweed.zip")
path = [sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(path)
words = [sys.executable if word == "{PYTHON}" else word for word in told["command"]]
client = subprocess.Popen(words, umask=mask)
asked = []
def pass_on(number, frame):
    asked.append(number)
    client.send_signal(number)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, pass_on)
code = client.wait()
code = code if code >= 0 else 128 - code
from milkweed.backends.kubernetes.blind import END_PATIENCE_S, end
with open("{CLIENT_MOUNT}/handle.json") as file:
    end(json.load(file), patience_s=END_PATIENCE_S, hurried=lambda: bool(asked))
sys.stdout.flush()
os._exit(code)
""".strip()


def client_name(apply_id: str) -> str:
    """The name of a batch client's objects."""
    return f"milkweed-{apply_id[:8]}-client"


def check_batch(request: Request, plans: list[MeshPlan]) -> None:
    """Refuse what a client in a pod could not do."""
    if not all(plan.kept for plan in plans):
        raise SpecError(
            "client_script: pods that others made have no keeper, and a client without rights cannot find them",
            hint="run the client yourself, in the cluster or outside",
        )
    if request.spec.client.get("sync_dirs"):
        raise SpecError(
            "sync_dirs: a client in the cluster does not have folders of this machine",
            hint="say sync_dirs=[], and bring the code in the image",
        )
    images: Mapping[str, Any] = request.spec.client.get("images") or {}
    for mesh, image in images.items():
        if any(line["kind"] == "copy" for line in image.get("lines", ())):
            raise SpecError(
                f"the image of mesh {mesh!r} copies files of this machine, which a client in the cluster has not",
                hint="put them into the container image, or fetch them in a step",
            )


def read_resources(spec: JobSpec) -> dict[str, str]:
    """What was said of a client's resources, checked."""
    said: object = spec.client.get("client_resources") or {}
    if not isinstance(said, Mapping):
        raise SpecError(
            f"client_resources: {said!r} is not a mapping", hint='write {"memory": "16Gi"}'
        )
    return check_resources(cast("Mapping[str, Any]", said), field="client_resources")


def make_command(command: tuple[str, ...] | list[str]) -> tuple[list[str], dict[str, bytes]]:
    """The command as the pod runs it, and the files that go with it: a script of this machine."""
    words, files = list(command), dict[str, bytes]()
    for at, word in enumerate(words):
        path = Path(word)
        if at < 2 and path.suffix == ".py" and path.is_file():
            data = path.read_bytes()
            if len(data) > MAX_SCRIPT_BYTES:
                raise SpecError(
                    f"client_script: {word} is larger than {MAX_SCRIPT_BYTES} bytes",
                    hint="put it into the image, and give a command that starts it there",
                )
            files[path.name] = data
            words[at] = f"{CLIENT_MOUNT}/{path.name}"
    if files and os.path.basename(words[0]).startswith("python"):
        words[0] = PYTHON
    return words, files


def make_client_data(
    request: Request, handle: Mapping[str, Any], authority: Authority, package: bytes
) -> dict[str, str]:
    """Everything that the client's pod sees, as a Secret has it."""
    command, files = make_command(list(request.client_script))
    leaf = authority.issue(["localhost"])
    keys = {
        tls.CERT_FILE: leaf.cert_pem,
        tls.KEY_FILE: leaf.key_pem,
        tls.CA_FILE: authority.cert_pem,
    }
    blind = {**handle, "blind": True, "context": "", "kubeconfig": None}
    told = {
        "apply_id": request.apply_id,
        "command": command,
        "folder": CLIENT_FOLDER,
        "keys": list(keys),
    }
    record = Record(
        spec=_patient(request.spec),
        phase="submitted",
        apply_id=request.apply_id,
        handle=blind,
        batch=True,
    )
    data = {
        **files,
        **keys,
        "milkweed.zip": package,
        "client.json": json.dumps(told).encode(),
        "handle.json": json.dumps(blind).encode(),
        "record.json": record.to_bytes(),
    }
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def _patient(spec: JobSpec) -> JobSpec:
    return replace(spec, client={"start_timeout": PATIENCE_S, **spec.client})


def make_job(
    request: Request, plan: MeshPlan, command: list[str], handle: Mapping[str, Any]
) -> dict[str, Any]:
    """The Job that runs the client once, in the image of the first mesh; it tells of its job when that is over."""
    name = client_name(request.apply_id)
    labels = {JOB_LABEL: request.apply_id, CLIENT_LABEL: "true"}
    template = plan.template or {}
    said = read_resources(request.spec)
    first = template["spec"]["containers"][find_worker(template)]
    kept = ("image", "imagePullPolicy", "env", "envFrom", "securityContext", "workingDir")
    container = {
        **{key: first[key] for key in kept if key in first},
        "name": CONTAINER,
        "command": command,
        "resources": {"requests": {**REQUESTS, **said}, **({"limits": said} if said else {})},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "client", "mountPath": CLIENT_MOUNT, "readOnly": True}],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **{key: template["spec"][key] for key in POD_KEYS if key in template["spec"]},
        "containers": [container],
        "volumes": [{"name": "client", "secret": {"secretName": name, "defaultMode": FILE_MODE}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**_find_queue(plan), **labels},
            "annotations": {NAME_NOTE: request.spec.name, HANDLE_NOTE: render_note(handle)},
        },
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _find_queue(plan: MeshPlan) -> dict[str, str]:
    """The queue of Kueue that a mesh waits in, if there is one: its client waits there, too."""
    found = {**part(plan.template or {}, "metadata", "labels"), **plan.labels}
    return {QUEUE_LABEL: found[QUEUE_LABEL]} if QUEUE_LABEL in found else {}


def read_exit(pod: Mapping[str, Any]) -> int | None:
    """The exit code of a client that has ended; None for one that has not."""
    for container in part(pod, "status").get("containerStatuses") or ():
        ended = part(container, "state", "terminated")
        if container.get("name") == CONTAINER and ended:
            return int(ended.get("exitCode", 1))
    return 1 if part(pod, "status").get("phase") == "Failed" else None
