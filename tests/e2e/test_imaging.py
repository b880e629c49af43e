"""An image's steps on real hosts: held, brought up to date, started; and what clients do to each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.held_keepers import HeldKeeper, several
from milkweed.errors import DeadlineError, StepFailedError
from milkweed.image import Image
from milkweed.job.imaging import ensure_images
from milkweed.worker.steps import HELD

pytestmark = pytest.mark.e2e

COUNT = "echo x >>count; wc -l <count"


@pytest.fixture
def keeper() -> Iterator[HeldKeeper]:
    """A host that waits for its steps."""
    with HeldKeeper() as made:
        yield made


def ensure(image: Image | None, *keepers: HeldKeeper) -> list[str]:
    """Bring hosts to an image; what the steps printed."""
    heard: list[str] = []
    images = {keeper.address: image for keeper in keepers}
    ensure_images(images, job="demo", hear=lambda _host, lines: heard.extend(lines))
    return heard


def start_client(keeper: HeldKeeper, image: str) -> subprocess.Popen[str]:
    """Another client, which brings the host to another image."""
    code = f"""
        from milkweed.image import Image
        from milkweed.job.imaging import ensure_images
        ensure_images({{{keeper.address!r}: {image}}}, hear=lambda _host, lines: print(*lines, flush=True))
        print("ready", flush=True)
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def is_running(word: str) -> bool:
    """Whether some process has a word in its command line."""
    return subprocess.run(["pgrep", "-f", word], capture_output=True, check=False).returncode == 0


# From held to serving


def test_a_held_host_waits_for_its_steps(keeper: HeldKeeper) -> None:
    """It takes orders, says what it waits for, and has nothing of the engine in memory."""
    assert keeper.status()["held"]
    assert (keeper.host()["state"], keeper.host()["reason"]) == ("starting", HELD)
    assert "_rust_bindings" not in Path(f"/proc/{keeper.process.pid}/maps").read_text()
    assert keeper.run_command("echo", "hello") == "hello"


def test_steps_are_done_and_the_host_serves(keeper: HeldKeeper) -> None:
    """Steps run in order in the host's folder; what they print is heard, and is in the host's log."""
    image = Image().run_bash("echo one; echo two >&2").run_bash("pwd")
    assert sorted(ensure(image, keeper)) == sorted(["one", "two", str(keeper.home)])
    keeper.wait_until(lambda: keeper.host()["state"] == "ready")
    assert keeper.host()["reason"] == ""
    assert keeper.host()["address"].startswith("tls://localhost:")
    assert "two\n" in keeper.log()
    assert "_rust_bindings" in Path(f"/proc/{keeper.process.pid}/maps").read_text()


def test_a_host_without_steps_starts(keeper: HeldKeeper) -> None:
    """No image, no folders: the order to start is all it needs, and a second one changes nothing."""
    ensure(None, keeper)
    keeper.wait_until(lambda: keeper.host()["state"] == "ready")
    before = keeper.host()
    ensure(None, keeper)
    assert keeper.host() == before


def test_what_was_done_is_not_done_again(keeper: HeldKeeper) -> None:
    """A second client with the same image finds everything as it should be; a forced step is done each time."""
    image = Image().run_bash(COUNT)
    assert ensure(image, keeper) == ["1"]
    assert ensure(image, keeper) == []
    forced = image.run_bash(COUNT, force=True)
    assert ensure(forced, keeper) == ["2"]
    assert ensure(forced, keeper) == ["3"]


def test_steps_are_replayed_from_the_first_that_changed(keeper: HeldKeeper) -> None:
    """Steps before it stay done; those after it are done again, though they are the same."""
    first, last = "echo first", "echo last"
    assert ensure(Image().run_bash(first).run_bash("echo a").run_bash(last), keeper) == [
        *("first", "a", "last")
    ]
    changed = Image().run_bash(first).run_bash("echo b").run_bash(last)
    assert ensure(changed, keeper) == ["b", "last"]
    assert ensure(Image().run_bash(first), keeper) == []


def test_a_step_leaves_what_it_started_running(keeper: HeldKeeper) -> None:
    """A server that a step starts in the background does not keep the step from ending, and lives on."""
    started_s = time.monotonic()
    ensure(Image().run_bash("sleep 300 & echo $! >server"), keeper)
    assert time.monotonic() - started_s < 30
    os.kill(int((keeper.home / "server").read_text()), 0)


# Steps that fail


def test_a_step_that_fails_is_told_with_its_output(keeper: HeldKeeper) -> None:
    """The error names host, step, exit code and the last lines; the host stays held, and goes on when mended."""
    image = Image().run_bash(COUNT).run_bash("echo oh no; exit 7").run_bash("echo never")
    with pytest.raises(StepFailedError) as caught:
        ensure(image, keeper)
    error = caught.value
    assert (error.host, error.step, error.exit_code) == ("w/0", "echo oh no; exit 7", 7)
    assert error.what.startswith("step 2 of 3 failed on host w/0 with exit code 7: echo oh no")
    assert error.seen == "oh no"
    assert keeper.status()["held"]
    why = "a step of its image failed, it exited with code 7: echo oh no; exit 7"
    assert (keeper.host()["state"], keeper.host()["reason"]) == ("starting", why)
    mended = Image().run_bash(COUNT).run_bash("echo well")
    assert ensure(mended, keeper) == ["well"]
    keeper.wait_until(lambda: keeper.host()["state"] == "ready")


