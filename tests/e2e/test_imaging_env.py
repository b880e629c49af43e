"""What an image's steps set and install, as later steps, commands, hosts and procs see it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.held_keepers import HeldKeeper
from e2e.test_imaging import ensure
from milkweed.errors import StepFailedError
from milkweed.image import Image
from programs import PREAMBLE

pytestmark = pytest.mark.e2e

# A client of a host that serves, which asks one proc after another what it has.
CLIENT = """
from milkweed import engine
from milkweed.control import Session
from milkweed.hosts import Host
from milkweed.image import Image
from milkweed.job.imaging import ensure_images
from milkweed.worker.wire import engine_environment

class Look(Actor):
    @endpoint
    def at(self, module):
        import importlib
        try:
            return importlib.import_module(module).VALUE
        except ImportError:
            return None
    @endpoint
    def folder(self): return os.getcwd()

address, served, credentials, source = sys.argv[1:]
session = Session(address, client="me", owner=True, output=False, hear=lambda *_: None)
session.start()
host = Host(name="w/0", mesh="w", rank=0, address=served, control=address)
mesh = engine.attach({"w": [host]}, client="me", credentials=engine_environment(credentials))["w"]
def look(name):
    procs = mesh.spawn_procs(per_host={"procs": 1}, name=name)
    probe, look = procs.spawn("p", Probe), procs.spawn("l", Look)
    seen = [probe.variable.call_one(key).get() for key in ("MODE", "OWN", "GONE")]
    print(seen, look.at.call_one("brought").get(), look.folder.call_one().get())
    procs.stop().get()
look("before")
image = Image().set_env_vars({"MODE": "new", "OWN": "image's", "PYTHONPATH": "$HOME/lib"})
image = image.copy(source, "~/lib/").run_bash("mkdir sub")
ensure_images({address: Image.from_json({**image.to_json(), "lines": [
    *image.to_json()["lines"], {"kind": "workdir", "text": "sub"}]})})
look("after")
session.close()
os._exit(0)
"""


def make_python(folder: Path, *, path: str = "") -> Path:
    """A Python of its own, in which things can be installed; `path` is what it sees besides."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    if path:
        packages(folder).joinpath("all.pth").write_text(f"{path}\n")
    return folder / "bin" / "python"


def packages(folder: Path) -> Path:
    """Where such a Python has its packages."""
    [found] = folder.glob("lib/python*/site-packages")
    return found


