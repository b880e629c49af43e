"""The examples of Kubetorch's document, as they stand there: only imports and the image's name are changed.

They say nothing of a namespace, so they run in `default`, where nothing may be left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubernetes.conftest import PROGRAM_TIMEOUT_S, OutsideClient
from kubernetes.lab import TORCH, WORKER, Lab, skip_where_own, wait
from kubernetes.operators import Shared, make_client_login
from kubernetes.test_attach import SERVE
from kubernetes.test_job import milkweed
from milkweed.kube.resources import PODS
from programs import Client

CORPUS = Path(__file__).parents[1] / "corpus" / "kubetorch"
IMPORTS = {
    "import kubetorch as kt": "import milkweed as kt",
    "from monarch_kubetorch import KubernetesJob": "from milkweed import KubernetesJob",
    "from monarch.actor import Actor, endpoint": "from milkweed.actor import Actor, endpoint",
}
IMAGE = re.compile(r'(?<=kt\.Image\(name=")[^"]+')
ASKED = {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"}
RIGHTS = "serviceaccount,role,rolebinding"


def load_example(name: str, image: str = "") -> str:
    """An example with our imports, and an image that is in the lab."""
    lines = (CORPUS / f"{name}.txt").read_text().splitlines()
    changed = "\n".join(IMPORTS.get(line, line) for line in lines)
    code, count = IMAGE.subn(image, changed) if image else (changed, 0)
    assert count == bool(image)
    assert "kubetorch" not in code
    return f"{code}\n"


# Where they run


@pytest.fixture
def default(lab: Lab, healed: None, shared: Shared, tmp_path: Path) -> Iterator[str]:
    """The namespace `default` with clients' rights in it, and an operator; what is left there is an error."""
    skip_where_own("tests leave the namespace default of a cluster of yours alone")
    shared.act()
    before = lab.objects("default")
    make_client_login(lab, tmp_path, "default")
    yield "default"
    left = lab.objects("default")
    here = ("-n", "default", "delete")
    lab.kubectl(*here, "monarchmeshes,secrets", "-l", "milkweed.dev/job")
    lab.kubectl(*here, RIGHTS, "milkweed-client")
    assert left == before


@pytest.fixture
def reader(folder: Path, home: Path, tmp_path: Path) -> Iterator[Client]:
    """Runs programs just as they are written."""
    yield from lend(Client(folder, home), tmp_path)


@pytest.fixture
def outside_reader(lab: Lab, folder: Path, home: Path, tmp_path: Path) -> Iterator[Client]:
    """The same where nothing but the API server is reached, as from a laptop."""
    made = OutsideClient(folder, home)
    made.lab = lab
    yield from lend(made, tmp_path)


def lend(made: Client, login: Path) -> Iterator[Client]:
    made.timeout_s, made.preamble = PROGRAM_TIMEOUT_S, ""
    made.env["KUBECONFIG"] = str(login / "milkweed-client.kubeconfig")
    yield made
    made.end()


# Basic Example


def check_basic(out: str) -> None:
    assert out.count("Training step on cpu with batch_size=32") == 2
    assert "{'rank': 0}" in out
    assert "{'rank': 1}" in out


def test_the_basic_example(reader: Client, default: str) -> None:
    """From inside the cluster, with a torch that its actors import."""
    check_basic(reader.run(load_example("basic", TORCH)))


def test_the_basic_example_on_a_laptop(outside_reader: Client, default: str) -> None:
    """From where no pod can be dialled, which is what the document is about."""
    check_basic(outside_reader.run(load_example("basic", TORCH)))


# Programmatic Compute Provisioning

USE = """
from milkweed.actor import Actor, endpoint

class Look(Actor):
    @endpoint
    def look(self):
        import socket, torch, transformers
        return socket.gethostname(), torch.__name__, transformers.__name__

for _point, found in job.state().workers.spawn_procs().spawn("look", Look).look.call().get():
    print("host", *found)
"""
KILL = "from milkweed.job import job_load; job_load().kill()\n"


@pytest.fixture
def many_gpus(lab: Lab) -> Iterator[None]:
    """Nodes with GPUs for two such hosts each."""
    set_gpus(lab, 16)
    yield
    set_gpus(lab, 8)


def set_gpus(lab: Lab, count: int) -> None:
    paths = [f"/status/{part}/nvidia.com~1gpu" for part in ("capacity", "allocatable")]
    patch = json.dumps([{"op": "add", "path": path, "value": str(count)} for path in paths])
    for node in lab.nodes:
        lab.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", patch)


def requests(lab: Lab) -> list[dict[str, str]]:
    pods = lab.api.get(PODS, "default")["items"]
    return [pod["spec"]["containers"][0]["resources"]["requests"] for pod in pods]


def test_a_large_compute(reader: Client, lab: Lab, default: str, many_gpus: None) -> None:
    """Four hosts of 8 GPUs, 32 CPUs and 256 GiB, whose image has what the steps ask for."""
    out = reader.run(load_example("provisioning", TORCH) + USE)
    assert len(re.findall(r"^host workersx\w+-[0-3] torch transformers$", out, re.MULTILINE)) == 4
    assert requests(lab) == [ASKED] * 4
    reader.run(KILL)


def test_a_large_compute_that_finds_no_room(reader: Client, lab: Lab, default: str) -> None:
    """It is asked for as it was said and waits, with the scheduler's reason; kill() leaves nothing."""
    program = reader.start(load_example("provisioning", TORCH) + "job.state()")
    shown = [""]

    def tells() -> bool:
        if (reader.folder / ".milkweed" / "job.json").exists():
            shown[0] = milkweed(reader, "status")
        return "Unschedulable" in shown[0]

    wait(tells, 60, "nobody says why they wait", lambda: shown[0])
    assert "Insufficient nvidia.com/gpu" in shown[0]
    assert program.poll() is None
    assert requests(lab) == [ASKED] * 4
    program.kill()
    program.communicate()
    reader.run(KILL)


# Using Pre-allocated Pods

NORMAL = """
from milkweed.actor import Actor, endpoint

class Look(Actor):
    @endpoint
    def look(self):
        import socket
        return socket.gethostname()

for point, name in state.workers.spawn_procs().spawn("look", Look).look.call().get():
    print("rank", point.rank, name)
job.kill()
"""


@pytest.fixture
def theirs(lab: Lab, healed: None, tmp_path: Path) -> Iterator[str]:
    """The document's namespace."""
    skip_where_own("a cluster of yours may have a namespace of this name")
    name = lab.make_namespace("my-namespace")
    make_client_login(lab, tmp_path, name)
    yield name
    lab.delete_namespace(name)
    wait(lambda: not lab.find("namespace", "", name), 60, f"{name} does not go")


def test_pods_that_are_there(reader: Client, lab: Lab, theirs: str) -> None:
    """Found by their label, in the order of their names, and left as they are."""
    for name in ("b", "a"):
        lab.run_pod(theirs, name, "python3", "-u", "-c", SERVE, image=WORKER)
        words = ("app=my-monarch-workers", "--overwrite")
        lab.kubectl("-n", theirs, "label", "pod", name, *words)
    before = lab.objects(theirs)
    said = IMPORTS["from monarch_kubetorch import KubernetesJob"]
    out = reader.run(f"{said}\n{load_example('preallocated')}{NORMAL}")
    assert "rank 0 a" in out
    assert "rank 1 b" in out
    assert lab.objects(theirs) == before
    assert {lab.phase(theirs, name) for name in "ab"} == {"Running"}
