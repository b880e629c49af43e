"""Command lines about how ranks end, and how the launcher does."""

from __future__ import annotations

from spmd.cases import THREE, TWO
from spmd.printed import LOGS, ONE_FAILS
from spmd.sides import Case

FAILS_UNTIL = """
    probe.say(f'attempt {probe.ATTEMPT} of rank {probe.RANK}')
    probe.meet()
    if probe.ATTEMPT < int(sys.argv[1]):
        sys.exit(4) if probe.RANK == probe.WORLD_SIZE - 1 else probe.wait()
"""
TELL_SIGNAL = """
    def heard(number, frame):
        probe.say(f'rank {probe.RANK} got {signal.Signals(number).name}')
        sys.exit(int(sys.argv[1]))
    for name in ('SIGTERM', 'SIGINT', 'SIGHUP', 'SIGQUIT', 'SIGUSR1'):
        signal.signal(getattr(signal, name), heard)
    probe.meet()
    probe.wait()
"""
IGNORE = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    probe.meet()
    probe.wait()
"""
GLOO = """
    import torch
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        dist.init_process_group("gloo")
        ours = torch.tensor([dist.get_rank() + 1.0])
        dist.all_reduce(ours)
        probe.say(f"{dist.get_rank()} of {dist.get_world_size()}: {ours.item()}")
        dist.barrier()
        dist.destroy_process_group()
        if probe.RANK == 1:
            raise ValueError("wrong shape")
        probe.wait()

    main()
