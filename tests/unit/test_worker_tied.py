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


def run(code: str) -> str:
    """What a program prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_keeper_goes_on_when_its_programs_are_signalled() -> None:
    """A scheduler sends such signals to all that a job runs, a while before its time limit."""
    assert "goes on" in run(
        "import os, signal\n"
        "from milkweed.worker import remote\n"
        "def begin(*_):\n"
        "    for number in (signal.SIGUSR1, signal.SIGUSR2):\n"
        "        os.kill(os.getpid(), number)\n"
        "    raise SystemExit('goes on')\n"
        "remote.ensure_run_folder = begin\n"
        "os.environ['INDEX'] = '0'\n"
        "remote.main({'index_env': 'INDEX', 'apply_id': 'x', 'part': '0.0'})\n"
    )


def test_commands_and_ranks_may_trap_what_is_sent_to_programs() -> None:
    """A shell cannot trap what was ignored when it began."""
    said = run(
        "import os, signal\n"
        "from milkweed.worker import children, wire\n"
        "for number in wire.PROGRAM_SIGNALS:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "words = ['sh', '-c', 'trap \"echo saved\" USR1 USR2; kill -USR1 $$; kill -USR2 $$']\n"
        "children.execute(words, os.environ)\n"
    )
    assert said == "saved\nsaved\n"