def make_wheel(folder: Path) -> Path:
    """A package that brings a module, and one more by a path file."""
    wheel = folder / "brought-1.0-py3-none-any.whl"
    info = "brought-1.0.dist-info"
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "by_path.py").write_text("VALUE = 'by path'\n")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("brought.py", "VALUE = 'installed'\n")
        archive.writestr("brought.pth", f"{folder / 'elsewhere'}\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def own(tmp_path: Path) -> Iterator[HeldKeeper]:
    """A host with a Python of its own, which has pip and the engine from ours."""
    python = make_python(tmp_path / "python", path=sysconfig.get_path("purelib"))
    with HeldKeeper(python=str(python)) as made:
        yield made


# Variables and folders


def test_variables_reach_later_steps_and_commands() -> None:
    """In order, and one may name another; what the job itself says of a variable wins. No log has values."""
    with HeldKeeper(env={"OWN": "job's"}) as keeper:
        image = Image().set_env_vars({"A": "1", "OWN": "image's"}).set_env_vars({"B": "$A${A}\\$A"})
        assert ensure(image.run_bash('echo "$A $B $OWN"'), keeper) == ["1 11$A job's"]
        assert keeper.run_command("sh", "-c", 'echo "$B $OWN"') == "11$A job's"
        assert "image's" not in keeper.log()


def test_a_variable_goes_with_its_step() -> None:
    """A step that is no longer there sets nothing any more."""
    with HeldKeeper() as keeper:
        ensure(Image().set_env_vars({"A": "1", "B": "2"}), keeper)
        assert keeper.run_command("sh", "-c", "echo $A$B") == "12"
        ensure(Image().set_env_vars({"A": "1", "C": "3"}), keeper)
        assert keeper.run_command("sh", "-c", "echo $A$B$C") == "13"


def test_a_working_folder_is_made_and_kept(tmp_path: Path) -> None:
    """Relative ones are below the one before; later steps and commands are in it."""
    file = tmp_path / "Dockerfile"
    file.write_text("FROM a\nENV D=deep\nWORKDIR a\nWORKDIR $D\nRUN pwd\n")
    with HeldKeeper() as keeper:
        assert ensure(Image.from_dockerfile(str(file)), keeper) == [f"{keeper.home}/a/deep"]
        assert keeper.run_command("pwd") == f"{keeper.home}/a/deep"
        file.write_text("FROM a\nENV D=deep\nRUN pwd\nWORKDIR /proc/nowhere\n")
        with pytest.raises(StepFailedError, match="/proc/nowhere") as caught:
            ensure(Image.from_dockerfile(str(file)), keeper)
        assert caught.value.step == "go to /proc/nowhere"


def test_procs_of_a_host_that_serves_have_what_is_new(tmp_path: Path) -> None:
    """Variables, modules and the folder of a new proc are those of the last steps; the job's own stay."""
    (tmp_path / "brought.py").write_text("VALUE = 'brought'\n")
    (tmp_path / "client.py").write_text(PREAMBLE + CLIENT)
    with HeldKeeper(held=False, env={"OWN": "job's"}) as keeper:
        keeper.wait_until(lambda: keeper.host()["state"] == "ready")
        argv = [sys.executable, str(tmp_path / "client.py"), keeper.address]
        argv += [keeper.host()["address"], str(keeper.folder / "client")]
        # What a client can import its procs can: so it runs where the module is not.
        (tmp_path / "there").mkdir()
        (tmp_path / "brought.py").rename(tmp_path / "there" / "brought.py")
        done = subprocess.run(
            [*argv, str(tmp_path / "there" / "brought.py")],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
            stdin=subprocess.DEVNULL,
        )
        assert done.stdout.splitlines() == [
            f'[None, "job\'s", None] None {keeper.home}',
            f"['new', \"job's\", None] brought {keeper.home}/sub",
        ], done.stderr


# Packages


def test_packages_are_installed_for_the_keepers_own_python(own: HeldKeeper, tmp_path: Path) -> None:
    """By its pip; a package's module and its paths are there for hosts that start then."""
    image = Image().pip_install(f"--no-index --no-deps {make_wheel(tmp_path)}")
    assert "Successfully installed brought-1.0" in "\n".join(ensure(image, own))
    assert (packages(tmp_path / "python") / "brought.py").exists()
    code = "import brought, by_path; print(brought.VALUE, by_path.VALUE)"
    python = str(tmp_path / "python" / "bin" / "python")
    assert own.run_command(python, "-c", code) == "installed by path"
    own.wait_until(lambda: own.host()["state"] == "ready")


def test_a_step_may_bring_the_engine(tmp_path: Path) -> None:
    """The keeper's Python has none until then: held hosts need it only when they start."""
    folder = tmp_path / "python"
    with HeldKeeper(python=str(make_python(folder))) as keeper:
        path = packages(folder) / "engine.pth"
        ensure(Image().run_bash(f"echo {sysconfig.get_path('purelib')} >{path}"), keeper)
        keeper.wait_until(lambda: keeper.host()["state"] != "starting")
        assert keeper.host()["state"] == "ready", keeper.log()


def test_without_pip_uv_installs(tmp_path: Path) -> None:
    """For the same Python."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:/usr/bin:/bin")
    if uv is None:
        pytest.skip("uv is not installed here")
    folder = tmp_path / "python"
    path = f"{Path(uv).parent}:/usr/bin:/bin"
    with HeldKeeper(python=str(make_python(folder)), path=path) as keeper:
        ensure(Image().pip_install(f"--offline --no-deps {make_wheel(tmp_path)}"), keeper)
        assert (packages(folder) / "brought.py").exists()


def test_without_any_installer_the_error_says_so(tmp_path: Path) -> None:
    """And what to do."""
    with (
        HeldKeeper(python=str(make_python(tmp_path / "python")), path="/nowhere") as keeper,
        pytest.raises(StepFailedError, match="has no pip, and uv is not on PATH") as caught,
    ):
        ensure(Image().pip_install("torch"), keeper)
    assert caught.value.step == "pip install torch"


def test_without_bash_another_shell_runs_steps() -> None:
    """The one that every machine has."""
    with HeldKeeper(path="/nowhere") as keeper:
        assert ensure(Image().run_bash("echo ${BASH_VERSION:-plain}"), keeper) != []
