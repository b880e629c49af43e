"""Scripts of jobs, run here: one node, which is this machine, and an srun that starts one task."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SRUN = """#!/bin/sh
printf '%s\\n' "$*" >>"$SRUN_CALLS"
while [ $# -gt 0 ]; do case $1 in --*) shift ;; *) break ;; esac; done
SLURM_PROCID=0 SLURM_NODEID=0 exec "$@"
"""
UP = "#!/bin/sh\necho 'Slurmctld(primary) at head is UP'\n"
AWAY_ONCE = """#!/bin/sh
state=DOWN
if [ -e "$0.asked" ]; then state=UP; fi
: >"$0.asked"
echo "Slurmctld(primary) at head is $state"
"""
JOB_ID = "77"


class Node:
    """A node of a cluster, as a script of a job sees it."""

    def __init__(self, folder: Path) -> None:
        self.tmp = folder / "tmp"
        self.bin = folder / "bin"
        self.calls = folder / "srun.calls"
        for path in (self.tmp, self.bin):
            path.mkdir(parents=True)
        self.calls.touch()
        for name, program in (("srun", SRUN), ("scontrol", UP)):
            (self.bin / name).write_text(program)
            (self.bin / name).chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        """What Slurm tells a script."""
        return {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "HOME": str(self.tmp),
            "TMPDIR": str(self.tmp),
            "SRUN_CALLS": str(self.calls),
            "SLURM_JOB_ID": JOB_ID,
            "SLURM_JOB_NUM_NODES": "1",
            **more,
        }

    def run(
        self, script: str, shell: str = "sh", **more: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a script to its end, as Slurm does."""
        path = self.tmp.parent / "script"
        path.write_text(script)
        return subprocess.run(
            [shell, str(path)],
            env=self.environment(**more),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )

    @property
    def left(self) -> list[str]:
        """What is left in its own folder."""
        return sorted(path.name for path in self.tmp.iterdir())
