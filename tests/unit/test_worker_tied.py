"""Keepers that end with whoever started them."""

from __future__ import annotations

import subprocess
import sys


def test_a_keeper_that_is_tied_ends_with_its_parent() -> None:
    """Whoever started it is gone, without a word: it is told to end, and does so in order."""
    code = (
        "import os, signal, time\n"
        "from milkweed.worker.remote import end_with_parent\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (print('told to end', flush=True), os._exit(0)))\n"
        "    end_with_parent()\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    parent.kill()
    parent.wait()
    assert parent.stdout.read() == "told to end\n"
    parent.stdout.close()
