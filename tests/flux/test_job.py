"""FluxJob as people use it: programs inside an instance and outside of it, hosts on its brokers."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flux.instance import Instance
from programs import Client, wait_until

USE = """
    job = FluxJob(meshes={"w": 2}%s)
    state = job.state()
    print("pids", sorted(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
    print("id", job.apply_id)
"""


def test_actors_on_every_host_of_two_meshes(client: Client, instance: Instance) -> None:
    """A declaration, its state, and actors on every host; all brokers may be on one machine."""
    out = client.run("""
        job = FluxJob({"trainers": 2, "dataloaders": 1}, time_limit="1h", job_name="demo")
        state = job.state()
        trainers = state.trainers.spawn_procs(per_host={"gpus": 2}).spawn("t", Probe)
        loaders = state.dataloaders.spawn_procs().spawn("d", Probe)
        print(len(set(values(trainers.pid.call().get()))), len(values(loaders.pid.call().get())))
        print("tasks", sorted(set(values(trainers.variable.call("FLUX_TASK_RANK").get()))))
        print("time left", job.status().details["time_left_s"])
        job.kill()
    """)
    assert "4 1" in out
    assert "tasks ['0', '1']" in out
    assert "time left 35" in out
    assert not instance.jobs()


def test_a_second_program_uses_the_same_hosts(client: Client, instance: Instance) -> None:
    """The second run connects to the allocation of the first, and kill() ends it and its record."""
    first = client.run(USE % "")
    assert len(instance.jobs()) == 1
    second = client.run(USE % "" + "    job.kill()\n")
    ids = [line for line in (first + second).splitlines() if line.startswith("id ")]
    assert ids[0] == ids[1]
    assert not instance.jobs()
    assert not client.home.exists()


def test_without_a_record_hosts_end_with_their_program(client: Client, instance: Instance) -> None:
    """The keepers end Flux's job when the connection of their only client ends."""
    client.run("""
        job = FluxJob({"w": 2})
        print(len(job.state(cached_path=None).w))
    """)
    wait_until(lambda: not instance.jobs())


def test_meshes_of_two_shapes(client: Client, instance: Instance) -> None:
    """Another shape is another component, which is a job of its own; one name stands for both."""
    out = client.run("""
        from milkweed.spec import Resources
        job = FluxJob({"trainers": 2, "loaders": 1}, resources={"loaders": Resources(cpus=2)})
        state = job.state()
        t = state.trainers.spawn_procs().spawn("t", Probe)
        l = state.loaders.spawn_procs().spawn("l", Probe)
        print("hosts", len(values(t.pid.call().get())), len(values(l.pid.call().get())))
        print(job.status().describe())
    """)
    assert "hosts 2 1" in out
    assert "3/3 hosts ready" in out
    assert sorted(job["nnodes"] for job in instance.jobs()) == [1, 2]
    client.run("job_load().kill()")
    assert not instance.jobs()


@pytest.mark.parametrize("code", [0, 7])
def test_batch_mode(client: Client, instance: Instance, code: int) -> None:
    """The client runs in the allocation, of two components here; its exit code is the job's, in Flux too."""
    client.write(
        f"""
        from milkweed.job import load_current_job
        job = load_current_job()
        state = job.state()
        print("inside", len(values(state.w.spawn_procs().spawn("p", Probe).pid.call().get())))
        sys.exit({code})
        """,
        "train.py",
    )
    out = client.run("""
        from milkweed.spec import Resources
        job = FluxJob({"w": 2, "v": 1}, resources={"v": Resources(cpus=2)})
        job.apply(client_script="train.py")
        status = job.wait(60)
        print(status.describe(), status.exit_code)
        print([line.text for line in job.logs("client")])
        job.kill()
    """)
    assert f"exit code {code}" in out
    assert "inside 2" in out
    ended = max(instance.jobs(ended=True), key=lambda job: float(job["t_submit"]))
    assert ended["returncode"] == code
    assert ended["result"] == ("FAILED" if code else "COMPLETED")


def test_a_job_is_found_with_all_files_gone(client: Client, instance: Instance) -> None:
    """Its name in Flux carries the id: the command line lists it and ends it."""
    client.run("job = FluxJob({'w': 1}, job_name='lost'); job.state()")
    [job] = instance.jobs()
    assert job["name"].startswith("lost:milkweed:1:")
    subprocess.run(["rm", "-r", str(client.home), str(client.folder / ".milkweed")], check=True)
    listed = cli(client, "ls", "--on", "flux")
    assert "lost" in listed
    assert "record lost" in listed
    assert "killed lost" in cli(client, "kill", "lost", "--on", "flux")
    assert not instance.jobs()


def cli(client: Client, *words: str) -> str:
    """What a command of milkweed prints."""
    command = [sys.executable, "-m", "milkweed", *words]
    done = subprocess.run(
        command, cwd=client.folder, env=client.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_no_secret_is_shown(client: Client, instance: Instance) -> None:
    """Neither what Flux keeps of the job, nor argv of any process, holds a key or a variable's value."""
    client.run("job = FluxJob({'w': 2}, env={'TOKEN': 's3cret-value'}); job.state()")
    [job] = instance.jobs()
    shown = "".join(
        instance.run("job", "info", str(job["id"]), key).stdout for key in ("jobspec", "J", "R")
    )
    shown += instance.run("job", "eventlog", "-p", "output", str(job["id"])).stdout
    shown += subprocess.run(
        ["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True
    ).stdout
    client.run("job_load().kill()")
    assert "milkweed" in shown
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown


def test_nothing_is_left_on_nodes(client: Client, instance: Instance) -> None:
    """After kill() no process of the job runs, and its run folders are gone."""
    out = client.run(USE % "" + "    job.kill()\n")
    [line] = [line for line in out.splitlines() if line.startswith("pids")]
    for pid in line.removeprefix("pids ").strip("[]").split(","):
        assert not os.path.exists(f"/proc/{pid.strip()}")
    [id_line] = [line for line in out.splitlines() if line.startswith("id ")]
    short = id_line.removeprefix("id ").replace("-", "")[:16]
    runs = f"/tmp/milkweed-{os.getuid()}"  # noqa: S108  where keepers have their folders
    assert not os.path.exists(runs) or not any(short in name for name in os.listdir(runs))


# From elsewhere


def test_from_outside_by_its_address(client: Client, instance: Instance) -> None:
    """A program that runs in no instance names one, and every later program finds the job there by itself."""
    del client.env["FLUX_URI"]
    client.run(USE % f", uri={instance.uri!r}")
    assert len(instance.jobs()) == 1
    out = client.run("job = job_load(); print(job.status().describe()); job.kill()")
    assert "2/2 hosts ready" in out
    assert not instance.jobs()


def test_through_a_proxy(client: Client, instance: Instance) -> None:
    """Inside `flux proxy` a job is asked for, and it is found when that proxy is gone."""
    path = client.write(USE % "")
    proxied = {key: value for key, value in client.env.items() if key != "FLUX_URI"}
    command = ["flux", "proxy", instance.uri, shlex.join([sys.executable, str(path)])]
    done = subprocess.run(
        command, cwd=client.folder, env=proxied, capture_output=True, text=True, check=False
    )
    assert "pids" in done.stdout, done.stderr
    del client.env["FLUX_URI"]
    out = client.run("job = job_load(); print(job.status().describe()); job.kill()")
    assert "2/2 hosts ready" in out
    assert not instance.jobs()


@pytest.fixture
def nested(client: Client, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An instance of two brokers that is itself a job: its id."""
    # The tests' own commands: this machine cannot be reached by ssh. Clients find that out for themselves.
    monkeypatch.setenv("FLUX_URI_RESOLVE_LOCAL", "t")
    job = instance.run("alloc", "--bg", "-N2", "--exclusive").stdout.split()[-1]
    instance.run("uri", "--wait", job)
    yield job
    instance.run("cancel", job)
    wait_until(lambda: not instance.jobs())


def test_in_a_nested_instance(client: Client, instance: Instance, nested: str) -> None:
    """An instance that is a job is named by its id; hosts are its brokers, and its parent has no job of ours."""
    out = client.run(USE % f", uri={nested!r}" + "    print(job.status().describe())\n")
    assert "2/2 hosts ready" in out
    [outer] = instance.jobs()
    assert "milkweed" not in outer["name"]
    inner = instance.run("proxy", nested, "flux jobs -n -o {name}").stdout
    assert ":milkweed:1:" in inner
    client.run("job_load().kill()")
    assert not instance.run("proxy", nested, "flux jobs -n -o {name}").stdout.strip()


def test_inside_a_nested_instance(client: Client, instance: Instance, nested: str) -> None:
    """A program inside the nested instance gets hosts of that, without being told."""
    uri = instance.run("uri", "--local", nested).stdout.strip()
    client.env["FLUX_URI"] = uri
    client.run(USE % "" + "    job.kill()\n")
    client.env["FLUX_URI"] = instance.uri
    [outer] = instance.jobs()
    assert "milkweed" not in outer["name"]


def test_an_instance_that_is_not_there(client: Client, instance: Instance) -> None:
    """A job that is no instance, or is not known, is no place for a job."""
    out = client.run("FluxJob({'w': 1}, uri='f4fr').apply()", code_expected=1)
    assert "flux.uri: 'f4fr' leads to no instance" in out


def test_without_an_instance(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, that is said at once, with what to do, and nothing is left to be waited for."""
    client.env.pop("FLUX_URI", None)
    out = client.run("FluxJob({'w': 1}).state()", code_expected=1)
    assert "there is no Flux instance here" in out
    assert "flux alloc" in out
    assert not client.home.exists()
