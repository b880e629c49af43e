"""A pod without rights: what its backend asks of the operator's endpoint, in the API server's place."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.kubernetes import asked
from milkweed.backends.kubernetes.asked import AskedApi, list_asked, read_provision
from milkweed.backends.kubernetes.finding import read_meshes
from milkweed.backends.kubernetes.meeting import is_met, note_met
from milkweed.backends.kubernetes.places import pods_in
from milkweed.backends.kubernetes.told import Told
from milkweed.errors import SpecError
from milkweed.kube.answers import ApiError
from milkweed.kube.asking import Endpoint
from milkweed.kube.resources import JOBS, MESHES, PODS, SECRETS

APPLY_ID = "0a1b2c3d-0000-4000-8000-000000000000"
POD = {
    "name": "w-1",
    "rank": 1,
    "phase": "Running",
    "ready": True,
    "node": "n1",
    "ip": "10.0.0.1",
    "uid": "u",
    "word": "",
    "reason": "",
    "exit_code": None,
    "container": "worker",
    "restarts": 0,
    "started": None,
    "deleting": False,
}
MESH = {"name": "w", "made": True, "kept": True, "hosts": 2, "port": 26600, "selector": ""}
HANDLE = {"apply_id": APPLY_ID, "namespace": "lab", "reach": "auto", "meshes": {"w": MESH}}


class FakeEndpoint:
    """An endpoint in memory, and all that it was asked."""

    def __init__(self) -> None:
        self.meshes: dict[str, Any] = {}
        self.secrets: dict[str, Mapping[str, str]] = {}
        self.asked: list[tuple[str, str]] = []

    def request_mesh(self, _endpoint: Endpoint, mesh: Any, secrets: Any = None) -> Any:
        """Make a mesh with its Secrets."""
        self.asked.append(("request", mesh["metadata"]["name"]))
        self.secrets |= secrets or {}
        made = {**mesh, "pods": [POD], "metadata": {**mesh["metadata"], "uid": "u"}}
        self.meshes[mesh["metadata"]["name"]] = made
        return made

    def look_up_mesh(
        self, _endpoint: Endpoint, _namespace: str, name: str, *, job: str = ""
    ) -> Any:
        """A mesh, if there is one."""
        assert job in {"", APPLY_ID}
        return self.meshes.get(name)

    def look_up_secret(self, _endpoint: Endpoint, _namespace: str, name: str, *, job: str) -> Any:
        """A Secret, if there is one."""
        assert job == APPLY_ID
        return self.secrets.get(name)

    def resize_mesh(
        self, _endpoint: Endpoint, _ns: str, name: str, replicas: int, **more: Any
    ) -> Any:
        """Note another size."""
        self.asked.append(("resize", f"{name}={replicas}"))
        self.secrets |= more["secrets"]
        return self.meshes[name]

    def delete_mesh(self, _endpoint: Endpoint, _namespace: str, name: str, *, job: str) -> bool:
        """Whether there was one."""
        assert job == APPLY_ID
        return self.meshes.pop(name, None) is not None

    def update_secret(
        self, _endpoint: Endpoint, _namespace: str, name: str, data: Mapping[str, str], *, job: str
    ) -> None:
        """Have a Secret hold something else."""
        assert job == APPLY_ID
        self.secrets[name] = data

    def delete_secret(self, _endpoint: Endpoint, _namespace: str, name: str, *, job: str) -> bool:
        """Whether there was one."""
        assert job == APPLY_ID
        return self.secrets.pop(name, None) is not None


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> FakeEndpoint:
    """An endpoint that has made nothing yet."""
    made = FakeEndpoint()
    for name in dir(made):
        if not name.startswith("_") and callable(getattr(made, name)):
            monkeypatch.setattr(asked, name, getattr(made, name))
    return made


@pytest.fixture
def api(endpoint: FakeEndpoint) -> AskedApi:
    """The endpoint in the API server's place."""
    return AskedApi(Endpoint("https://x", None, lambda: "t"), "lab", APPLY_ID)


def make(api: AskedApi) -> None:
    """Ask for a job of one mesh, as the backend does."""
    secret = {"metadata": {"name": "milkweed-0a1b2c3d-hosts"}, "data": {"a": "b"}}
    api.apply(SECRETS, "lab", secret)
    api.create(MESHES, "lab", {"metadata": {"name": "w", "namespace": "lab"}, "spec": {}})


def test_secrets_are_asked_for_with_their_mesh(api: AskedApi, endpoint: FakeEndpoint) -> None:
    """The endpoint makes both at once; alone it would not take them."""
    make(api)
    assert endpoint.asked == [("request", "w")]
    assert endpoint.secrets == {"milkweed-0a1b2c3d-hosts": {"a": "b"}}


