"""AppDefs and settings of torchx itself, of each version there is: released, and nightly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.spmd.fields import check_fields
from programs import LABS

READ = Path(__file__).with_name("torchx_read.py")
TESTS = READ.parents[1]


@pytest.fixture(scope="module", params=["0.7.0", "nightly"])
def read(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What milkweed reads of a torchx, in a process of its own: two versions cannot share one."""
    torchx = LABS / f"torchx-{request.param}"
    if not torchx.is_dir():
        pytest.skip(f"torchx {request.param} is not here: `make labs`")
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "code").mkdir()
    done = subprocess.run(
        [sys.executable, str(READ), str(folder)],
        env={**os.environ, "PYTHONPATH": str(torchx)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        **json.loads(done.stdout.splitlines()[-1]),
        "folder": str(folder),
        "version": request.param,
    }


def test_its_own_appdef_is_read(read: dict[str, Any]) -> None:
    """The documents' example, made by torchx itself, gives a wrapper, a command and hosts."""
    found = read["example"]
    assert found["wrapper"] == ["workspace/entrypoint.sh"]
    assert found["command"][-2:] == ["-m", "train"]
    assert (found["sizes"], found["gpus"], found["notes"]) == ({"trainer": 2}, 8, [])


def test_its_own_component_is_read(read: dict[str, Any]) -> None:
    """What dist.ddp makes is read, and filled in as torchx fills it in."""
    found = read["component"]
    assert found["name"] == "train_me"
    assert found["command"][:2] == ["--rdzv_backend", "static"]
    assert found["command"][-3:] == ["train me.py", "it's", "$x"]
    assert "${TORCHX_RANK0_HOST:=localhost}:29500" in found["command"]
    assert found["env"] == found["theirs"]


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm", "kubernetes"])
def test_every_setting_of_it_is_known(read: dict[str, Any], scheduler: str) -> None:
    """No setting that torchx has is taken for a slip of the pen, and no default does harm."""
    assert read["settings"][scheduler] == {"unknown": [], "notes": []}


def test_its_own_workspaces_are_read(read: dict[str, Any]) -> None:
    """A folder, projects that lie in one already, and none; what would have to be copied is refused."""
    if read["version"] == "0.7.0":  # which has no such word
        assert read["workspaces"] == {}
        return
    folder = read["folder"]
    refused = read["workspaces"].pop("elsewhere")
    assert read["workspaces"] == {
        "none": "",
        "empty": "",
        "folder": folder,
        "below": folder,
        "text": folder,
    }
    assert refused.startswith("refused: roles.trainer.workspace: milkweed cannot bring")


@dataclass
class Later:
    """A role of a torchx to come."""

    name: str = "trainer"
    colour: str = "blue"
    shapes: list[str] = field(default_factory=lambda: ["round"])


def test_a_default_of_a_later_torchx_is_said_by_nobody() -> None:
    """A field that is new and has a value does no harm, until somebody gives it another."""
    known = frozenset({"name"})
    check_fields(Later(name="x"), known, "roles.x")
    with pytest.raises(SpecError, match=r"roles.x.colour: milkweed does not know what it means"):
        check_fields(Later(colour="red"), known, "roles.x")
    with pytest.raises(SpecError, match=r"roles.x.shapes"):
        check_fields(Later(shapes=["square"]), known, "roles.x")
