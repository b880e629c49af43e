"""`flux` as it is run: who is asked, what is said when nobody answers, and how seldom jobs are asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from milkweed.backends.flux import commands
from milkweed.backends.flux.commands import (
    Queue,
    cancel,
    check_version,
    load_jobs,
    resolve,
    run,
    submit,
)
from milkweed.errors import BackendError, SpecError, UnreachableError
from milkweed.testing import FakeClock
from unit.flux_fake import CORPUS, FakeFlux, item


def test_arguments_need_no_quoting(flux: FakeFlux) -> None:
    """Each word arrives as it is: there is no shell between."""
    words = ["cancel", "a b", "$(touch pwned)", "it's", "*", ""]
    run(words)
    assert flux.calls[-1] == words


@pytest.mark.parametrize("path", sorted(CORPUS.glob("error-down-*.txt")), ids=lambda p: p.stem)
def test_an_instance_that_is_away(flux: FakeFlux, path: Path) -> None:
    """Every way in which a real Flux says so is «nobody answered», with the words."""
    flux.answer("jobs", err=path.read_text(), code=1)
    with pytest.raises(UnreachableError, match="did not answer") as caught:
        run(["jobs"])
    assert path.read_text().strip() in caught.value.seen


@pytest.mark.parametrize("path", sorted(CORPUS.glob("error-*submit*.txt")), ids=lambda p: p.stem)
def test_a_refusal_is_a_refusal(flux: FakeFlux, path: Path) -> None:
    """It is an error with Flux's own words, and never «nobody answered»."""
    flux.answer("job submit", err=path.read_text(), code=1)
    with pytest.raises(BackendError) as caught:
        submit({"version": 1})
    assert not isinstance(caught.value, UnreachableError)
    assert path.read_text().strip() in caught.value.seen


