"""The Flux backend with Flux's command: checking, asking, finding, ending; and what is left when it fails."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from milkweed import registry
from milkweed.backends.base import Request
from milkweed.backends.flux import backend as module
from milkweed.backends.flux.backend import FluxBackend, make_handle
from milkweed.backends.noted import SETTLE_S
from milkweed.backends.programs import within
from milkweed.errors import BackendError, DeadlineError, SpecError, UnreachableError
from milkweed.job import lifecycle
from milkweed.spec import JobSpec, MeshSpec, Resources
from milkweed.state import Record, StateFile
from milkweed.status import HostState, Liveness
from unit.flux_fake import APPLY_ID, CORPUS, FakeFlux, item
from unit.slurm_jobs import left_behind

W = MeshSpec(name="w", hosts=2, env={"WORD": "s3cret"})
V = MeshSpec(name="v", hosts=1, resources=Resources(cpus=4))


def make_spec(*meshes: MeshSpec, **options: Any) -> JobSpec:
    return JobSpec(name="demo", backend="flux", meshes=meshes or (W,), options=options)


def create(spec: JobSpec | None = None, **more: Any) -> Record:
    """Ask for an allocation, as a job does, and record it."""
    wish = lifecycle.Wish(spec=spec or make_spec(), backend=quiet(), apply_id=APPLY_ID, **more)
    return lifecycle.create(wish, StateFile("job.json"))[0]


def quiet() -> FluxBackend:
    """A backend that does not sleep."""
    return FluxBackend(sleep=lambda _seconds: None)


def handle_of(flux: FakeFlux, *jobs: int) -> dict[str, Any]:
    return dict(make_handle(APPLY_ID, jobs=jobs or (7,), uri=f"local://{flux.home}/local-0"))


@pytest.fixture
def instance(flux: FakeFlux, folder: Path) -> FakeFlux:
    """An instance whose nodes are this machine; a submission is number 7, then 8."""
    count = (
        'count=$(($(cat "$home/count" 2>/dev/null || echo 6) + 1)); echo "$count" >"$home/count"'
    )
    flux.answer("job submit")
    flux.then("job submit", f'{count}; cp "$home/stdin" "$home/stdin.$count"; echo "$count"')
    return flux


# Checking


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (make_spec(queue="nosuch"), "there is no queue 'nosuch'"),
        (make_spec(MeshSpec(name="w", hosts=5)), "5 hosts, but the instance has 4 nodes"),
        (make_spec(cpus_per_host=99), "99 cores"),
        (make_spec(gpus_per_host=1), "1 GPUs"),
        (make_spec(properties=["h100"]), "no node is h100"),
        (make_spec(time_limit="soon"), "flux.time_limit"),
        (make_spec(monarch_port=70000), "flux.monarch_port: 70000"),
    ],
)
def test_what_the_instance_lacks_is_refused_before_asking(
    instance: FakeFlux, home: Path, spec: JobSpec, what: str
) -> None:
    """What could never run is told at once, and nothing was submitted or written."""
    with pytest.raises(SpecError) as caught:
        create(spec)
    assert what in caught.value.what
    assert instance.called("job") == []
    assert left_behind(home) == []


def test_an_instance_that_does_not_answer_refuses_nothing(instance: FakeFlux) -> None:
    """What nobody knows to be wrong is not refused: Flux decides when it is back."""
    instance.be_away()
    FluxBackend().validate(make_spec(queue="nosuch"))


def test_an_older_flux_lists_its_queues_otherwise(instance: FakeFlux) -> None:
    """A list that cannot be had is none; Flux itself refuses a queue that it does not have."""
    instance.answer("queue list", err="flux-queue: invalid choice: 'list'", code=2)
    FluxBackend().validate(make_spec())


# Asking


def test_a_submission(instance: FakeFlux, home: Path) -> None:
    """One job, which carries the mark; what is private is in files of the owner alone, and not in the jobspec."""
    record = create()
    assert record.handle == handle_of(instance, 7)
    text = json.dumps(instance.read)
    assert f"demo:milkweed:1:{APPLY_ID}:0:0" in text
    assert "s3cret" not in text
    assert "PRIVATE KEY" not in text
    [path] = home.rglob("part-0.0.json")
    told = json.loads(path.read_text())
    assert told["envs"][told["hosts"][1]["mesh"]]["WORD"] == "s3cret"
    assert told["uri"] == f"local://{instance.home}/local-0"
    for path in home.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert not list(home.rglob("asked-for"))


def test_two_components(instance: FakeFlux) -> None:
    """The first is asked for last, so that a batch client can end the others."""
    record = create(make_spec(W, V), client_script=("python", "train.py"))
    assert record.handle is not None
    assert record.handle["jobs"] == [7, 8]
    first, last = (json.loads((instance.home / f"stdin.{n}").read_text()) for n in (7, 8))
    assert first["resources"][0]["with"][0]["with"][0]["count"] == 4
    script = last["tasks"][0]["command"][2]
    assert "train.py" in script
    assert "flux cancel 7" in script
    assert "train.py" not in json.dumps(first)


def test_a_refusal_leaves_nothing(instance: FakeFlux, folder: Path, home: Path) -> None:
    """Flux's own words are told, and no file or record is left."""
    words = (CORPUS / "error-submit-disabled.txt").read_text()
    instance.then("job submit", "true")
    instance.answer("job submit", err=words, code=1)
    with pytest.raises(BackendError, match="Flux refused") as caught:
        create()
    assert "maintenance" in caught.value.seen
    assert left_behind(home) == []
    assert not (folder / "job.json").exists()


