"""torchrun programs and the machine they run on: its CPUs near GPUs, its variables, its name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from milkweed.worker.affinity import read_ranges
from programs import Client
from ranks import Runner

pytestmark = pytest.mark.e2e
PCI = Path("/sys/bus/pci/devices")
NODE = Path("/sys/devices/system/node/node0/cpulist")
SMI = """\
#!/bin/sh
case "$1" in
  -L) echo 'GPU 0: Made up (UUID: GPU-0)' ;;
  *) echo {address} ;;
esac
"""
LONELY = """
set -e
hostname lonely
printf '127.0.0.1 localhost lonely\\n::1 localhost lonely\\n' >hosts
mount --bind hosts /etc/hosts
exec "$@"
"""


def put_gpu(folder: Path) -> str:
    """Let nvidia-smi tell of a GPU at the place of some device of the first NUMA node; a PATH with it."""
    places = sorted(path.parent.name for path in PCI.glob("*/numa_node") if is_first(path))
    if not places or not NODE.exists():
        pytest.skip("this machine does not say where its devices are")
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI.format(address=places[0]))
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def is_first(path: Path) -> bool:
    """Whether a device is at the first NUMA node, and has an address that nvidia-smi could tell."""
    near = path.read_text().strip() in {"-1", "0"}
    return (
        near
        and re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", path.parent.name) is not None
    )


def test_ranks_run_near_their_gpu(runner: Runner) -> None:
    """`--numa-binding node`: the word is no script, and a rank has the CPUs of its GPU's NUMA node."""
    runner.script("print(sorted(os.sched_getaffinity(0)), sys.argv)")
    path = put_gpu(runner.folder)
    out, _err = runner.run("--nproc-per-node gpu --numa-binding node train.py a", PATH=path)
    cpus = sorted(read_ranges(NODE.read_text()) & os.sched_getaffinity(0))
    assert out == f"[default0]:{cpus} ['train.py', 'a']\n"


def test_a_later_shell_counts(runner: Runner) -> None:
    """Hosts of this machine stay, and ranks have the variables of the shell that each run is started in."""
    runner.script("print(*(os.environ.get(key, '-') for key in ('NCCL_DEBUG', 'PYTHONPATH')))")
    assert runner.run("train.py", NCCL_DEBUG="INFO", PYTHONPATH="/a")[0] == "[default0]:INFO /a\n"
    out, err = runner.run("train.py", PYTHONPATH="/b")
    assert out == "[default0]:- /b\n"
    assert "your shell" not in err


def test_a_machine_whose_name_leads_to_itself_only(client: Client) -> None:
    """A name that resolves to loopback only is no hindrance: ranks of two hosts meet, and talk."""
    if subprocess.run(["unshare", "-mu", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not give a machine another name")
    (client.folder / "train.py").write_text(
        "import os, socket\n"
        "address = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])\n"
        "if os.environ['RANK'] == '0':\n"
        "    with socket.create_server(('', address[1])) as server:\n"
        "        print(socket.gethostname(), server.accept()[0].recv(9).decode())\n"
        "else:\n"
        "    while True:\n"
        "        try:\n"
        "            socket.create_connection(address).sendall(b'hello')\n"
        "            break\n"
        "        except ConnectionRefusedError:\n"
        "            pass\n"
    )
    program = client.write("""
        import socket
        assert socket.gethostbyname(socket.gethostname()).startswith("127.")
        with ProcessJob({"w": 2}) as job:
            job.torchrun(["--nnodes", "2", "train.py"])
    """)
    done = subprocess.run(
        ["unshare", "-mu", "sh", "-c", LONELY, "sh", sys.executable, str(program)],
        cwd=client.folder,
        env=client.env,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[default0]:lonely hello\n"