def test_without_an_instance_the_hint_says_where_one_is(
    flux: FakeFlux, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that runs in none is told how to; one that names its instance can only try again."""
    flux.be_away()
    monkeypatch.delenv("FLUX_URI")
    with pytest.raises(UnreachableError) as caught:
        run(["jobs"])
    assert "flux alloc" in caught.value.hint
    with pytest.raises(UnreachableError) as caught:
        run(["jobs"], uri="local:///x")
    assert caught.value.hint == "try again when it answers"


def test_flux_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the command the error says what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="there is no flux here") as caught:
        run(["jobs"])
    assert "PATH" in caught.value.hint


def test_an_instance_that_is_silent(flux: FakeFlux) -> None:
    """A frozen broker keeps its commands waiting: they are ended, and nothing is known."""
    flux.then("jobs --json", 'mkfifo "$home/never"; read -r word <"$home/never"')
    with pytest.raises(UnreachableError) as caught:
        run(["jobs", "--json"], timeout_s=0.2)
    assert caught.value.seen == "flux jobs: nothing within 0.2 s"


def test_a_failure_without_words_tells_its_code(flux: FakeFlux) -> None:
    """Something is said in any case."""
    flux.answer("cancel", code=9)
    with pytest.raises(BackendError) as caught:
        run(["cancel", "1"])
    assert caught.value.seen == "flux cancel: exit code 9"


@pytest.mark.parametrize(("said", "fits"), [("0.88.0", True), ("0.51.0", True), ("0.50.0", False)])
def test_a_flux_that_is_too_old(flux: FakeFlux, said: str, fits: bool) -> None:
    """Jobs bring files along, which the first versions could not."""
    flux.answer("version", f"commands:    \t\t{said}\n")
    if fits:
        assert check_version() == said.removesuffix(".0")
        return
    with pytest.raises(BackendError, match=r"this is Flux 0\.50, and milkweed needs 0\.51"):
        check_version()


def test_a_flux_that_is_something_else(flux: FakeFlux) -> None:
    """Another program of that name is told apart."""
    flux.answer("version", "Fluxbox\n")
    with pytest.raises(BackendError, match="version of Flux cannot be read"):
        check_version()


# Submitting and ending


def test_a_jobspec_is_read_from_stdin(flux: FakeFlux) -> None:
    """No argument has it, so no list of processes shows it."""
    flux.answer("job submit", "ƒ267QRnP\n")
    assert submit({"version": 1, "word": "ü"}) == 41422946304
    assert flux.read == {"version": 1, "word": "ü"}
    assert flux.calls[-1] == ["job", "submit"]


def test_a_number_that_cannot_be_read(flux: FakeFlux) -> None:
    """Nobody knows whether the job was taken, so that is what is said."""
    flux.answer("job submit", "thanks\n")
    with pytest.raises(UnreachableError, match="cannot be read"):
        submit({"version": 1})


@pytest.mark.parametrize("name", ["error-cancel-inactive", "error-cancel-unknown"])
def test_cancelling_what_is_over_is_fine(flux: FakeFlux, name: str) -> None:
    """A job that has ended, or was forgotten, need not be ended."""
    flux.answer("cancel", err=(CORPUS / f"{name}.txt").read_text(), code=1)
    cancel([7, 8], message="done")
    assert flux.called("cancel") == [["--message=done", "7"], ["--message=done", "8"]]


def test_cancelling_in_vain_is_told(flux: FakeFlux) -> None:
    """Whether nobody answered, or it was refused."""
    flux.answer(
        "cancel", err="flux-cancel: ERROR: f7: guests may only cancel their own jobs", code=1
    )
    with pytest.raises(BackendError, match="Flux refused"):
        cancel([7])
    flux.be_away()
    flux.answer("cancel", err=(CORPUS / "error-down-cancel.txt").read_text(), code=1)
    with pytest.raises(UnreachableError):
        cancel([7])


# Jobs


def test_jobs_of_given_numbers(flux: FakeFlux) -> None:
    """One that is forgotten does not hide the others."""
    unknown = (CORPUS / "error-jobs-unknown.txt").read_text()
    flux.then("jobs --json", f"case \"$*\" in *5*) echo '{unknown.strip()}' >&2; exit 1;; esac")
    flux.jobs(item(7))
    assert [row.job_id for row in load_jobs([7])] == [7]
    assert load_jobs([5]) == []
    assert [row.job_id for row in load_jobs([5, 7])] == [7]


def test_an_unreadable_list_is_no_empty_list(flux: FakeFlux) -> None:
    """What cannot be read says nothing about jobs."""
    flux.answer("jobs --json", "flux is busy")
    with pytest.raises(UnreachableError, match="what flux jobs printed cannot be read"):
        load_jobs()


def test_the_queue_is_read_once_for_all(flux: FakeFlux, clock: FakeClock) -> None:
    """Whoever looks at the same time looks at the same list."""
    queue = Queue("", clock)
    for _ in range(5):
        queue.rows(1.0)
    assert queue.queries == 1
    clock.advance(2.0)
    queue.rows(1.0)
    assert queue.queries == 2


def test_an_instance_has_one_queue_in_a_program() -> None:
    """Who waits for two jobs of one instance asks it once."""
    assert commands.queue("local:///a") is commands.queue("local:///a")
    assert commands.queue("local:///a") is not commands.queue("local:///b")


# Which instance


def test_one_is_asked_where_it_is(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an address that one, else the one around; nothing else of a job this program runs in is passed on."""
    monkeypatch.setenv("FLUX_JOB_ID", "f1")
    run(["jobs"])
    assert flux.environment["FLUX_URI"] == "local:///tmp/here/local-0"
    assert "FLUX_JOB_ID" not in flux.environment
    run(["jobs"], uri="ssh://far/tmp/there/local-0")
    assert flux.environment["FLUX_URI"] == "ssh://far/tmp/there/local-0"


def test_an_address_stays_true(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the instance around it is the broker's own; inside a proxy, which goes, it is the machine's behind it."""
    assert resolve() == f"local://{flux.home}/local-0"
    assert resolve("ssh://far/tmp/x") == "ssh://far/tmp/x"
    monkeypatch.setenv("FLUX_URI", "local:///tmp/flux-proxy-1/local")
    monkeypatch.setenv("FLUX_PROXY_REMOTE", "ann@far")
    assert resolve() == f"ssh://ann@far{flux.home}/local-0"


def test_a_proxy_is_used_while_it_is_there(flux: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """What leads to the same instance already need not be opened anew; another one is."""
    monkeypatch.setenv("FLUX_URI", "local:///tmp/flux-proxy-2/local")
    monkeypatch.setenv("FLUX_PROXY_REMOTE", "far")
    run(["jobs"], uri=resolve())
    assert flux.environment["FLUX_URI"] == "local:///tmp/flux-proxy-2/local"
    run(["jobs"], uri="ssh://other/tmp/x")
    assert flux.environment["FLUX_URI"] == "ssh://other/tmp/x"


def test_a_job_that_is_an_instance(flux: FakeFlux) -> None:
    """Flux itself says where it is; on this machine no ssh is needed."""
    flux.answer("uri", "ssh://far/tmp/flux-x/local-0\n")
    assert resolve("fABC") == "ssh://far/tmp/flux-x/local-0"
    assert flux.called("uri") == [["--", "fABC"]]
    flux.answer("uri", f"ssh://{os.uname().nodename}{flux.home}\n")
    assert resolve("fABD") == f"local://{flux.home}"


def test_a_job_that_is_no_instance(flux: FakeFlux) -> None:
    """The field is named, with Flux's words."""
    flux.answer("uri", err="flux-uri: ERROR: URI not found for job fABE\n", code=1)
    with pytest.raises(SpecError, match=r"flux\.uri: 'fABE' leads to no instance") as caught:
        resolve("fABE")
    assert "URI not found" in caught.value.seen
