"""The programs that a scheduler starts by `python -c`, in whatever folder its job begins."""

from __future__ import annotations

import functools
import io
import json
import os
import shlex
import subprocess
import sys
import zipfile
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends import launch, process
from milkweed.backends.kubernetes import batch, start
from milkweed.backends.packing import pack_worker
from milkweed.job.command import make_client_command
from milkweed.worker import enrol, wire

PLANTED = "import os, sys\nopen(os.environ['TRACES'] + '/' + __name__, 'w').close()\n"
WORKER = b64encode(pack_worker()).decode()
INVITATION = json.dumps(
    {
        "source": "/nowhere",
        "worker": WORKER,
        "index_env": "NO_SUCH_VARIABLE",
    }
)


@functools.cache
def imported_before() -> frozenset[str]:
    """The modules that Python itself imports when it starts."""
    command = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return frozenset(said.split())


def run_where_others_write(
    program: str, tmp: Path, said: str = "", path: str = ":/no/such"
) -> tuple[list[str], str]:
    """Run a program where every module of Python's own has a namesake; which of them ran, and what it said.

    An empty word in the path, as a shell's start-up file leaves it, is the folder, too. What Python has imported
    before a program begins nobody can keep from it.
    """
    folder, traces = tmp / "here", tmp / "traces"
    for each in (folder, traces):
        each.mkdir()
    for name in sys.stdlib_module_names - imported_before():
        (folder / f"{name}.py").write_text(PLANTED)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    told = {"TRACES": str(traces), "TMPDIR": str(tmp), "MILKWEED_POD": "workers-2"}
    done = subprocess.run(
        [sys.executable, "-c", program, "0022"],
        input=said,
        cwd=folder,
        env={**kept, "PYTHONPATH": path, **told},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return sorted(path.name for path in traces.iterdir()), done.stderr


def test_a_keeper_runs_nothing_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    """A folder that a whole group may write to gives nobody else a way into the job."""
    ran, said = run_where_others_write(launch.LOADER, tmp_path, INVITATION)
    assert ran == []
    assert "KeyError: 'NO_SUCH_VARIABLE'" in said


def test_a_keeper_of_this_machine_runs_nothing_of_the_folder_it_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds where no scheduler starts it."""
    monkeypatch.setenv("WORKER_PATH", str(Path(launch.__file__).parents[2]))
    program = process._KEEPER.replace('["PYTHONPATH"]', '["WORKER_PATH"]')
    ran, said = run_where_others_write(program, tmp_path)
    assert ran == []
    assert "No such file or directory: '0022'" in said


def test_a_visit_runs_nothing_of_the_folder_it_is_started_in(tmp_path: Path) -> None:
    """It begins in the folder of the program that visits, which may be any."""
    ran, said = run_where_others_write(enrol.BRIDGE, tmp_path)
    assert ran == []
    assert "JSONDecodeError" in said


def test_a_keeper_in_a_pod_runs_nothing_of_its_images_folder(tmp_path: Path) -> None:
    """What is mounted there may be written by other pods."""
    (tmp_path / "worker.zip").write_bytes(pack_worker())
    (tmp_path / "invitation.json").write_text("{}")
    program = start.LOADER.replace(start.MOUNT, str(tmp_path)).replace(
        start.RUN_MOUNT, str(tmp_path)
    )
    ran, said = run_where_others_write(program, tmp_path)
    assert ran == []
    assert "KeyError: 'index_env'" in said


def test_what_runs_a_client_in_a_pod_runs_nothing_of_its_folder(tmp_path: Path) -> None:
    """The client itself is started as it was said; what prepares it is not the client's."""
    program = batch.RUN.replace(batch.CLIENT_MOUNT, str(tmp_path))
    ran, said = run_where_others_write(program, tmp_path)
    assert ran == []
    assert "client.json" in said


@pytest.mark.parametrize("path", ["", ":", "/no/such:", "x::/no/such", ".", "./", "../here"])
def test_no_word_for_the_current_folder_opens_it(tmp_path: Path, path: str) -> None:
    """Python makes every word of its path a whole one before a program begins."""
    assert run_where_others_write(enrol.BRIDGE, tmp_path, path=path)[0] == []


@pytest.mark.parametrize("path", ["", "{}", "{}/", "{}/../here", "x:{}:"])
def test_a_folder_that_is_named_in_full_stays(tmp_path: Path, path: str) -> None:
    """Whoever says so means it, wherever a program begins; so does who installs from a folder."""
    folder, packages = tmp_path / "here", tmp_path / "packages"
    for each in (folder, packages):
        each.mkdir()
    (packages / "here.pth").write_text(f"{folder}\n")
    installed = "" if path else f"import site; site.addsitedir({str(packages)!r})\n"
    count = f"{installed}{wire.CLOSED_PATH}\nprint(sys.path.count({str(folder)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", count],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path.format(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1\n"


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    """A program may begin where somebody has removed the folder since."""
    there = tmp_path / "there"
    there.mkdir()
    text = f"import os; os.rmdir({str(there)!r})\n{wire.CLOSED_PATH}\nassert '' not in sys.path"
    kept = {**os.environ, "PYTHONPATH": ":/no/such"}
    subprocess.run([sys.executable, "-c", text], cwd=there, env=kept, check=True)


@pytest.mark.parametrize("program", [launch.LOADER, enrol.BRIDGE, start.LOADER, batch.RUN])
def test_the_programs_are_python(program: str) -> None:
    """They are sent as they are: nothing else reads them before a node does."""
    compile(program, "<program>", "exec")


@pytest.mark.parametrize("declared", ["it's $(my) python", ""])
def test_a_batch_client_runs_with_the_python_of_the_hosts(tmp_path: Path, declared: str) -> None:
    """The one that was declared, where the client's own is nowhere but on its machine; else the client's own."""
    script, python = tmp_path / "train me.py", tmp_path / declared
    script.touch()
    if declared:
        python.write_text('#!/bin/sh\nprintf "%s\\n" declared "$@"\n')
        python.chmod(0o755)
    else:
        script.write_text("import sys; print('own', *sys.argv, sep='\\n')")
    client = make_client_command(shlex.join([str(script), "it's", "$HOME"]))
    lines = launch.render_python(str(python) if declared else launch.DEFAULT_PYTHON)
    text = "\n".join([*lines, f"exec {launch.render_client(client)}"])
    done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *("declared" if declared else "own", str(script), "it's", "$HOME"),
    ]