"""


def ends(name: str, code: int, script: str, line: str = "train.py") -> Case:
    """A rank that ends in some way."""
    return Case(name=name, line=line, script=script, code=code)


ENDS = [
    ends("exit 0", 0, "sys.exit(0)"),
    ends("exit None", 0, "sys.exit()"),
    ends("exit 3", 1, "sys.exit(3)"),
    ends("exit -1", 1, "sys.exit(-1)"),
    ends("exit 300", 1, "sys.exit(300)"),
    ends("exit True", 1, "sys.exit(True)"),
    ends("exit text", 1, "sys.exit('text')"),
    ends("exception", 1, "raise ValueError('wrong')"),
    ends("interrupt of its own", 1, "raise KeyboardInterrupt"),
    ends("os._exit", 1, "os._exit(5)"),
    *(
        ends(name, 1, f"os.kill(os.getpid(), signal.{name}); probe.wait()")
        for name in ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGINT")
    ),
    ends("one of two fails", 1, ONE_FAILS, f"{TWO} train.py"),
    ends("one of three fails", 1, ONE_FAILS, f"{THREE} {LOGS} -t 3 train.py"),
    ends(
        "one fails after one has ended",
        1,
        "probe.meet()\nif probe.RANK == 0: sys.exit()\ntime.sleep(1)\nsys.exit(9)",
        f"{TWO} train.py",
    ),
    ends(
        "ended ranks tidy up",
        1,
        TELL_SIGNAL.replace("probe.wait()", "sys.exit(6) if probe.RANK == 0 else probe.wait()"),
        f"{TWO} train.py 0",
    ),
    ends("all end well at their time", 0, "time.sleep(0.4 * probe.RANK)", f"{THREE} train.py"),
    *(
        Case(
            name=f"restarts {most} of which {needed} are needed",
            line=f"{TWO} {LOGS} -t 3 --max-restarts {most} train.py {needed}",
            script=FAILS_UNTIL,
            code=int(needed > most),
        )
        for most, needed in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 2), (2, 9))
    ),
    Case(name="restart of a command", line="--max-restarts 1 --no-python false", code=1),
]

SIGNALS = [
    *(
        Case(
            name=f"launcher gets {name}",
            line=f"{TWO} train.py 1",
            script=TELL_SIGNAL,
            signal=name,
            ranks=2,
            code=1,
        )
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")
    ),
    Case(
        name="launcher gets SIGUSR1",
        line=f"{TWO} --signals-to-handle SIGUSR1,SIGTERM train.py 1",
        script=TELL_SIGNAL,
        signal="SIGUSR1",
        ranks=2,
        code=1,
    ),
    Case(
        name="ranks end well",
        line="train.py 0",
        script=TELL_SIGNAL,
        signal="SIGTERM",
        ranks=1,
        code=1,
    ),
    Case(
        name="ranks ignore it",
        line=f"{TWO} --shutdown-timeout 1 train.py",
        script=IGNORE,
        signal="SIGTERM",
        ranks=2,
        code=1,
        within_s=25,
    ),
    Case(
        name="ranks ignore it by variable",
        line="train.py",
        script=IGNORE,
        env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"},
        signal="SIGTERM",
        ranks=1,
        code=1,
        within_s=25,
    ),
    Case(name="signals with spaces", line="--signals-to-handle 'SIGTERM, SIGINT' train.py"),
    Case(name="no signal", line="--signals-to-handle SIGNONE train.py"),
]

ERRORS = [
    Case(
        name="recorded error",
        line=f"{TWO} {LOGS} train.py",
        script="probe.meet()\nif probe.RANK: probe.record('ValueError: wrong'); sys.exit(1)\nprobe.wait()",
        told="trace",
        code=1,
    ),
    Case(
        name="error that was recorded first",
        line=f"{TWO} {LOGS} train.py",
        script="""
            if probe.RANK == 0:
                probe.record('ValueError: the reason')
            probe.meet()
            time.sleep(1.2)  # torch compares whole seconds
            sys.exit(5) if probe.RANK else probe.wait()
        """,
        code=1,
    ),
    Case(
        name="error file of the launcher",
        line="train.py",
        script="probe.record('ValueError: wrong'); sys.exit(1)",
        env={"TORCHELASTIC_ERROR_FILE": "mine.json"},
        code=1,
    ),
    Case(
        name="other ranks ignore it",
        line=f"{TWO} --shutdown-timeout 1 train.py",
        script=IGNORE.replace("probe.wait()", "sys.exit(3) if probe.RANK else probe.wait()"),
        ranks=2,
        code=1,
        within_s=25,
    ),
    Case(name="process left behind", line="train.py", script="probe.leave()"),
]

WRONG = [
    Case(name="no script", line="--nproc-per-node 2", code=2),
    Case(name="unknown option", line="--bogus train.py", code=2),
    Case(name="ambiguous option", line="--n 2 train.py", code=2),
    Case(name="no number", line="--max-restarts x train.py", code=2),
    Case(name="no choice", line="--start-method bogus train.py", code=2),
    Case(name="wrong nproc", line="--nproc-per-node zwei train.py", code=1),
    Case(name="wrong nnodes", line="--nnodes x train.py", code=1),
    Case(name="wrong streams", line="-r 9 train.py", code=1),
    Case(name="wrong filter", line="--local-ranks-filter x train.py", code=1),
    Case(name="negative restarts", line="--max-restarts -1 train.py", code=1),
    Case(name="module without Python", line="-m --no-python pkg.mod", code=1),
    Case(name="wrong backend", line="--rdzv-backend bogus train.py", code=1),
    Case(name="wrong events", line="--event-log-handler bogus train.py", code=1),
    Case(name="wrong PET", line="train.py", env={"PET_NPROC_PER_NODE": "x"}, code=1),
]

TORCH = [
    Case(
        name="gloo and record",
        line=f"{TWO} {LOGS} train.py",
        script=GLOO,
        torch=True,
        told="ValueError: wrong shape",
        code=1,
    ),
    Case(
        name="run path",
        line="--run-path train.py a --b",
        script="probe.say(repr(sys.argv))",
        torch=True,
    ),
    Case(
        name="run path that fails",
        line="--run-path train.py",
        script="sys.exit(3)",
        torch=True,
        code=1,
    ),
]

ENDED = [*ENDS, *SIGNALS, *ERRORS, *WRONG, *TORCH]
