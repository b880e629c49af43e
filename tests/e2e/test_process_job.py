"""ProcessJob with the real engine: connecting, reconnecting, printing, environments, slices."""

from __future__ import annotations

import json

import pytest

from programs import Client, wait_until

pytestmark = pytest.mark.e2e


def test_actors_answer_from_every_host(client: Client) -> None:
    """Every host of every mesh answers, each from a process of its own, and kill leaves nothing."""
    out = client.run(
        """
        job = ProcessJob({"trainers": 2, "loaders": 1})
        state = job.state(cached_path=None)
        pids = values(state.trainers.spawn("a", Probe).pid.call().get())
        pids += values(state["loaders"].spawn("b", Probe).pid.call().get())
        print("pids", len(set(pids)), list(state), len(state), "loaders" in state)
        job.kill()
        print("alive", [pid for pid in pids if os.path.exists(f"/proc/{pid}")], job.active)
        """
    )
    assert "pids 3 ['trainers', 'loaders'] 2 True" in out
    assert "alive [] False" in out
    assert not client.home.exists()


def test_prints_of_actors_reach_the_terminal(client: Client) -> None:
    """What an actor prints is shown with mesh, host and rank; the same line of many hosts once."""
    out = client.run(
        """
        job = ProcessJob({"few": 2, "many": 5})
        state = job.state(cached_path=None)
        state.few.spawn("a", Probe).say.call("hello").get()
        state.many.spawn("a", Probe).say.call("all the same").get()
        """
    )
    assert "[few/0 r0] hello" in out
    assert "[few/1 r1] hello" in out
    assert "[many: 5 hosts] all the same" in out


def test_prints_can_be_turned_off(client: Client) -> None:
    """With stream_logs off the lines are in the log only."""
    out = client.run(
        """
        job = ProcessJob({"few": 1}, stream_logs=False)
        job.state(cached_path=None).few.spawn("a", Probe).say.call("quiet please").get()
        time.sleep(0.2)
        print("log", [line.text for line in job.logs("few/0") if "quiet" in line.text])
        """
    )
    assert out.count("quiet please") == 1
    assert "log ['[0] quiet please']" in out


def test_a_second_program_reconnects(client: Client) -> None:
    """A second program gets the same hosts, the first one's procs are gone, and kill removes the file."""
    code = """
        job = ProcessJob({"hosts": 2})
        pids = values(job.state().hosts.spawn("a", Probe).pid.call().get())
        print("id", job.apply_id)
        keeper = job.status()
    """
    first = client.run(code)
    second = client.run(code)
    pick = [line for line in first.splitlines() if line.startswith("id")]
    assert pick == [line for line in second.splitlines() if line.startswith("id")]
    record = json.loads((client.folder / ".milkweed/job.json").read_text())
    assert record["phase"] == "submitted"
    out = client.run("job = job_load(); job.kill(); print('left', os.path.exists('.milkweed'))")
    assert "left False" in out


def test_a_changed_declaration_replaces_local_hosts(client: Client) -> None:
    """Local hosts are disposable: a changed environment makes new ones, without a word needed."""
    client.run('ProcessJob({"hosts": 1}, env={"A": "1"}).state()')
    out = client.run(
        """
        job = ProcessJob({"hosts": 1}, env={"A": "2"})
        print(job.plan().render())
        print("A", values(job.state().hosts.spawn("a", Probe).variable.call("A").get()))
        job.kill()
        """
    )
    assert "replace: job 'process' on process" in out
    assert "(value hidden)" in out
    assert "A ['2']" in out


def test_environment_per_mesh(client: Client) -> None:
    """Each mesh has its own environment."""
    out = client.run(
        """
        job = ProcessJob({"a": 1, "b": 1}, env={"a": {"X": "one"}})
        state = job.state(cached_path=None)
        print([values(state[n].spawn("p", Probe).variable.call("X").get()) for n in "ab"])
        """
    )
    assert "[['one'], [None]]" in out


