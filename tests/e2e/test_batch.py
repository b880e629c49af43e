"""Batch mode: the client runs detached inside its own job."""

from __future__ import annotations

import pytest

from programs import Client

pytestmark = pytest.mark.e2e

TRAIN = """
    job = ProcessJob({"trainers": 2})
    state = job.state()
    print("inside", job.apply_id, len(values(state.trainers.spawn("a", Probe).pid.call().get())))
    sys.exit(7)
"""


def test_two_batch_jobs_of_one_folder_do_not_meet(client: Client) -> None:
    """Each client finds its own job, its exit code is the job's, its output is kept, and no file is left."""
    client.write(TRAIN, "train.py")
    out = client.run(
        """
        jobs = [ProcessJob({"trainers": 2}) for _ in range(2)]
        for job in jobs: job.apply(client_script="train.py")
        for job in jobs:
            status = job.wait(60)
            text = "\\n".join(line.text for line in job.logs("client"))
            print("exit", status.exit_code, f"inside {job.apply_id} 2" in text)
            job.kill()
        print("different", len({job.apply_id for job in jobs}), os.path.exists(".milkweed"))
        """
    )
    assert out.count("exit 7 True") == 2
    assert "False" in out.split("different")[1]


def test_a_client_leaves_the_record_of_its_job(client: Client) -> None:
    """It can be used again: by a client that is started anew, or by a program that the client starts."""
    client.write(
        """
        from milkweed.job import load_current_job
        ids = [load_current_job().state() and load_current_job().apply_id for _ in range(2)]
        print("same", ids[0] == ids[1] is not None)
        """,
        "twice.py",
    )
    out = client.run(
        """
        job = ProcessJob({"trainers": 1})
        job.apply(client_script="twice.py")
        print(job.wait(60).describe(), *(line.text for line in job.logs("client")))
        job.kill()
        """
    )
    assert "same True" in out


def test_kill_ends_the_client_too(client: Client) -> None:
    """kill() of a batch job ends its hosts and the client program."""
    client.write('open("pid", "w").write(str(os.getpid())); time.sleep(60)', "long.py")
    client.run(
        """
        job = ProcessJob({"trainers": 1})
        job.apply("long.py")
        while not (os.path.exists("pid") and open("pid").read()): time.sleep(0.02)
        pid = int(open("pid").read())
        assert job.active
        job.kill()
        assert not os.path.exists(f"/proc/{pid}"), "the client still runs"
        assert not job.active
        """
    )


def test_a_local_batch_job_has_a_process(client: Client) -> None:
    """LocalJob runs its client as a process that can be waited for."""
    client.write("state = LocalJob().state(); print(len(state)); sys.exit(3)", "train.py")
    client.run(
        """
        job = LocalJob()
        try:
            job.process
        except ValueError as error:
            print(error)
        job.apply("train.py one two")
        assert job.process.wait(60) == 3
        assert job.process.poll() == 3
        job.kill()
        """
    )


def test_a_batch_client_cannot_replace_the_job_it_runs_in(client: Client) -> None:
    """A client that declares something else than its own job gets an error, not a suicide."""
    client.write('ProcessJob({"trainers": 5}).state()', "other.py")
    out = client.run(
        """
        job = ProcessJob({"trainers": 1})
        job.apply("other.py")
        print(job.wait(60).exit_code)
        print("\\n".join(line.text for line in job.logs("client")))
        job.kill()
        """
    )
    assert "ChangedError" in out
    assert "meshes.trainers.hosts: 1 → 5" in out


def test_a_client_that_would_not_start_is_refused(client: Client) -> None:
    """A job that has hosts already does not swallow a batch client in silence."""
    client.write("pass", "train.py")
    out = client.run(
        """
        from milkweed.errors import ChangedError
        with ProcessJob({"trainers": 1}) as job:
            job.state(cached_path=None)
            try:
                job.apply("train.py")
            except ChangedError as error:
                print(error)
        """
    )
    assert "the client would not be started" in out
