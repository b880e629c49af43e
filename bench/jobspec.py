"""How long jobspecs take: reading and planning them against ruamel's loader alone, and what a local task costs.

The claim is about ruamel's loader in pure Python, whose parser reads jobspecs here, too: errors need its places.
Where its loader in C is installed, the time of that is printed as well.

Each number is a ratio or a difference against something measured in the same run. Exits with 1 when a
claim is missed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from ruamel.yaml import YAML

from milkweed.jobspec import load_transformer, parse_jobspec

STEPS = 100
HEAD = """\
version: 1
resources:
  small:
    type: slot
    count: 1
    with:
    - {type: core, count: 1}
tasks:
"""
MAX_RATIO, MAX_TASK_MS = 2.0, 5.0


def make_text(count: int, width: int) -> str:
    """Tasks of which each depends on the one `width` before it."""
    tasks = [
        f"- name: t{at}\n  resources: small\n  command: ['true', '{at}']\n"
        + (f"  depends_on: [t{at - width}]\n" if at >= width else "")
        for at in range(count)
    ]
    return HEAD + "".join(tasks)


def measure(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    begun_s = time.perf_counter()
    work()
    return time.perf_counter() - begun_s


def spawn_bare(count: int) -> None:
    """The processes alone, one after the other."""
    for _ in range(count):
        subprocess.run(["true"], stdin=subprocess.DEVNULL, start_new_session=True, check=True)


def bench_reading(files: int) -> bool:
    """Parse, validate and render, against ruamel's own parsing; in turns, since machines get busy."""
    text = make_text(STEPS, 10)
    local = load_transformer("local")
    has_c = importlib.util.find_spec("_ruamel_yaml") is not None
    ours = theirs = in_c = 0.0
    for _ in range(files):
        theirs += measure(lambda: YAML(typ="safe", pure=True).load(text))
        ours += measure(lambda: local.render(parse_jobspec(text)))
        if has_c:
            in_c += measure(lambda: YAML(typ="safe", pure=False).load(text))
    ratio = ours / theirs
    print(f"{files} jobspecs of {STEPS} steps: parse, validate and render {ours:.2f} s")
    print(
        f"  ruamel's loader in pure Python alone {theirs:.2f} s: {ratio:.2f} times as long (at most {MAX_RATIO:g})"
    )
    if has_c:
        print(f"  its loader in C alone {in_c:.2f} s: {ours / in_c:.2f} times as long (no claim)")
    else:
        print("  its loader in C is not installed here")
    return ratio <= MAX_RATIO


def bench_running(tasks: int) -> bool:
    """A graph of local tasks one after the other, against their processes alone."""
    local = load_transformer("local")
    plan = local.render(parse_jobspec(make_text(tasks, 1)))
    ours = measure(lambda: local.run(plan, wait=True))
    bare = measure(lambda: spawn_bare(tasks))
    each_ms = (ours - bare) / tasks * 1e3
    print(f"{tasks} local tasks, each after the one before it: {ours:.2f} s")
    print(
        f"  their processes alone {bare:.2f} s: {each_ms:.2f} ms a task (at most {MAX_TASK_MS:g})"
    )
    return each_ms <= MAX_TASK_MS


def main() -> None:
    """Print all numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["MILKWEED_HOME"] = home
        kept = [bench_reading(asked.files), bench_running(asked.tasks)]
    sys.exit(not all(kept))


if __name__ == "__main__":
    main()
