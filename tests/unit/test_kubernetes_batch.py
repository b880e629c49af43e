"""A batch client in the cluster: what its pod is given, what it is refused, and that it needs no rights."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.base import Request
from milkweed.backends.kubernetes.batch import (
    CLIENT_MOUNT,
    MAX_SCRIPT_BYTES,
    PYTHON,
    RUN,
    check_batch,
    client_name,
    make_client_data,
    make_command,
    make_job,
    read_exit,
)
from milkweed.backends.kubernetes.blind import doors, explain_silence, is_blind
from milkweed.backends.kubernetes.settings import make_plans
from milkweed.control import BY_HOST, parse_door
from milkweed.errors import SpecError
from milkweed.image import Image
from milkweed.pki import make_authority
from milkweed.spec import JobSpec, make_meshes
from milkweed.state import Record

APPLY_ID = "0a1b2c3d-0000-4000-8000-000000000000"
MESH = {"name": "w", "made": True, "kept": True, "hosts": 2, "port": 26600, "selector": ""}
HANDLE = {
    "apply_id": APPLY_ID,
    "context": "mine",
    "kubeconfig": "/home/me/.kube/config",
    "namespace": "lab",
    "client": True,
    "meshes": {"w": MESH},
}


def make_request(*command: str, **client: Any) -> Request:
    spec = JobSpec(
        name="demo",
        backend="kubernetes",
        meshes=make_meshes({"w": 2}),
        options={"image": "me/worker:1", "namespace": "lab"},
        client=client,
    )
    return Request(spec=spec, apply_id=APPLY_ID, client_script=command or ("true",))


def test_a_script_of_this_machine_goes_along(tmp_path: Path) -> None:
    """It is run by the Python of the image, from where the pod sees it; its arguments stay as they are."""
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    words, files = make_command([sys.executable, str(script), "--lr", "1 2"])
    assert words == [PYTHON, f"{CLIENT_MOUNT}/train.py", "--lr", "1 2"]
    assert files == {"train.py": b"print(1)"}


@pytest.mark.parametrize("words", [["make", "train"], ["python", "-m", "train"], ["sh", "-c", "x"]])
def test_a_command_of_the_image_is_left_alone(words: list[str]) -> None:
    """Nothing of this machine is in it."""
    assert make_command(words) == (words, {})


def test_a_script_that_is_too_large(tmp_path: Path) -> None:
    """Secrets have little room, and say so late."""
    script = tmp_path / "train.py"
    script.write_bytes(b"#" * (MAX_SCRIPT_BYTES + 1))
    with pytest.raises(SpecError, match="is larger than"):
        make_command([sys.executable, str(script)])


def read(data: dict[str, str], name: str) -> Any:
    return json.loads(base64.b64decode(data[name]))


def test_what_the_pod_is_given() -> None:
    """The record of its own job, a certificate, and no key with which others could be made."""
    authority = make_authority(APPLY_ID, days=1)
    data = make_client_data(make_request("true"), HANDLE, authority, b"zip")
    assert base64.b64encode(authority.key_pem).decode() not in data.values()
    handle = read(data, "handle.json")
    assert is_blind(handle)
    assert (handle["context"], handle["kubeconfig"]) == ("", None)
    record = read(data, "record.json")
    assert (record["batch"], record["apply_id"], record["handle"]) == (True, APPLY_ID, handle)
    assert read(data, "client.json")["command"] == ["true"]


def test_a_client_waits_as_long_as_the_queue_takes() -> None:
    """Nobody tells it when its hosts come; a time-out of the person's own holds."""
    authority = make_authority(APPLY_ID, days=1)
    patient = make_client_data(make_request("true"), HANDLE, authority, b"")
    assert read(patient, "record.json")["spec"]["client"]["start_timeout"] > 365 * 24 * 3600
    hasty = make_client_data(make_request("true", start_timeout=5.0), HANDLE, authority, b"")
    assert read(hasty, "record.json")["spec"]["client"]["start_timeout"] == 5.0


def test_the_record_is_one_that_can_be_read(tmp_path: Path) -> None:
    """By the very code that reads records."""
    data = make_client_data(make_request("true"), HANDLE, make_authority(APPLY_ID, days=1), b"")
    from milkweed.state import StateFile

    path = tmp_path / "state.json"
    path.write_bytes(base64.b64decode(data["record.json"]))
    path.chmod(0o600)
    loaded = StateFile(path).load()
    assert isinstance(loaded, Record)
    assert loaded.spec.sizes == {"w": 2}


def test_the_job_that_runs_it() -> None:
    """Once, without a token of the cluster, with the mark of its job, in the image of the first mesh."""
    request = make_request("true")
    [plan] = make_plans(request.spec, "lab", APPLY_ID)
    made = make_job(request, plan, ["sh"], HANDLE)
    assert made["metadata"]["name"] == client_name(APPLY_ID)
    assert made["metadata"]["labels"]["milkweed.dev/job"] == APPLY_ID
    assert made["spec"]["backoffLimit"] == 0
    pod = made["spec"]["template"]["spec"]
    assert (pod["restartPolicy"], pod["automountServiceAccountToken"]) == ("Never", False)
    [container] = pod["containers"]
    assert container["image"] == "me/worker:1"
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_what_is_refused_before_anything_is_made() -> None:
    """Pods of others, folders and files of this machine."""
    request = make_request("true")
    plans = make_plans(request.spec, "lab", APPLY_ID)
    check_batch(request, plans)
    with pytest.raises(SpecError, match="pods that others made have no keeper"):
        check_batch(request, [replace(plans[0], template=None)])
    with pytest.raises(SpecError, match="does not have folders of this machine"):
        check_batch(make_request("true", sync_dirs=["/x"]), plans)
    copies = Image().copy("data").to_json()
    with pytest.raises(SpecError, match="copies files of this machine"):
        check_batch(make_request("true", images={"w": copies}), plans)
    check_batch(make_request("true", images={"w": Image().run_bash("x").to_json()}), plans)


def test_the_code_of_the_pod_is_code() -> None:
    """It is not run before it is in a pod, so it is at least compiled here."""
    compile(RUN, "<client>", "exec")
    assert CLIENT_MOUNT in RUN


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({}, None),
        ({"phase": "Running", "containerStatuses": [{"name": "client", "state": {}}]}, None),
        ({"containerStatuses": [{"name": "client", "state": {"terminated": {"exitCode": 7}}}]}, 7),
        ({"containerStatuses": [{"name": "side", "state": {"terminated": {"exitCode": 7}}}]}, None),
        ({"phase": "Failed", "reason": "Evicted"}, 1),
    ],
)
def test_how_a_client_ended(status: dict[str, Any], code: int | None) -> None:
    """Its own exit code; a pod that was taken away has failed."""
    assert read_exit({"metadata": {"name": "x"}, "status": status}) == code


# Without a look at the cluster


def test_hosts_are_dialled_by_their_names(home: Path) -> None:
    """Every host that has a keeper, with a certificate that names nobody, and through none but themselves."""
    found = doors(HANDLE)
    assert [door.machine for door in found] == ["w-0.w-svc.lab.svc", "w-1.w-svc.lab.svc"]
    assert {door.via for door in found} == {BY_HOST}
    assert parse_door(str(found[1])).host == "w/1"
    unkept = {**HANDLE, "meshes": {"w": {**MESH, "kept": False}}}
    assert doors(unkept) == []


def test_silence_is_no_end() -> None:
    """A host that does not answer may still come."""
    assert explain_silence("w/0").state.value == "starting"