def test_slices_can_spawn_too(client: Client) -> None:
    """A slice of a mesh is still one of ours; this fails when the engine's way of slicing moves."""
    out = client.run(
        """
        from milkweed.engine import Hosts
        job = ProcessJob({"hosts": 3})
        hosts = job.state(cached_path=None).hosts
        part = hosts.slice(hosts=slice(1, 3))
        procs = part.spawn_procs({"gpus": 2})
        print(type(part) is Hosts, part.sizes, len(values(procs.spawn("a", Probe).pid.call().get())))
        part.spawn("b", Probe).say.call("from a slice").get()
        """
    )
    assert "True {'hosts': 2} 4" in out
    assert "[hosts/1 r0] from a slice" in out
    assert "[hosts/2 r1] from a slice" in out


def test_two_clients_at_once_share_one_allocation(client: Client) -> None:
    """Two programs that start together end up on the same hosts."""
    code = 'job = ProcessJob({"hosts": 2}); job.state(); print("id", job.apply_id)'
    programs = [client.start(code) for _ in range(2)]
    ids = {
        line
        for program in programs
        for line in program.communicate(timeout=60)[0].splitlines()
        if line.startswith("id")
    }
    assert len(ids) == 1


def test_modules_beside_the_script_can_be_imported(client: Client) -> None:
    """An actor class from a module beside the script is found by procs, whatever the working folder."""
    (client.folder / "beside.py").write_text(
        "from milkweed.actor import Actor, endpoint\n"
        "class Beside(Actor):\n"
        "    @endpoint\n"
        "    def name(self): return __name__\n"
    )
    client.run(
        """
        os.chdir("/")
        import beside
        job = ProcessJob({"hosts": 1})
        hosts = job.state(cached_path=None).hosts
        assert values(hosts.spawn("b", beside.Beside).name.call().get()) == ["beside"]
        """
    )


def test_hosts_of_apply_are_kept_once_a_path_is_named(client: Client) -> None:
    """apply() alone lives with its program; state() moves the record to its path, and the hosts stay."""
    out = client.run(
        """
        from milkweed.worker import lease
        job = ProcessJob({"hosts": 1})
        job.apply()
        first = job.apply_id
        job.apply()
        assert job.active and job.apply_id == first and not os.path.exists(".milkweed")
        assert job.plan().action == "nothing"
        job.state()
        print("id", job.apply_id, os.path.exists(".milkweed/job.json"))
        """
    )
    assert "True" in out.split("id ")[1]
    again = client.run('job = ProcessJob({"hosts": 1}); job.state(); print("id", job.apply_id)')
    assert out.split("id ")[1].split()[0] == again.split("id ")[1].split()[0]
    client.run(
        """
        job = job_load()
        os.rename(".milkweed/job.json", "elsewhere.json")
        job = job_load("elsewhere.json")
        job.state()
        assert os.path.exists("elsewhere.json") and not os.path.exists(".milkweed/job.json")
        job.kill()
        assert not os.path.exists("elsewhere.json")
        """
    )


def test_hosts_of_apply_end_with_their_program(client: Client) -> None:
    """apply() without a path: nothing outlives the program."""
    client.run('job = ProcessJob({"hosts": 1}); job.apply(); assert job.wait(20).ready')
    wait_until(lambda: not client.home.exists())


def test_the_engine_ends_before_the_interpreter_does(client: Client) -> None:
    """On a busy machine that takes longer than the engine would wait; its threads must not outlive the rest."""
    out = client.run("""
        import atexit
        import monarch.actor
        shut_down = monarch.actor.shutdown_context
        def told(**more):
            print("the engine ends", flush=True)
            return shut_down(**more)
        monarch.actor.shutdown_context = told
        atexit.register(print, "the interpreter ends", flush=True)
        state = ProcessJob({"w": 1}).state(cached_path=None)
        state.w.spawn("p", Probe).pid.call().get()
    """)
    assert out.split("\n")[:2] == ["the engine ends", "the interpreter ends"]
