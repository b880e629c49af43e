"""Running `milkweed torchrun` in a folder with a job of two hosts."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

from programs import Client, finish

PEERS = """
import os, select, signal, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def join():
    while True:
        try:
            return [socket.create_connection(address, 5)]
        except OSError:
            time.sleep(0.05)

def accept():
    with socket.create_server(("", address[1])) as server:
        return [server.accept()[0] for _ in range(size - 1)]

def end_slowly(*_):
    time.sleep(2)
    os._exit(1)

if "slowly" in sys.argv and os.environ["LOCAL_RANK"] == "1":
    signal.signal(signal.SIGTERM, end_slowly)
peers = join() if rank else accept()
for peer in peers:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT):
        peer.setsockopt(socket.IPPROTO_TCP, option, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1500)
print("world", size, "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
with open(f"up{rank}.{size}", "w") as told:
    told.write(str(os.getpid()))
patient = "slowly" in sys.argv and os.environ["LOCAL_RANK"] == "1"
while not os.path.exists("stop"):
    if not patient and select.select(peers, [], [], 0.05)[0] and not os.path.exists("stop"):
        sys.exit("a peer is gone")
    time.sleep(0.05)
"""
"""Ranks that are all connected, and fail as soon as another is gone; `slowly`: the second of a host ends late."""
WORKSPACE = """
import os, sys
from milkweed.job.spmd import serve
from torchx import specs

scheduler, hosts, said = sys.argv[1:]
there = os.path.join(os.getcwd(), "there")
projects = {"": {}, "folder": {there: ""}, "below": {there + "/code": "code"}}[said]
role = specs.Role(
    name="trainer",
    image="",
    entrypoint="torchrun",
    args=["--nnodes=" + hosts, "where.py"],
    num_replicas=int(hosts),
    workspace=specs.Workspace(projects) if projects else None,
)
cfg = {"partition": "debug"} if scheduler == "slurm" else {}
job = serve(specs.AppDef(name="app", roles=[role]), scheduler=scheduler, scheduler_cfg=cfg)
job.run_spmd()
job.kill()
"""
"""An AppDef with a workspace, or none."""
JOB = "name: spmd\non: process\nmeshes: {trainers: 2}\n"


class Runner:
    """Runs `milkweed torchrun …` in a folder with a job of two hosts."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.folder = client.folder
        (self.folder / "milkweed.yaml").write_text(JOB)

    def script(self, code: str, name: str = "train.py") -> Path:
        """Write a program for ranks."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
        path.write_text(head + textwrap.dedent(code))
        return path

    def start(self, line: str, **env: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "milkweed", "torchrun", *shlex.split(line)],
            cwd=self.folder,
            env={**self.client.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, line: str, code: int = 0, **env: str) -> tuple[str, str]:
        """Run a command to its end; what it printed on stdout and stderr."""
        program = self.start(line, **env)
        out, err = finish(program)
        assert program.returncode == code, f"exit {program.returncode}\n{out}\n{err}"
        assert "Traceback" not in err or "Error" in err
        return out, err


def write_workspace(client: Client, said: str) -> Path:
    """Write the script for such an AppDef where it should be found; the folder that ranks should start in."""
    (client.folder / "there" / "code").mkdir(parents=True)
    expected = client.folder / "there" if said else client.folder
    (expected / "where.py").write_text("import os\nprint(os.getcwd())\n")
    return expected


def ranks_of(client: Client) -> list[int]:
    """Processes that a gang of this client's jobs has started, whoever their parent is."""
    mark = f"MILKWEED_HOME={client.home}".encode()
    found: list[int] = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in env and any(word.startswith(b"MILKWEED_GANG=") for word in env):
            found.append(int(name))
    return found


def server_of(client: Client, host: str) -> int:
    """The process that serves a host."""
    home = f"MILKWEED_HOME={client.home}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/comm").read_text().strip()
            env = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if words == host and home in env:
            return int(name)
    raise AssertionError(f"no process serves {host}")
