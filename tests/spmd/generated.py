"""Command lines of several options at once, as chance made them; a seed is always the same one."""

from __future__ import annotations

import random

from spmd.cases import PACKAGE
from spmd.ended import FAILS_UNTIL
from spmd.printed import LOGS, SPEAK
from spmd.sides import TOOL, Case


def generate(seed: int) -> Case:
    """A command line of several options at once."""
    chosen = random.Random(seed)
    count = chosen.choice((1, 2, 2, 3))
    streams = ("0", "1", "2", "3", "0:1", "0:2,1:1", "1:3", "0:3,1:0")
    options = [
        ["--nproc-per-node", str(count)],
        *chosen.sample(
            [
                ["-r", chosen.choice(streams)],
                ["-t", chosen.choice(streams)],
                ["--local-ranks-filter", chosen.choice(("0", "1", "0,1"))],
                ["--role", chosen.choice(("default", "actor"))],
                ["--max-restarts", chosen.choice("012")],
                [chosen.choice(("--standalone", "--nnodes=1:1"))],
                ["--duplicate-stdout-filters", chosen.choice(("1", "out,x"))],
                ["--monitor-interval", "0.05"],
                ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}", "--rdzv-id", "g"],
            ],
            chosen.randint(1, 6),
        ),
    ]
    chosen.shuffle(options)
    form, script = chosen.choice(
        (("", "train.py"), ("-m", "pkg.mod"), ("--no-python", "./tool.sh"))
    )
    words = [word for option in options for word in option] + [form, LOGS, script]
    fails = (
        chosen.choice(("0", "0", "1")) if script == "train.py" else chosen.choice(("a", "--tee 9"))
    )
    return Case(
        name=f"generated {seed}",
        line=" ".join([*filter(None, words), fails]),
        script=SPEAK + FAILS_UNTIL,
        files={"tool.sh": TOOL, **PACKAGE},
        code=-1,
    )


GENERATED = [generate(seed) for seed in range(1, 25)]
