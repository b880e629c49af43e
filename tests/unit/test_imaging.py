"""Bringing hosts to their image, as keepers see it that only answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import BackendError, DeadlineError, StepFailedError, UnreachableError
from milkweed.image import Image, Line
from milkweed.job import imaging
from milkweed.job.imaging import describe_step, ensure_images, first_line
from unit.keepers import FakeKeeper

IMAGE = Image().run_bash("one").run_bash("two")
DIGESTS = [step.digest for step in IMAGE.steps]


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKeeper]:
    """A host that does every step well, and is tried again without a pause."""
    monkeypatch.setattr(imaging, "RETRY_S", 0.0)
    with make_keeper(tmp_path) as made:
        yield made


def make_keeper(tmp_path: Path, name: str = "w/0", **claimed: Any) -> FakeKeeper:
    made = FakeKeeper(name).listen_unix(tmp_path / name.replace("/", "."))
    answer = {"ev": "claimed", "done": [], "held": True, "hosts": [name], **claimed}
    made.answers["claim"] = answer
    made.answers["step"] = {"ev": "step-exit", "id": 1, "code": 0, "tail": []}
    made.answers["start"] = {"ev": "status"}
    return made


def ops(keeper: FakeKeeper) -> list[str]:
    return [order["op"] for order in keeper.orders]


def test_steps_then_start(keeper: FakeKeeper) -> None:
    """Every step in order, with its number and digest; then the host is let go, and started."""
    ensure_images({keeper.address: IMAGE})
    assert ops(keeper) == ["claim", "step", "step", "release", "start"]
    sent = [(each["number"], each["text"], each["digest"]) for each in keeper.wait_for("step")]
    assert sent == [(0, "one", DIGESTS[0]), (1, "two", DIGESTS[1])]
    assert "process" in keeper.orders[0]["client"]


@pytest.mark.parametrize(
    ("done", "held", "expected"),
    [
        (DIGESTS, False, ["claim", "release"]),
        (DIGESTS, True, ["claim", "release", "start"]),
        (DIGESTS[:1], False, ["claim", "step", "release", "start"]),
        ([*DIGESTS, "more"], False, ["claim", "release"]),
        (["other", *DIGESTS[1:]], True, ["claim", "step", "step", "release", "start"]),
    ],
)
def test_only_what_is_lacking_is_done(
    tmp_path: Path, done: list[str], held: bool, expected: list[str]
) -> None:
    """From the first step that is not known there; a host that serves and lacks nothing is left alone."""
    with make_keeper(tmp_path, done=done, held=held) as keeper:
        ensure_images({keeper.address: IMAGE})
        keeper.wait_for("release")
        assert ops(keeper) == expected


def test_without_an_image_hosts_are_started(keeper: FakeKeeper) -> None:
    """There is nothing to claim."""
    ensure_images({keeper.address: None})
    assert ops(keeper) == ["start"]
    ensure_images({})


def test_a_connection_that_breaks_is_tried_again(keeper: FakeKeeper) -> None:
    """It goes on from what the host says is done by then."""
    del keeper.answers["step"]

    def help_along() -> None:
        keeper.wait_for("step")
        keeper.answers["claim"] = {**keeper.answers["claim"], "done": DIGESTS[:1]}
        keeper.answers["step"] = {"ev": "step-exit", "id": 1, "code": 0, "tail": []}
        keeper.hang_up(abruptly=True)

    helper = threading.Thread(target=help_along)
    helper.start()
    ensure_images({keeper.address: IMAGE})
    helper.join()
    assert [each["number"] for each in keeper.wait_for("step")] == [0, 1]
    assert ops(keeper).count("claim") == 2


def test_a_host_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a few tries."""
    monkeypatch.setattr(imaging, "RETRY_S", 0.0)
    tried: list[str] = []
    real = imaging.Connection

    def connect(address: str) -> Any:
        tried.append(address)
        return real(address)

    monkeypatch.setattr(imaging, "Connection", connect)
    with pytest.raises(UnreachableError, match="does not answer"):
        ensure_images({f"unix://{tmp_path}/nobody": IMAGE})
    assert len(tried) == imaging.TRIES


