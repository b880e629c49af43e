"""Instances whose nodes do not see the client's files: hosts are let in through Flux itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from flux.instance import Instance
from programs import Client

HIDE = """
mount --make-rprivate / && mount -t tmpfs none "$HIDDEN" && exec "$@"
"""


@pytest.fixture
def blind_instance(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Instance]:
    """An instance whose brokers see nothing of this test's folders."""
    home.mkdir(mode=0o700)
    monkeypatch.setenv("HIDDEN", str(home))
    script = tmp_path / "hide.sh"
    script.write_text(HIDE)
    made = Instance(2, wrap=["unshare", "--mount", "sh", str(script)])
    monkeypatch.setenv("FLUX_URI", made.uri)
    yield made
    made.stop()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to hide folders from brokers")
def test_hosts_that_see_no_files_of_ours(
    folder: Path, home: Path, blind_instance: Instance
) -> None:
    """State, calls, variables, logs, a second client and the end: all as with shared files."""
    client = Client(folder, home)
    out = client.run("""
        job = FluxJob({"w": 2}, env={"TOKEN": "s3cret"})
        state = job.state()
        actors = state.w.spawn_procs().spawn("p", Probe)
        print("token", values(actors.variable.call("TOKEN").get()))
        actors.say.call("hello from a host").get()
    """)
    assert "token ['s3cret', 's3cret']" in out
    [job] = blind_instance.jobs()
    seen = blind_instance.run("exec", f"--jobid={job['id']}", "ls", str(home), check=False)
    assert not seen.stdout
    again = client.run("""
        job = job_load()
        print(job.status().describe())
        state = job.state()
        print("again", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        print("logs", [line.text for line in job.logs("w/0")])
        job.kill()
    """)
    assert "2/2 hosts ready" in again
    assert "again 2" in again
    assert "hello from a host" in again
    assert not blind_instance.jobs()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to hide folders from brokers")
def test_a_batch_client_needs_shared_records(
    folder: Path, home: Path, blind_instance: Instance
) -> None:
    """It is not started, and the reason says what is missing."""
    client = Client(folder, home)
    client.write("print('never')", "train.py")
    out = client.run("""
        job = FluxJob({"w": 1})
        job.apply(client_script="train.py")
        print(job.wait(60).describe())
        job.kill()
    """)
    assert "exit code 78" in out
    assert "a batch client needs a shared MILKWEED_HOME" in out
