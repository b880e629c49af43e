"""Letting hosts in through a step of the job: a fake srun that runs the real bridge, and real TLS."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from milkweed.backends import launch
from milkweed.backends.admitting import certify
from milkweed.backends.credentials import ensure_authority, ensure_client
from milkweed.backends.launch import render_bridge
from milkweed.backends.slurm import admission
from milkweed.backends.slurm.admission import GRACE_S, Pace, admit, is_silent
from milkweed.backends.slurm.places import Place, make_places
from milkweed.backends.slurm.script import render_visit
from milkweed.errors import AccessError
from milkweed.testing import FakeClock
from milkweed.worker import enrol
from unit.keepers import WAIT_S, WAITER, FakeKeeper, free_ports, is_listening, move_runs
from unit.slurm_fake import APPLY_ID, START_S, FakeSlurm, part, row

SHARE = f"{APPLY_ID.replace('-', '')[:16]}.0.0"


# Whom to visit


def place(**more: Any) -> Place:
    return make_places([row(nodes=("n1",), **more)], {0: part("w/0")})[0]


@pytest.mark.parametrize(
    ("start", "now", "silent"),
    [
        (START_S, START_S + GRACE_S - 1, False),
        (START_S, START_S + GRACE_S + 1, True),
        (None, START_S + 10**6, False),
    ],
)
def test_hosts_have_a_moment_to_answer(start: float | None, now: float, silent: bool) -> None:
    """Only those that have been silent for longer may be waiting to be let in."""
    assert is_silent(place(start=start), now) is silent


def test_a_host_that_slurm_does_not_know_is_not_visited() -> None:
    """There is no job to go through."""
    [nowhere] = make_places([], {0: part("w/0")})
    assert not is_silent(nowhere, START_S + 10**6)


def test_a_visit_is_a_step_of_one_task_per_node() -> None:
    """Beside the keepers, in the job that runs, and in the component that is meant."""
    words = render_visit(row(job_id=12, leader=11, offset=1), 3)
    assert words[:5] == ["srun", "--jobid=11", "--het-group=1", "--nodes=3", "--ntasks=3"]
    assert {"--overlap", "--ntasks-per-node=1", "--mem=0"} <= set(words)
    assert not [word for word in render_visit(row(), 1) if "het" in word]


def test_the_bridge_runs_in_the_hosts_own_python(tmp_path: Path) -> None:
    """The one that was declared, whatever its name is; the bridge itself is one word."""
    python = tmp_path / "it's $(my) python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run(render_bridge(str(python)), capture_output=True, text=True, check=True)
    assert done.stdout == f"-c\n{enrol.BRIDGE}\n"


def test_hosts_that_stay_silent_are_visited_seldomer(clock: FakeClock) -> None:
    """At once, then after 6, 12, 24, 48 seconds, and once a minute: each visit is a step of Slurm."""
    pace = Pace(clock)
    visits: list[float] = []
    for _ in range(300):
        if pace.is_due([place()]):
            visits.append(clock.now_s - 1000.0)
        clock.advance(1.0)
    assert visits == [0.0, 6.0, 18.0, 42.0, 90.0, 150.0, 210.0, 270.0]


def test_a_job_that_begins_anew_is_visited_at_once(clock: FakeClock) -> None:
    """Its hosts are others, and so are those of another job."""
    pace = Pace(clock)
    assert pace.is_due([place()])
    assert not pace.is_due([place()])
    assert pace.is_due([place(start=START_S + 60)])
    assert pace.is_due([place(job_id=8)])


# A visit


class World:
    """A job of one component on nodes that are this machine, none of which sees the job's folder."""

    def __init__(self, slurm: FakeSlurm, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.folder = root / "job"
        self.folder.mkdir()
        self.authority = ensure_authority(self.folder, APPLY_ID)
        self.runs = root / f"milkweed-{os.getuid()}"
        self.runs.mkdir(mode=0o700)
        [control] = free_ports(1)
        self.port = control - 1
        self.slurm = slurm
        self.waiting: list[subprocess.Popen[str]] = []
        bridge = move_runs(enrol.BRIDGE, root)
        patch.setattr(launch, "BRIDGE", bridge)
        self.answer_with('SLURM_PROCID=0 exec "$@"')

    def answer_with(self, tasks: str) -> None:
        """What srun does once its own options are gone."""
        skip = 'while case "$1" in --*) true;; *) false;; esac; do shift; done\n'
        self.slurm.then("srun", skip + tasks)

    def places(self, *nodes: str, **more: Any) -> list[Place]:
        """A host on each of these nodes."""
        labels = [f"w/{number}" for number in range(len(nodes))]
        data = part(
            *labels,
            addresses=dict.fromkeys(nodes, "127.0.0.1"),
            record_folder=str(self.folder),
            port=self.port,
            certificates=[{"folder": "/x", "nodes": list(nodes)}],
            python=sys.executable,
            word="s3cret",
        )
        return make_places([row(nodes=nodes, **more)], {0: data})

    def wait_outside(self, index: int = 0) -> subprocess.Popen[str]:
        """A keeper that waits to be let in."""
        run = self.runs / f"{SHARE}.{index}"
        run.mkdir(mode=0o700)
        invitation = json.dumps({"apply_id": APPLY_ID, "port": self.port, "bells": []})
        made = subprocess.Popen(
            [sys.executable, "-c", WAITER, invitation, str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.waiting.append(made)
        while not is_listening(run / "ctl"):
            assert made.poll() is None
            threading.Event().wait(0.005)
        return made

    def door(self, place: Place) -> str:
        """Where the keeper of a host takes orders."""
        credentials = ensure_client(self.folder, "127.0.0.1")
        return f"tls://127.0.0.1:{self.port}/{place.host}#{credentials}"

    def admit(self, *places: Place) -> None:
        """Let in those of these hosts that wait."""
        admit(self.folder, places, self.door)

    def close(self) -> None:
        """End whoever still waits."""
        for process in self.waiting:
            process.kill()
            process.communicate()


@pytest.fixture
def world(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    root = Path(tempfile.mkdtemp(prefix="mw-", dir="/tmp"))
    made = World(slurm, root, monkeypatch)
    yield made
    made.close()
    shutil.rmtree(root)


def test_a_host_that_waits_is_let_in_and_told(world: World) -> None:
    """A certificate for its node, then over TLS what it is; the keys of others and our folder are not told."""
    keeper = world.wait_outside()
    world.admit(*world.places("n1"))
    told = json.loads(keeper.communicate(timeout=WAIT_S)[0])
    assert (told["word"], told["part"]) == ("s3cret", "0.0")
    assert (told["certificates"], told["record_folder"]) == ([], "")
    [arguments] = world.slurm.called("srun")
    assert arguments[:3] == ["--jobid=7", "--nodes=1", "--ntasks=1"]
    assert "s3cret" not in "".join(arguments)


def test_a_host_is_told_which_it_is(world: World) -> None:
    """A host before it was given back, before the start or since: the number of its task does not tell."""
    keeper = world.wait_outside()
    [first] = world.places("n1")
    hosts = [{"mesh": mesh, "rank": 0} for mesh in ("w", "v")]
    told = {**first.part, "hosts": hosts, "released": [0]}
    [place] = make_places([row(nodes=("n1",))], {0: told})
    world.admit(place)
    assert json.loads(keeper.communicate(timeout=WAIT_S)[0])["own"] == "v/0"


def test_nobody_is_let_in_of_whom_it_is_not_known_which_host_it_is(world: World) -> None:
    """It waits on: whoever knows that comes later."""
    keeper = world.wait_outside()
    [first] = world.places("n1")
    world.admit(replace(first, node="n2"))
    assert keeper.poll() is None


def test_a_certificate_is_for_the_node_that_asked(world: World) -> None:
    """Its names are Slurm's own for that node, and those the machine has itself."""
    keeper = world.wait_outside()
    world.admit(*world.places("n1"))
    keeper.communicate(timeout=WAIT_S)
    made = (world.runs / f"{SHARE}.0" / "tls" / "tls.crt").read_bytes()
    names = x509.load_pem_x509_certificate(made).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    found = {str(name.value) for name in names.value}
    assert {"127.0.0.1", "n1"} <= found
    assert (world.runs / f"{SHARE}.0" / "tls" / "ca.crt").read_bytes() == world.authority.cert_pem


def say(*messages: dict[str, Any]) -> str:
    """Tasks that print this, and read what comes."""
    lines = "".join(f"{enrol.BRIDGE_MARK}{json.dumps(message)}\n" for message in messages)
    return f"cat <<'EOF'\n{lines}EOF\nexec cat >/dev/null"


def test_hosts_that_do_not_wait_are_left_alone(world: World) -> None:
    """A keeper that runs already, only slowly, does not know the question, and that is all."""
    world.answer_with(say({"index": "0", "ev": "error", "what": "unknown order 'request'"}))
    with FakeKeeper("w/0") as keeper:
        world.admit(*world.places("n1"))
        assert keeper.orders == []


def test_what_a_site_has_tasks_print_is_passed_over(world: World) -> None:
    """Before the bridge says something, between its lines, and on the very line."""
    keeper = world.wait_outside()
    bridge = 'SLURM_PROCID=0 "$@" | while read -r line; do echo "[]"; printf "a line %s\\n" "$line"; done'
    world.answer_with(f"echo 'welcome to n1'; echo '{{}}'; echo '7'\n{bridge}")
    world.admit(*world.places("n1"))
    assert json.loads(keeper.communicate(timeout=WAIT_S)[0])["word"] == "s3cret"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"index": "0", "ev": "request"},
        {"index": "9", "ev": "request", "csr": "", "names": []},
        {"index": "x", "ev": "request", "csr": "", "names": []},
        {"ev": "request", "csr": "", "names": []},
    ],
)
def test_an_answer_that_is_none_of_a_keepers(world: World, answer: dict[str, Any]) -> None:
    """Whoever waits for the host waits on, and looks again."""
    world.answer_with(say(answer))
    world.admit(*world.places("n1"))


def test_a_step_that_slurm_refuses_is_no_error(world: World) -> None:
    """The job may have ended meanwhile: whoever waits looks again."""
    world.answer_with("echo 'srun: error: Invalid job id' >&2; exit 1")
    world.admit(*world.places("n1"))


def test_a_step_that_hangs_is_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client does not wait for a node that never answers for longer than a visit may take."""
    monkeypatch.setattr(admission, "VISIT_TIMEOUT_S", 0.2)
    world.answer_with('mkfifo "$home/never"; read -r word <"$home/never"')
    world.admit(*world.places("n1"))


def test_a_request_that_is_none_is_not_signed(world: World) -> None:
    """Whatever a task prints, only a request that its own key has signed gets a certificate."""
    asked = {"index": "0", "ev": "request", "csr": "nonsense", "names": []}
    world.answer_with(say(asked))
    world.admit(*world.places("n1"))


def test_names_that_no_certificate_carries_are_passed_over(world: World, tmp_path: Path) -> None:
    """A machine with an odd name of its own is still known by Slurm's name for it."""
    csr = enrol.make_request(tmp_path)
    odd = ["", "*.evil", "a b", "localhost", "127.0.0.1:80"]
    request = {"index": "1", "ev": "request", "csr": csr, "names": odd}
    [_first, second] = world.places("n1", "n2")
    made = certify(world.authority, request, second)
    found = x509.load_pem_x509_certificate(made["certificate"].encode())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {str(name.value) for name in names} == {"127.0.0.1", "n2", "localhost"}


def test_each_component_is_visited_by_itself(world: World) -> None:
    """A component that cannot be visited does not keep the others waiting."""
    world.answer_with("exit 1")
    first = world.places("n1")[0]
    data = {**first.part, "part": "0.1"}
    other = row(job_id=8, leader=7, offset=1, component=1, nodes=("n2",))
    [second] = make_places([other], {1: data})
    world.admit(first, second)
    visited = [arguments[:2] for arguments in world.slurm.called("srun")]
    assert visited == [["--jobid=7", "--nodes=1"], ["--jobid=7", "--het-group=1"]]


def test_without_the_jobs_key_nobody_is_let_in(world: World) -> None:
    """Only the owner has the authority: without it nothing is visited, and the error says why."""
    shutil.rmtree(world.folder / "tls")
    with pytest.raises(AccessError):
        world.admit(*world.places("n1"))
    assert world.slurm.called("srun") == []
