"""What a keeper does beforehand, so that its forks need not."""

from __future__ import annotations

import json
import subprocess
import sys

WARM = "from milkweed.worker import warm; warm.warm_up()"
ENGINE = """
import ctypes, os, runpy
from milkweed.worker import deferral
os.environ["MONARCH_SKIP_TRITON_DEEPBIND"] = "1"  # as a keeper says to its procs
with deferral.deferred():
    import monarch.actor
import monarch._src.actor.bootstrap_main, monarch._src.actor.debugger.breakpoint
import monarch._src.actor.mock, monarch._src.actor.pickle, monarch._src.actor.source_loader
"""
"""What a proc imports until its first answer."""


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has after some code."""
    return set(json.loads(run(f"{code}\nimport json, sys; print(json.dumps(list(sys.modules)))")))


def test_a_keeper_imports_what_procs_need_and_nothing_else() -> None:
    """Whatever the engine imports is imported once for all forks, and nothing that none of them uses."""
    warm, engine = modules_after(WARM), modules_after(ENGINE)
    ours = {"milkweed", "monarch"}
    foreign = {name for name in engine - warm if name.split(".")[0] not in ours}
    assert foreign == set()
    own = {name for name in warm - engine if name.split(".")[0] not in ours}
    assert own == {"gc"}
