"""The parts of a worker that need no engine: lines, logs, trees of processes, launchers, messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from milkweed.worker import children, procs, serve, wire
from milkweed.worker.children import ENGINE_BANNER


def test_lines_are_cut_whole() -> None:
    """Bytes in any portions become whole lines; the last one may lack its end."""
    seen: list[str] = []
    lines = children.Lines(seen.extend)
    for portion in (b"on", b"e\ntwo\nth", b"ree\n", b"\xff last"):
        lines.feed(portion)
    assert seen == ["one", "two", "three"]
    lines.end()
    assert seen[-1] == "\ufffd last"


def test_a_line_without_end_is_cut() -> None:
    """A line that never ends cannot fill the memory."""
    seen: list[str] = []
    lines = children.Lines(seen.extend)
    lines.feed(b"x" * (2 * children.MAX_LINE_BYTES + 5))
    assert [len(line) for line in seen] == [children.MAX_LINE_BYTES] * 2
    lines.end()
    assert len(seen[-1]) == 5


def test_a_host_log_is_private_and_remembers_its_end(tmp_path: Path) -> None:
    """The file is closed to others, lines carry their prefix, and only the last are remembered."""
    log = children.HostLog(str(tmp_path / "host.log"))
    log.write("[0] ", [f"line {number}" for number in range(100)])
    log.close()
    assert (tmp_path / "host.log").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "host.log").read_text().splitlines()[0] == "[0] line 0"
    assert len(log.tail) == children.TAIL_LINES
    assert log.tail[-1] == "[0] line 99"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "it exited with code 0"),
        (3, "it exited with code 3"),
        (-9, "it was ended by SIGKILL"),
        (-63, "it was ended by signal 63"),
    ],
)
def test_an_exit_is_told_in_words(code: int, words: str) -> None:
    """Exit codes are numbers, signals have names."""
    assert children.describe_exit(code) == words


def test_a_tree_has_children_before_parents() -> None:
    """All processes below one are found, the deepest first."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 30 & echo started; wait"], stdout=subprocess.PIPE, text=True
    )
    with shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "started\n"
        found = children.tree([shell.pid])
        assert found[-1] == shell.pid
        assert len(found) == 2
        children.send(found, children.signal.SIGKILL)
    children.send(found, children.signal.SIGKILL)  # gone already is fine


def test_a_stranger_is_not_a_launcher(tmp_path: Path) -> None:
    """A process whose environment does not name this run folder is refused."""
    with pytest.raises(ValueError, match="not a launcher"):
        procs.read_launcher(os.getpid(), tmp_path)


def test_a_launcher_passes_on_how_its_proc_ended(tmp_path: Path) -> None:
    """The launcher hands over its environment and folder, then exits as the proc did: by code or by signal."""
    run = tmp_path / "run"
    (run / wire.PROC_FOLDER).mkdir(parents=True)
    os.mkfifo(run / wire.FORK_FIFO)
    for code in (0, 3, -15):
        launcher = subprocess.Popen(
            ["/bin/sh", "-c", wire.LAUNCHER],
            env={wire.RUN_ENV: str(run), "PATH": os.environ["PATH"], "X": "1 2\n3"},
            cwd=tmp_path,
        )
        with launcher:
            pid = int((run / wire.FORK_FIFO).read_text())
            assert pid == launcher.pid
            found = procs.read_launcher(pid, run)
            assert found.env["X"] == "1 2\n3"
            assert found.cwd == str(tmp_path)
            found.finish(code)
            assert launcher.wait(5) == code
            found.close()
        assert not any((run / wire.PROC_FOLDER).iterdir())


def test_messages_survive_the_wire() -> None:
    """What is encoded is decoded; anything but an object is refused."""
    message = {"ev": "out", "lines": ["a\nb", "ü"]}
    assert wire.decode(wire.encode(message)) == message
    assert wire.encode(message).count(b"\n") == 1
    with pytest.raises(ValueError, match="JSON object"):
        wire.decode(b"[1]")


def test_a_procs_path_begins_with_its_clients_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's folders come first where they exist here, and nothing stands twice."""
    monkeypatch.setattr(sys, "path", ["", "/first", "/second"])
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own"
    own.mkdir()
    serve.extend_path(os.pathsep.join([str(own), "/nowhere", "/second"]))
    assert sys.path[0] == str(own)
    assert str(tmp_path) in sys.path
    assert "/nowhere" not in sys.path
    assert len(sys.path) == len(set(sys.path))


def test_the_bootstrap_module_is_the_engines_own() -> None:
    """Procs run what the engine's public command would run; this fails when the engine moves it."""
    code = (
        "from monarch.actor import default_bootstrap_cmd; from milkweed.worker import serve\n"
        "assert serve._bootstrap_module() in repr(default_bootstrap_cmd()), default_bootstrap_cmd()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_private_names_are_still_there() -> None:
    """The private names that are used exist: the engine's reload, its slicing, the interpreter's early exit."""
    code = (
        "import threading\n"
        "from monarch._rust_bindings.monarch_hyperactor.config import reload_config_from_env\n"
        "from monarch.actor import HostMesh\n"
        "assert callable(reload_config_from_env) and callable(HostMesh._new_with_shape)\n"
        "assert callable(threading._register_atexit)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_host_is_ready_when_its_engine_serves(tmp_path: Path) -> None:
    """The address is told only after the engine's own sign; this fails when the engine gives none any more."""
    code = (
        "import os, sys, time\n"
        "from milkweed.worker import serve\n"
        "from monarch._rust_bindings.monarch_hyperactor.bootstrap import start_worker_loop_forever\n"
        "with serve._Listening() as heard:\n"
        "    began_s = time.monotonic()\n"
        "    heard.wait(start_worker_loop_forever(sys.argv[1]), timeout_s=30)\n"
        "print(time.monotonic() - began_s < 25, os.path.exists(sys.argv[1].removeprefix('ipc://')), flush=True)\n"
        "os._exit(0)\n"
    )
    argv = [sys.executable, "-c", code, f"ipc://{tmp_path}/s"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert done.stderr.startswith(ENGINE_BANNER)
    assert done.stderr.endswith("\n")


def test_an_engine_that_cannot_serve_says_why(tmp_path: Path) -> None:
    """Where the address cannot be served, the reason comes at once and nothing is told to be ready."""
    code = (
        "import sys\n"
        "from milkweed.worker import serve\n"
        "host = {'transport': 'ipc', 'address': sys.argv[1]}\n"
        "serve.serve_host(host, 1)\n"
    )
    argv = [sys.executable, "-c", code, f"ipc://{tmp_path}/no/such/folder/s"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 1
    assert not done.stdout
    assert "No such file" in done.stderr
