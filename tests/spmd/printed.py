"""Command lines about what ranks print, and where it goes."""

from __future__ import annotations

from spmd.cases import THREE, TWO
from spmd.sides import Case

LOGS = "--log-dir {folder}/logs"
ONE_FAILS = "probe.meet(); sys.exit(3) if probe.RANK == 1 else probe.wait()"
SPEAK = """
    probe.say(f'out {probe.RANK}')
    probe.say(f'apple {probe.RANK}', 2)
    probe.say(f'pear, {probe.RANK}', 2)
"""
LARGE = """
    line = 'x' * 99
    for number in range(200):
        os.write(1, (f'{line}\\n' * 100).encode())
    probe.say(f'end {probe.RANK}')
"""

OUTPUT = [
    *(
        Case(
            name=f"streams {flags}".replace(":", "-"),
            line=f"{TWO} {LOGS} {flags} train.py",
            script=SPEAK,
        )
        for flags in (
            *("-r 0", "-r 1", "-r 2", "-r 3", "-r 0:1,1:2", "-r 1:3", "-r3", "--redirects=0:0"),
            *(
                "-t 1",
                "-t 2",
                "-t 3",
                "-t 0:3",
                "--tee 1:1",
                "-r 3 -t 0:1",
                "-r 1 -t 2",
                "-r 0:3 -t 1:3",
            ),
        )
    ),
    Case(name="teed without log dir", line=f"{TWO} -t 3 train.py", script=SPEAK),
    Case(name="redirected without log dir", line=f"{TWO} -r 3 train.py", script=SPEAK),
    *(
        Case(
            name=f"shown {flags}".replace(":", "-"),
            line=f"{THREE} {LOGS} {flags} train.py",
            script=SPEAK,
        )
        for flags in (
            "--local-ranks-filter 0",
            "--local-ranks-filter 1,2",
            "--local_ranks_filter 7",
            "--local-ranks-filter 1 -t 3",
            "--local-ranks-filter 1 -r 3",
            "--local-ranks-filter 0,1 -t 1 -r 2",
        )
    ),
    Case(
        name="filtered lines",
        line=f"{TWO} {LOGS} -t 3 --duplicate-stdout-filters out --duplicate-stderr-filters apple train.py",
        script=SPEAK,
    ),
    Case(
        name="filter with comma",
        line=f"{TWO} {LOGS} -t 0:3 --duplicate-stderr-filters 'r,, ,nothing' train.py",
        script=SPEAK,
    ),
    Case(
        name="filter without tee",
        line=f"{TWO} {LOGS} -r 3 --duplicate-stdout-filters out train.py",
        script=SPEAK,
    ),
    Case(
        name="filter of shown ranks",
        line=f"{TWO} {LOGS} -t 3 --local-ranks-filter 1 --duplicate-stdout-filters out train.py",
        script=SPEAK,
    ),
    Case(
        name="prefix",
        line=f"--role r {TWO} -t 3 train.py",
        script=SPEAK,
        env={
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} ${rank}/${local_rank} $x $$> "
        },
        prefix=r"<r \d+/\d+ \$x \$> ",
    ),
    Case(
        name="prefix in filtered lines",
        line=f"{TWO} {LOGS} -t 1 --duplicate-stdout-filters out train.py",
        script=SPEAK,
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${local_rank}| "},
        prefix=r"\d+\| ",
    ),
    Case(
        name="log dir nested",
        line=f"{TWO} --log-dir {{folder}}/logs/a/b -t 3 train.py",
        script=SPEAK,
    ),
    Case(name="log dir relative", line=f"{TWO} --log-dir logs -r 1 -t 2 train.py", script=SPEAK),
    Case(
        name="log dir is a file", line="--log-dir {folder}/train.py train.py", code=1, within_s=30
    ),
    Case(name="log dir nowhere", line=f"{TWO} --log-dir /dev/null train.py", script=SPEAK),
    Case(
        name="log dir nowhere redirected",
        line=f"{TWO} --log-dir /dev/null -r 3 train.py",
        script=SPEAK,
    ),
    Case(
        name="log dir nowhere and some shown",
        line=f"{TWO} --log-dir /dev/null --local-ranks-filter 0 train.py",
        script=SPEAK,
    ),
    Case(
        name="run id in log dir",
        line=f"--master-port {{port}} --rdzv-id a.b {LOGS} -t 1 train.py",
        script=SPEAK,
    ),
    Case(name="only errors", line="train.py", script="probe.say('no', 2)"),
    Case(name="nothing printed", line=f"{LOGS} -t 3 train.py", script=""),
    Case(name="empty lines", line=f"{LOGS} -t 1 train.py", script="os.write(1, b'\\n\\na\\n\\n')"),
    Case(name="no newline", line="train.py", script="os.write(1, b'a\\nb')"),
    Case(name="no newline teed", line=f"{LOGS} -t 1 train.py", script="os.write(1, b'a\\nb')"),
    Case(name="progress", line="train.py", script="os.write(1, b'1%\\r2%\\r3%\\n')"),
    Case(
        name="progress teed", line=f"{LOGS} -t 1 train.py", script="os.write(1, b'1%\\r2%\\r3%\\n')"
    ),
    Case(name="no text", line="train.py", script="os.write(1, b'a\\xffb\\xc3\\n')"),
    Case(
        name="no text teed", line=f"{LOGS} -t 1 train.py", script="os.write(1, b'a\\xffb\\xc3\\n')"
    ),
    Case(name="long line", line="train.py", script="os.write(1, b'x' * 200_000 + b'\\n')"),
    Case(name="much", line=f"{TWO} train.py", script=LARGE),
    Case(name="much teed", line=f"{LOGS} -t 1 train.py", script=LARGE),
    Case(name="much redirected", line=f"{TWO} {LOGS} -r 1 train.py", script=LARGE),
    Case(name="events", line=f"{TWO} --event-log-handler console train.py"),
    Case(
        name="events of a failure",
        line=f"{TWO} --event-log-handler console train.py",
        script=ONE_FAILS,
        code=1,
    ),
]
