"""Commands of a real Slurm that fail for reasons of their own: nothing is known then, and nothing is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from programs import Client, finish, wait_until
from slurm.lab import Lab

FAULTY = """#!/bin/sh
case $(cat {fault} 2>/dev/null) in
  killed) kill -KILL $$ ;;
  broken) echo "squeue: symbol lookup error: undefined symbol: slurm_conf" >&2; exit 127 ;;
esac
exec {real} "$@"
"""


def make_faulty(folder: Path) -> tuple[Path, str]:
    """A squeue before the real one, which fails as a file says; that file, and the PATH."""
    fault, program = folder / "fault", folder / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(FAULTY.format(fault=fault, real=shutil.which("squeue")))
    program.chmod(0o755)
    return fault, f"{program.parent}:{os.environ['PATH']}"


def test_a_wait_goes_on_though_squeue_fails(client: Client, lab: Lab) -> None:
    """A job that nobody has on record is not ended because squeue was killed, or is broken for a while."""
    fault, path = make_faulty(client.folder)
    said = client.folder / "said"
    program = client.start(
        f"""
        sys.stderr = open({str(said)!r}, "w", buffering=1)
        job = SlurmJob(meshes={{"w": 1}}, slurm_args=["--hold"])
        state = job.state(cached_path=None)
        print("answers", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        job.kill()
        """,
        PATH=path,
    )
    wait_until(lambda: said.exists() and "pending" in said.read_text(), 60)
    for kind, words in (("killed", "ended by signal 9"), ("broken", "symbol lookup error")):
        fault.write_text(kind)
        wait_until(lambda words=words: f"unknown (squeue: {words}" in _plain(said), 60)
    [job] = lab.jobs()
    assert job.state == "PENDING"
    fault.unlink()
    lab.run("scontrol", "release", str(job.id))
    out, err = finish(program)
    assert "answers 1" in out, err + said.read_text()
    assert not lab.jobs()


@pytest.mark.once
def test_a_deadline_is_met_though_the_controller_is_frozen(client: Client, lab: Lab) -> None:
    """What hangs is waited for no longer than was said, by who asks for hosts and by who waits for them."""
    held = """
        from milkweed.errors import DeadlineError
        def make(seconds): return SlurmJob({"w": 1}, slurm_args=["--hold"], job_start_timeout=seconds)
        def late(act):
            began = time.monotonic()
            try:
                act()
            except DeadlineError as error:
                print("deadline", round(time.monotonic() - began), error.what, flush=True)
    """
    client.run(f"{held}    late(make(2).state)\n")
    lab.freeze_controller()
    out = client.run(f"""{held}
        late(make(6).state)
        late(lambda: job_load().wait(6))
        late(lambda: make(6).state("other.json"))
    """)
    took = [int(line.split()[1]) for line in out.splitlines() if line.startswith("deadline")]
    assert len(took) == 3, out
    assert all(6 <= seconds < 25 for seconds in took), out
    lab.thaw_controller()
    client.run("job_load('other.json').kill(); job_load().kill()")


def _plain(said: Path) -> str:
    """What was said, whichever command's name stands twice in it."""
    return said.read_text().replace("it was ", "").replace("squeue: squeue: ", "squeue: ")
