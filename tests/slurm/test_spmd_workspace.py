"""AppDefs with a workspace on Slurm, made by torchx itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from programs import LABS, Client
from ranks import WORKSPACE, write_workspace
from slurm.lab import Lab


@pytest.mark.parametrize("said", ["", "folder", "below"])
def test_ranks_start_in_the_workspace(client: Client, lab: Lab, said: str) -> None:
    """On every node: in the folder that the workspace names, or without one where serve() was called."""
    torchx = LABS / "torchx-nightly"
    if not torchx.is_dir():
        pytest.skip("torchx nightly is not here")
    expected = write_workspace(client, said)
    (client.folder / "example.py").write_text(WORKSPACE)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "example.py", "slurm", "2", said],
        cwd=client.folder,
        env={**client.env, "PYTHONPATH": str(torchx)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[default{rank}]:{expected}" for rank in range(2)]
    assert not lab.jobs()