def test_a_keeper_that_refuses_is_told(keeper: FakeKeeper) -> None:
    """One of an older milkweed does not know the order."""
    keeper.answers["claim"] = {"ev": "error", "what": "unknown order 'claim'"}
    with pytest.raises(BackendError, match="refused an order") as caught:
        ensure_images({keeper.address: IMAGE})
    assert caught.value.seen == "unknown order 'claim'"


def test_one_failure_ends_it_for_all_others(tmp_path: Path) -> None:
    """Those who wait for a host stop at once; nothing is started."""
    with make_keeper(tmp_path, "w/0") as ill, make_keeper(tmp_path, "w/1") as slow:
        ill.answers["step"] = {"ev": "step-exit", "id": 1, "code": 3, "tail": ["why"]}
        del slow.answers["step"]
        with pytest.raises(StepFailedError) as caught:
            ensure_images({slow.address: IMAGE, ill.address: IMAGE})
        error = caught.value
        assert (error.host, error.step, error.exit_code, error.seen) == ("w/0", "one", 3, "why")
        assert "start" not in [*ops(ill), *ops(slow)]


def test_failures_are_counted(tmp_path: Path) -> None:
    """One is told, and how many more there are at that time."""
    failed = [StepFailedError(f"host {number}") for number in range(3)]
    futures: list[Any] = []
    for error in failed:
        future: Any = imaging.Future()
        future.set_exception(error)
        futures.append(future)
    cancelled: Any = imaging.Future()
    cancelled.cancel()
    with pytest.raises(StepFailedError, match=r"^host 0 \(2 more failed\)$"):
        imaging._raise_first([cancelled, *futures])


def test_a_deadline_tells_what_is_waited_for(keeper: FakeKeeper) -> None:
    """Here another client that does not end."""
    busy = {"ev": "busy", "who": "you@there (process 1)", "text": "make all", "for_s": 5.0}
    keeper.answers["claim"] = busy
    with pytest.raises(DeadlineError) as caught:
        ensure_images({keeper.address: IMAGE}, deadline_s=time.monotonic() + 0.5)
    assert "a host: waits for you@there (process 1): make all" in caught.value.seen
    assert "start again to go on" in caught.value.hint


def test_only_some_hosts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are."""
    monkeypatch.setattr(imaging, "AT_ONCE", 2)
    now, most, lock = [0], [0], threading.Lock()
    real = imaging._Visit._bring

    def bring(visit: Any, connection: Any) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        real(visit, connection)
        with lock:
            now[0] -= 1

    monkeypatch.setattr(imaging._Visit, "_bring", bring)
    keepers = [make_keeper(tmp_path, f"w/{rank}") for rank in range(6)]
    try:
        ensure_images({keeper.address: IMAGE for keeper in keepers})
        assert all(ops(keeper)[-1] == "start" for keeper in keepers)
        assert 1 <= most[0] <= 2
    finally:
        for keeper in keepers:
            keeper.close()


def test_each_host_has_its_own_image(tmp_path: Path) -> None:
    """Meshes may differ; all are started together."""
    with make_keeper(tmp_path, "a/0") as a, make_keeper(tmp_path, "b/0") as b:
        ensure_images({a.address: Image().run_bash("for a"), b.address: Image().run_bash("for b")})
        assert [a.wait_for("step")[0]["text"], b.wait_for("step")[0]["text"]] == ["for a", "for b"]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Image().run_bash("make\nall").lines[0], "make\nall"),
        (Image().pip_install("--pre torch>2").lines[0], "pip install --pre 'torch>2'"),
        (Image(install_cmd="uv pip install").pip_install("a").lines[0], "uv pip install a"),
        (Image().set_env_vars({"TOKEN": "secret"}).lines[0], "set TOKEN"),
        (Image().copy("a", "b").lines[0], "copy a to b"),
        (Line(kind="workdir", text="/app"), "go to /app"),
    ],
)
def test_steps_are_named_as_they_were_written(step: Line, expected: str) -> None:
    """But the value of a variable may be a secret."""
    assert describe_step(step) == expected


def test_long_texts_are_cut_for_a_line() -> None:
    """The first line, and of that the beginning."""
    assert first_line("  make\nall") == "make"
    assert first_line("x" * 60) == "x" * 60
    assert first_line("x" * 61) == "x" * 59 + "…"