def test_what_is_not_there_is_missing_as_with_an_api_server(api: AskedApi) -> None:
    """Whoever asks need not know whom."""
    with pytest.raises(ApiError) as caught:
        api.get(MESHES, "lab", "w")
    assert caught.value.missing


def test_what_there_is_of_a_job_is_known_by_its_names(
    api: AskedApi, endpoint: FakeEndpoint
) -> None:
    """Meshes, Secrets and pods; the endpoint has no lists."""
    assert list_asked(api, MESHES, HANDLE) == []
    make(api)
    assert [each["metadata"]["name"] for each in list_asked(api, MESHES, HANDLE)] == ["w"]
    assert list_asked(api, PODS, HANDLE) == [{"metadata": {"name": "w-1"}}]
    assert list_asked(api, SECRETS, HANDLE) == [{"metadata": {"name": "milkweed-0a1b2c3d-hosts"}}]
    assert list_asked(api, JOBS, HANDLE) == []
    assert api.delete(MESHES, "lab", "w")
    assert api.delete(SECRETS, "lab", "milkweed-0a1b2c3d-hosts")
    assert list_asked(api, SECRETS, HANDLE) == []


def test_pods_are_as_the_endpoint_tells(api: AskedApi, endpoint: FakeEndpoint) -> None:
    """By rank; one that is not there yet is a host without a pod."""
    make(api)
    first, second = pods_in(api, HANDLE)
    assert (first.label, first.view) == ("w/0", None)
    assert (second.label, second.running) == ("w/1", True)


def test_another_size(api: AskedApi, endpoint: FakeEndpoint) -> None:
    """With the Secrets of hosts to come."""
    make(api)
    body = {"metadata": {"annotations": {}}, "spec": {"replicas": 3}}
    api.patch(MESHES, "lab", "w", body)
    assert endpoint.asked[-1] == ("resize", "w=3")
    assert api.patch(SECRETS, "lab", "s", {"metadata": {}}) == {"metadata": {}}


def test_a_first_client_is_noted(api: AskedApi, endpoint: FakeEndpoint, home: Path) -> None:
    """In the Secret of the hosts, of which all else stays; pods that come anew read it there."""
    part = base64.b64encode(json.dumps({"queued": True, "port": 1}).encode()).decode()
    secret = {"metadata": {"name": "milkweed-0a1b2c3d-hosts"}, "data": {"a": "b", "part-0": part}}
    api.apply(SECRETS, "lab", secret)
    api.create(MESHES, "lab", {"metadata": {"name": "w", "namespace": "lab"}, "spec": {}})
    registry.folder_of(APPLY_ID).mkdir(parents=True)
    assert not is_met(api, HANDLE)
    note_met(api, HANDLE)
    data = endpoint.secrets["milkweed-0a1b2c3d-hosts"]
    assert json.loads(base64.b64decode(data["part-0"])) == {"queued": False, "port": 1}
    assert data["a"] == "b"
    assert is_met(api, HANDLE)


def test_what_is_told_of_a_mesh_is_what_the_endpoint_shows(
    api: AskedApi, endpoint: FakeEndpoint
) -> None:
    """It shows the condition that the operator wrote."""
    make(api)
    assert read_meshes(api, HANDLE) == {"w": Told()}
    condition = {"type": "Ready", "status": "False", "reason": "Conflict", "message": "taken"}
    endpoint.meshes["w"]["status"] = {"conditions": [condition]}
    assert read_meshes(api, HANDLE) == {"w": Told("Conflict", "taken")}
    endpoint.meshes["w"]["leaving"] = True
    assert read_meshes(api, HANDLE) == {}


def test_clients_are_not_made(api: AskedApi) -> None:
    """A pod that asks is a client itself."""
    with pytest.raises(SpecError, match="the endpoint makes hosts, and no clients"):
        api.apply(JOBS, "lab", {"metadata": {"name": "x"}})


@pytest.mark.parametrize("said", ["https://x", {"url": "https://x", "ca": "/ca"}])
def test_an_endpoint_is_an_address_or_more(said: Any) -> None:
    """With files for its authority and the token."""
    assert read_provision(said)["url"] == "https://x"


@pytest.mark.parametrize("said", [{"ca": "/ca"}, {"url": "https://x", "tokn": "/t"}])
def test_what_is_no_endpoint(said: Any) -> None:
    """Told with what would be."""
    with pytest.raises(SpecError, match="is no endpoint"):
        read_provision(said)