def test_a_failed_step_is_tried_again(keeper: HeldKeeper) -> None:
    """It is not remembered as done, so the same image does it once more."""
    image = Image().run_bash("test -e there || { echo not yet; exit 1; }")
    for _ in range(2):
        with pytest.raises(StepFailedError, match="not yet"):
            ensure(image, keeper)
    (keeper.home / "there").touch()
    assert ensure(image, keeper) == []
    assert not keeper.status()["held"]


def test_one_host_that_fails_keeps_all_held() -> None:
    """Where it went well what was done stays, and nothing is started."""
    with several(2) as (well, ill):
        (ill.home / "ill").touch()
        both_began = f"until [ -e {well.home}/began ]; do sleep 0.05; done"
        image = (
            Image().run_bash(COUNT).run_bash("touch began").run_bash(f"{both_began}; [ ! -e ill ]")
        )
        with pytest.raises(StepFailedError) as caught:
            ensure(image, well, ill)
        assert caught.value.step == f"{both_began}; [ ! -e ill ]"
        assert [each.status()["held"] for each in (well, ill)] == [True, True]
        (ill.home / "ill").unlink()
        assert ensure(image, well, ill) == []
        ill.wait_until(lambda: ill.host()["state"] == "ready")


def test_a_signal_is_told_as_one(keeper: HeldKeeper) -> None:
    """As of any program that was ended."""
    with pytest.raises(StepFailedError, match="by signal 9") as caught:
        ensure(Image().run_bash("kill -9 $$"), keeper)
    assert caught.value.exit_code == -9
    assert caught.value.seen == "it wrote nothing"


def test_a_deadline_ends_the_wait_and_the_step(keeper: HeldKeeper) -> None:
    """The error tells what is being done; what had begun is ended, and nothing runs on unseen."""
    image = Image().run_bash("sleep 312")
    keeper.status()
    with pytest.raises(DeadlineError, match="step 1 of 1: sleep 312"):
        ensure_images({keeper.address: image}, deadline_s=time.monotonic() + 3.0)
    keeper.wait_until(lambda: not is_running("sleep 312"))
    assert keeper.status()["held"]


# Several clients


def test_a_second_client_waits_and_shares_the_outcome(keeper: HeldKeeper) -> None:
    """It does nothing again, and hears meanwhile who is at work and on what."""
    image = f"Image().run_bash('echo began; sleep 2; {COUNT}')"
    first = start_client(keeper, image)
    assert first.stdout
    assert first.stdout.readline() == "began\n"
    with keeper.connect() as connection:
        busy = connection.ask({"op": "claim", "client": "me"}, "busy")
        assert f"(process {first.pid})" in busy["who"]
        assert busy["text"].startswith("echo began")
    assert keeper.host()["reason"].startswith("its image's steps are being done: echo began")
    second = start_client(keeper, image)
    assert first.communicate(timeout=60)[0] == "1\nready\n"
    assert second.communicate(timeout=60)[0] == "ready\n"


def test_two_clients_with_different_images_take_turns(keeper: HeldKeeper) -> None:
    """Their steps never run at the same time."""
    step = "[ ! -e busy ] && touch busy && sleep 0.2 && rm busy"
    images = [Image().run_bash(f"{step}; # {name}") for name in "abcd"]
    failed: list[Exception] = []

    def work(image: Image) -> None:
        try:
            ensure(image, keeper)
        except StepFailedError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(image,)) for image in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_after_a_client_that_was_ended_the_next_goes_on(
    keeper: HeldKeeper, number: signal.Signals
) -> None:
    """Its step is ended and counts as not done; what it had done before stays done."""
    slow = "echo slow; sleep 313"
    killed = start_client(keeper, f"Image().run_bash({COUNT!r}).run_bash({slow!r})")
    assert killed.stdout
    assert [killed.stdout.readline() for _ in range(2)] == ["1\n", "slow\n"]
    killed.send_signal(number)
    killed.communicate(timeout=60)
    assert ensure(Image().run_bash(COUNT).run_bash("echo quick"), keeper) == ["quick"]
    keeper.wait_until(lambda: not is_running("sleep 313"))
    keeper.wait_until(lambda: keeper.host()["state"] == "ready")


def test_orders_without_a_claim_are_refused(keeper: HeldKeeper) -> None:
    """Somebody else could be in the middle of a change."""
    with keeper.connect() as connection:
        order = {"op": "step", "id": 1, "number": 0, "kind": "run", "text": "true", "digest": "d"}
        assert "claim this host first" in connection.ask(order, "error")["what"]
    with keeper.connect() as connection:
        assert connection.ask({"op": "claim", "client": "me"}, "claimed")["done"] == []
        assert "cannot be done" in connection.ask({**order, "number": 3}, "error")["what"]
