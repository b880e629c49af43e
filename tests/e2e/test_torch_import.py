"""Actors that import torch in an endpoint, on hosts that have not the file they are written in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from programs import Client

pytestmark = pytest.mark.e2e

STAND_IN = Path(__file__).parents[1] / "labs" / "kubernetes" / "standins" / "torch.py"
USE = """
os.unlink(__file__)  # nobody can read it from now on, as on another machine

class Trainer(Actor):
    @endpoint
    def look(self, folder):
        sys.path.insert(0, folder)
        import torch
        return len(torch.STACK)

    @endpoint
    def fail(self):
        raise ValueError("still told")

state = ProcessJob({"w": 1}).state(cached_path=None)
trainers = state.w.spawn_procs().spawn("t", Trainer)
print("stack", values(trainers.look.call(os.path.abspath("lib")).get())[0] > 1)
try:
    trainers.fail.call().get()
except Exception as error:
    print("error", "still told" in str(error))
"""


def test_torch_is_imported_in_an_endpoint(client: Client) -> None:
    """The engine would ask the client for lines of its program, and cannot read the answer with half a torch."""
    (client.folder / "lib").mkdir()
    shutil.copy(STAND_IN, client.folder / "lib")
    out = client.run(USE)
    assert "stack True" in out
    assert "error True" in out