def test_the_second_component_is_refused(instance: FakeFlux, home: Path) -> None:
    """The first was taken: it is found by its mark, and cancelled."""
    instance.then(
        "job submit", '[ -f "$home/once" ] && { echo no >&2; exit 1; }; touch "$home/once"; echo 7'
    )
    instance.then("cancel", 'echo \'{"jobs": []}\' >"$home/answers/jobs --json@/out"')
    instance.jobs(item(7, component=1))
    with pytest.raises(BackendError, match="Flux refused"):
        create(make_spec(W, V))
    assert instance.called("cancel") == [["--message=it was killed", "7"]]
    assert left_behind(home) == []


def test_nobody_knows_whether_it_was_taken(instance: FakeFlux, folder: Path, home: Path) -> None:
    """The intent stays, and the next look finds the job when it came after all."""
    instance.then("job submit", 'echo "flux-job: flux_open: Connection reset by peer" >&2; exit 1')
    with pytest.raises(UnreachableError):
        create()
    assert list(home.rglob("asked-for"))
    assert quiet().find(APPLY_ID) is None
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        instance.jobs(item(9))

    found = FluxBackend(sleep=sleep).find(APPLY_ID)
    assert found is not None
    assert found["jobs"] == [9]
    assert slept == [SETTLE_S]