def test_a_program_that_is_no_python_is_run_as_it_is() -> None:
    """What was said is one word each; Python by another name is what that name means on the node."""
    assert launch.render_client(["python3", "a b.py"]) == "python3 'a b.py'"
    assert launch.render_client(["/bin/my $tool"]) == "'/bin/my $tool'"


# The worker that comes along

STUB = """
def main(invitation):
    print("invited", invitation["part"], invitation["umask"])
    return 3
"""


def load(invitation: dict[str, Any], tmp: Path) -> subprocess.CompletedProcess[str]:
    """Run the loader as a task of Slurm, in a Python that knows nothing of milkweed."""
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", launch.LOADER, "0022"],
        input=json.dumps(invitation),
        env={**os.environ, "TMPDIR": str(tmp)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_worker_of_the_client_is_used_where_it_is_seen(tmp_path: Path) -> None:
    """On a shared file system the very source of the client runs, and nothing is unpacked."""
    package = tmp_path / "src" / "milkweed" / "worker"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "remote.py").write_text(
        STUB + "\nimport sys; sys.stdout.reconfigure(line_buffering=True)"
    )
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    done = load({"source": str(tmp_path / "src"), "worker": "", "part": "0.0"}, tmp)
    assert (done.returncode, done.stdout) == (3, "invited 0.0 0022\n"), done.stderr
    assert list(tmp.iterdir()) == []


def test_the_packed_worker_runs_where_nothing_is_seen(tmp_path: Path) -> None:
    """From the copy alone, without site packages: the worker takes the invitation, and looks for its place."""
    invitation = {"source": "/nowhere", "worker": WORKER, "index_env": "NO_SUCH_VARIABLE"}
    done = load(invitation, tmp_path)
    assert "KeyError: 'NO_SUCH_VARIABLE'" in done.stderr
    assert ".zip/milkweed/worker/remote.py" in done.stderr


def test_the_copy_on_a_host_is_private(tmp_path: Path) -> None:
    """Nobody else can change what a host is about to run."""
    load({"source": "/nowhere", "worker": WORKER, "index_env": "X"}, tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.zip")} <= {0o600}


def test_the_copy_on_a_host_goes_with_the_host(tmp_path: Path) -> None:
    """When a keeper has ended, nothing of it is left on its machine."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in ("milkweed/__init__.py", "milkweed/worker/__init__.py"):
            archive.writestr(name, "")
        archive.writestr("milkweed/worker/remote.py", STUB)
    worker = b64encode(packed.getvalue()).decode()
    assert load({"source": "/nowhere", "worker": worker, "part": "0.0"}, tmp_path).returncode == 3
    assert list(tmp_path.iterdir()) == []
