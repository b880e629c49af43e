"""Letting in hosts that see no files of ours: through the job itself, with a real keeper that waits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from milkweed.backends import launch
from milkweed.backends.admitting import GRACE_S, name_share
from milkweed.backends.credentials import ensure_authority
from milkweed.backends.flux import admission
from milkweed.backends.flux.admission import admit, is_silent, render_visit
from milkweed.backends.flux.places import FluxPlace, make_places
from milkweed.worker import enrol
from unit.flux_fake import APPLY_ID, START_S, FakeFlux, part, row
from unit.keepers import WAIT_S, WAITER, free_ports, is_listening, move_runs


class World:
    """A job of two hosts on one machine, this one, neither of which sees the job's folder."""

    def __init__(self, flux: FakeFlux, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.flux = flux
        self.folder = root / "job"
        self.folder.mkdir()
        self.authority = ensure_authority(self.folder, APPLY_ID)
        self.runs = root / f"milkweed-{os.getuid()}"
        self.runs.mkdir(mode=0o700)
        [control] = free_ports(1)
        self.port = control - 1
        self.waiting: list[subprocess.Popen[str]] = []
        patch.setattr(launch, "BRIDGE", move_runs(enrol.BRIDGE, root))
        skip = 'shift; while case "$1" in --*) true;; *) false;; esac; do shift; done\n'
        self.flux.then("exec", skip + 'exec "$@"')

    def places(self) -> list[FluxPlace]:
        """Both hosts."""
        told = part(
            self.folder,
            addresses={"n1": "127.0.0.1"},
            port=self.port,
            certificates=[{"folder": "/x", "nodes": ["n1"]}],
            python=sys.executable,
            word="s3cret",
        )
        return make_places([row(nodes=("n1", "n1"))], {0: told})

    def wait_outside(self, index: int) -> subprocess.Popen[str]:
        """A keeper that waits to be let in."""
        run = self.runs / name_share(part(), index)
        run.mkdir(mode=0o700)
        said = {"apply_id": APPLY_ID, "port": self.port, "bells": []}
        made = subprocess.Popen(
            [sys.executable, "-c", WAITER, json.dumps(said), str(run)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.waiting.append(made)
        while not is_listening(run / "ctl"):
            assert made.poll() is None
            threading.Event().wait(0.005)
        return made

    def admit(self, *places: FluxPlace) -> None:
        """Let in those of these hosts that wait."""
        admit(self.folder, places, "")

    def close(self) -> None:
        """End whoever still waits."""
        for process in self.waiting:
            process.kill()
            process.communicate()


@pytest.fixture
def world(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> Generator[World]:
    root = Path(tempfile.mkdtemp(prefix="mw-", dir="/tmp"))
    made = World(flux, root, monkeypatch)
    yield made
    made.close()
    shutil.rmtree(root)


def test_two_hosts_on_one_machine_are_let_in(world: World) -> None:
    """Each by its own way; what is private is told over TLS, and not by Flux."""
    keepers = [world.wait_outside(index) for index in (0, 1)]
    world.admit(*world.places())
    for index, keeper in enumerate(keepers):
        told = json.loads(keeper.communicate(timeout=WAIT_S)[0])
        assert told["own"] == f"w/{index}"
        assert (told["word"], told["certificates"], told["record_folder"]) == ("s3cret", [], "")
    shown = json.dumps(world.flux.calls)
    assert "s3cret" not in shown
    assert {words[1] for words in world.flux.called("exec")} == {"--rank=0", "--rank=1"}


def test_a_certificate_has_the_names_of_its_node(world: World) -> None:
    """As Flux calls it, and as it is dialled."""
    keeper = world.wait_outside(0)
    world.admit(world.places()[0])
    keeper.communicate(timeout=WAIT_S)
    made = (world.runs / name_share(part(), 0) / "tls" / "tls.crt").read_bytes()
    names = x509.load_pem_x509_certificate(made).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert {"127.0.0.1", "n1"} <= {str(name.value) for name in names.value}


@pytest.mark.parametrize(
    "words",
    [
        '{"index": "0", "ev": "error", "what": "unknown order"}',
        '{"index": "0", "ev": "request", "csr": "nonsense", "names": []}',
        '{"index": "0", "ev": "request"}',
        "[]",
        "nonsense",
        "",
    ],
)
@pytest.mark.parametrize("mark", ["", enrol.BRIDGE_MARK])
def test_whoever_asks_for_nothing_gets_nothing(world: World, mark: str, words: str) -> None:
    """A keeper that runs already, and whatever else may be printed there, is left alone."""
    world.flux.then("exec", f"echo '{mark}{words}'; exec cat >/dev/null")
    world.admit(world.places()[0])
    assert len(world.flux.called("exec")) == 1


def test_what_a_site_has_tasks_print_is_passed_over(world: World) -> None:
    """Before and after what the bridge says."""
    keeper = world.wait_outside(0)
    skip = 'shift; while case "$1" in --*) true;; *) false;; esac; do shift; done\n'
    world.flux.then("exec", f"{skip}echo 'welcome'; \"$@\"; echo '{{}}'; exit 0")
    world.admit(world.places()[0])
    assert json.loads(keeper.communicate(timeout=WAIT_S)[0])["word"] == "s3cret"


def test_a_visit_that_flux_refuses(world: World) -> None:
    """The job may have ended meanwhile: whoever waits looks again."""
    world.flux.then("exec", "echo 'flux-exec: no such job' >&2; exit 1")
    world.admit(*world.places())


def test_a_visit_that_hangs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client does not wait for a node that never answers for longer than a visit may take."""
    monkeypatch.setattr(admission, "VISIT_TIMEOUT_S", 0.2)
    world.flux.then("exec", 'mkfifo "$home/never"; read -r word <"$home/never"')
    world.admit(world.places()[0])


def test_a_visit_is_beside_one_task() -> None:
    """Flux counts the nodes of a job as its tasks are counted: one on each."""
    assert render_visit(7, 3) == ["exec", "--jobid=7", "--rank=3", "--quiet", "--dir=/"]


@pytest.mark.parametrize(
    ("more", "now", "silent"),
    [
        ({}, START_S + GRACE_S + 1, True),
        ({}, START_S + GRACE_S - 1, False),
        ({"start": None}, START_S + 100, False),
    ],
)
def test_hosts_have_a_moment_to_answer(more: dict[str, Any], now: float, silent: bool) -> None:
    """Only those that have been silent for longer may be waiting to be let in."""
    assert is_silent(make_places([row(**more)], {0: part()})[0], now) is silent
    assert not is_silent(make_places([], {0: part()})[0], now)