def test_without_an_instance(
    instance: FakeFlux, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to wait for: that is said, and nothing is left."""
    instance.be_away()
    monkeypatch.delenv("FLUX_URI")
    with pytest.raises(BackendError, match="there is no Flux instance here") as caught:
        create()
    assert not isinstance(caught.value, UnreachableError)
    assert "flux alloc" in caught.value.hint
    assert left_behind(home) == []


# Looking


@pytest.mark.parametrize(
    ("state", "liveness"),
    [
        ("DEPEND", Liveness.PENDING),
        ("SCHED", Liveness.PENDING),
        ("RUN", Liveness.RUNNING),
        ("CLEANUP", Liveness.UNKNOWN),
        ("INACTIVE", Liveness.ENDED),
    ],
)
def test_a_glance(instance: FakeFlux, state: str, liveness: Liveness) -> None:
    """What Flux says of the job is what is known of the allocation."""
    instance.jobs(item(7, state, result="COMPLETED" if state == "INACTIVE" else ""))
    assert FluxBackend().glance(handle_of(instance)).liveness is liveness


def test_an_instance_that_is_away_is_unknown(instance: FakeFlux) -> None:
    """Nobody answered: nothing is known, whatever was read before, and looking raises nothing."""
    backend, handle = FluxBackend(), handle_of(instance)
    instance.jobs(item(7))
    assert backend.glance(handle, fresh=True).liveness is Liveness.RUNNING
    instance.be_away()
    module.commands.queue(handle["uri"]).wake()
    status = backend.poll(handle)
    assert status.liveness is Liveness.UNKNOWN
    assert "was not found" in status.reason
    with pytest.raises(UnreachableError):
        backend.cancel(handle)


def test_a_second_look_asks_anew(instance: FakeFlux) -> None:
    """What was read a moment ago agrees with nothing."""
    backend, handle = FluxBackend(), handle_of(instance)
    instance.jobs(item(7))
    assert backend.poll(handle).liveness is Liveness.RUNNING
    instance.be_away()
    assert backend.look_again(handle).liveness is Liveness.UNKNOWN


def test_a_job_that_ended_long_ago(instance: FakeFlux) -> None:
    """It is not in the list of late; by its number Flux still knows how it ended."""
    old = json.dumps(item(7, "INACTIVE", result="FAILED", waitstatus=768, returncode=3))
    instance.then("jobs --json", f"case \"$*\" in *7*) echo '{old}'; exit 0;; esac")
    status = FluxBackend().glance(handle_of(instance))
    assert (status.liveness, status.exit_code) == (Liveness.ENDED, 3)


def test_jobs_of_others_are_not_ours(instance: FakeFlux) -> None:
    """Without the mark a job is somebody else's, whatever its name begins with."""
    instance.jobs(item(3, name="demo"), item(7), item(8, "INACTIVE", name="x:milkweed:1:abc:0:0"))
    assert FluxBackend().allocations() == {APPLY_ID: "demo"}
    found = quiet().find(APPLY_ID)
    assert found is not None
    assert found["jobs"] == [7]


def test_on_another_node_of_the_instance(
    instance: FakeFlux, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address is one of the first node: elsewhere the instance around is asked, if it has the jobs."""
    down = (CORPUS / "error-down-jobs.txt").read_text().strip()
    instance.then(
        "jobs --json",
        f'[ "$FLUX_URI" = local:///tmp/here/local-0 ] || {{ echo "{down}" >&2; exit 1; }}',
    )
    backend, handle = FluxBackend(), handle_of(instance)
    assert backend.glance(handle).liveness is Liveness.UNKNOWN
    instance.jobs(item(7))
    module.commands.forget()
    assert backend.glance(handle, fresh=True).liveness is Liveness.RUNNING
    instance.then("cancel", 'echo \'{"jobs": []}\' >"$home/answers/jobs --json@/out"')
    quiet_backend = quiet()
    quiet_backend.cancel(handle)
    assert instance.called("cancel") == [["--message=it was killed", "7"]]


def test_hosts_that_do_not_answer(instance: FakeFlux) -> None:
    """Each is named with what is known of it; a host that the job has not is not known."""
    create()
    instance.jobs(item(7, nodelist="localhost,localhost"))
    module.commands.queue(f"local://{instance.home}/local-0").wake()
    backend, handle = FluxBackend(), handle_of(instance)
    status = backend.poll(handle)
    assert [host.host for host in status.hosts] == ["w/0", "w/1"]
    assert {host.state for host in status.hosts} == {HostState.STARTING}
    assert backend.explain(handle, "w/1").state is HostState.STARTING
    assert backend.explain(handle, "x/9").state is HostState.UNKNOWN


def test_where_logs_are(instance: FakeFlux, home: Path) -> None:
    """Files are read without Flux, and the batch client's is one of them."""
    create()
    folder = registry.folder_of(APPLY_ID) / "logs"
    (folder / "w.0.log").write_text("one\n")
    (folder / "client.log").write_text("two\n")
    instance.be_away()
    backend, handle = FluxBackend(), handle_of(instance)
    assert [line.text for line in backend.logs(handle, "w/0", follow=False)] == ["one"]
    assert [line.text for line in backend.logs(handle, "client", follow=False)] == ["two"]
    with pytest.raises(BackendError, match="there is no host 'x'"):
        list(backend.logs(handle, "x", follow=False))


# Ending


def test_cancelling_ends_every_component(instance: FakeFlux) -> None:
    """Each job is cancelled once, and what Flux is still ending is waited for."""
    instance.jobs(item(7), item(8, component=1))
    states = iter([[item(7, "CLEANUP"), item(8, "CLEANUP", component=1)], []])
    backend = FluxBackend(sleep=lambda _seconds: instance.jobs(*next(states)))
    backend.cancel(handle_of(instance, 7, 8))
    assert instance.called("cancel") == [["--message=it was killed", str(job)] for job in (7, 8)]


def test_cancelling_what_is_over(instance: FakeFlux) -> None:
    """Nothing is asked of Flux but whether it is over."""
    instance.jobs(item(7, "INACTIVE", result="COMPLETED"))
    quiet().cancel(handle_of(instance))
    assert instance.called("cancel") == []


def test_a_job_that_does_not_end(instance: FakeFlux, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while that is said, and nothing is forgotten."""
    monkeypatch.setattr(module, "CANCEL_TIMEOUT_S", -1.0)
    instance.jobs(item(7))
    with pytest.raises(DeadlineError, match="has not ended it yet"):
        quiet().cancel(handle_of(instance))


def test_an_end_is_waited_for_no_longer_than_there_is_time(instance: FakeFlux) -> None:
    """The end of a program has seconds: it is asked for at least, and nothing is forgotten."""
    instance.jobs(item(7))
    with within(time.monotonic()), pytest.raises(DeadlineError, match="not ended it yet"):
        FluxBackend(sleep=lambda _s: pytest.fail("it goes on waiting")).cancel(handle_of(instance))
    assert instance.called("cancel") == [["--message=it was killed", "7"]]


def test_sizes_stay(instance: FakeFlux) -> None:
    """A job of Flux keeps its nodes, so another size is another allocation, and the plan says so."""
    assert FluxBackend.capabilities.resize is False
    assert FluxBackend.capabilities.batch is True
    assert not hasattr(FluxBackend, "resize")


def test_a_request_keeps_the_batch_client_alive(instance: FakeFlux, home: Path) -> None:
    """Hosts of a batch job stay until it ends, whether it is recorded or not."""
    spec = make_spec()
    request = Request(spec=spec, apply_id=APPLY_ID, keep=False, client_script=("true",))
    registry.folder_of(APPLY_ID).mkdir(parents=True, mode=0o700)
    FluxBackend().submit(request)
    [path] = home.rglob("part-0.0.json")
    assert json.loads(path.read_text())["keep"] is True
