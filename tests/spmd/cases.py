"""Command lines about what is started: how many ranks, where they meet, what they run."""

from __future__ import annotations

from spmd.sides import TOOL, Case

TWO = "--nproc-per-node 2"
THREE = "--nproc-per-node 3"
RESTART = """
    again = os.path.exists('failed')
    probe.meet('second' if again else 'first')
    if again:
        probe.say(f"{probe.RANK} again")
    elif probe.RANK == 1:
        open('failed', 'w').close()
        sys.exit(4)
    else:
        probe.wait()
"""
ARGUMENTS = "probe.say(repr(sys.argv))"
SIBLING = {
    "sub/sibling.py": "WORD = 'sibling'\n",
    "sub/train.py": "import sibling\nprint(sibling.WORD)\n",
}
PACKAGE = {
    "pkg/__init__.py": "",
    "pkg/mod.py": "import probe, sys\nprobe.note(globals())\nprobe.say(repr(sys.argv[1:]))\n",
    "pkg/__main__.py": "import probe\nprobe.note(globals())\nprobe.say('package')\n",
}


SHAPES = [
    Case(name="plain", line="train.py"),
    Case(name="nproc 1", line="--nproc-per-node 1 train.py"),
    Case(name="nproc 2", line="--nproc-per-node=2 train.py"),
    Case(name="nproc 3 with underscores", line="--nproc_per_node 3 train.py"),
    Case(name="nproc cpu", line="--nproc-per-node cpu train.py"),
    Case(name="nproc auto", line="--nproc-per-node auto train.py"),
    Case(name="nproc gpu", line="--nproc-per-node gpu train.py", code=-1),
    Case(name="nproc xpu", line="--nproc-per-node xpu train.py", code=-1),
    Case(name="nnodes 1", line=f"--nnodes=1 {TWO} train.py"),
    Case(name="nnodes 1 to 1", line="--nnodes 1:1 train.py"),
    Case(name="standalone", line=f"--standalone {TWO} train.py"),
    Case(name="node rank 0", line="--node-rank 0 train.py"),
    Case(name="role", line=f"--role trainer {TWO} train.py"),
    Case(name="start method", line=f"--start-method fork {TWO} train.py"),
    Case(name="monitor interval", line="--monitor-interval 0.3 train.py"),
    Case(name="abbreviated", line="--nn 1 --max-r 1 --stand train.py"),
    Case(name="PET nproc", line="train.py", env={"PET_NPROC_PER_NODE": "2"}),
    Case(name="PET and flag", line=f"{TWO} train.py", env={"PET_NPROC_PER_NODE": "3"}),
    Case(
        name="PET of several",
        line="train.py",
        env={"PET_ROLE": "worker", "PET_MAX_RESTARTS": "2", "PET_STANDALONE": "1"},
    ),
    Case(name="PET module", line="pkg.mod a", env={"PET_MODULE": "1"}, files=PACKAGE),
    Case(name="OMP set", line=f"{TWO} train.py", env={"OMP_NUM_THREADS": "5"}),
    Case(name="OMP set for one", line="train.py", env={"OMP_NUM_THREADS": "7"}),
    Case(name="OMP empty", line=f"{TWO} train.py", env={"OMP_NUM_THREADS": ""}),
    Case(name="NCCL set", line="train.py", env={"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    Case(name="virtual rank", line=f"--virtual-local-rank {TWO} train.py"),
    Case(
        name="virtual rank of devices",
        line=f"--virtual-local-rank {TWO} train.py",
        env={"CUDA_VISIBLE_DEVICES": "3, 5"},
    ),
    Case(
        name="virtual rank without device",
        line=f"--virtual-local-rank {THREE} train.py",
        env={"CUDA_VISIBLE_DEVICES": "3,5"},
        code=1,
        within_s=30,
    ),
    Case(name="devices", line=f"{TWO} train.py", env={"CUDA_VISIBLE_DEVICES": "0,1"}),
    Case(name="a variable of the shell", line="train.py", env={"MODE": "x"}),
]

MEETING = [
    Case(name="rdzv id", line="--rdzv-id run7 train.py"),
    Case(name="c10d", line="--rdzv-backend c10d --rdzv-id run7 train.py"),
    Case(
        name="c10d endpoint",
        line=f"--rdzv-backend c10d --rdzv-endpoint localhost:{{port}} --rdzv-id run8 {TWO} train.py",
    ),
    Case(name="static endpoint", line="--rdzv-endpoint 127.0.0.1:{port} --rdzv-id run9 train.py"),
    Case(name="master port", line=f"--master-port {{port}} {TWO} train.py"),
    Case(name="master addr", line="--master-addr 127.0.0.1 --master-port {port} train.py"),
    Case(name="master name", line="--master-addr localhost --master-port {port} train.py"),
    Case(name="master addr alone", line="--master-addr 127.0.0.9 train.py"),
    Case(name="local addr", line="--local-addr 127.0.0.1 train.py"),
    Case(name="rdzv conf", line="--rdzv-conf join_timeout=30,last_call_timeout=1 train.py"),
]

NODES = [
    Case(
        name="two nodes c10d",
        line="--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:{port}"
        " --rdzv-id two --role x train.py a",
        nodes=2,
    ),
    Case(
        name="two nodes static",
        line="--nnodes 2 --node-rank {node} --master-addr 127.0.0.1 --master-port {port} train.py",
        nodes=2,
    ),
    Case(
        name="two nodes of one to two",
        line="--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint localhost:{port} --rdzv-id some"
        " --rdzv-conf last_call_timeout=5 train.py",
        script="probe.meet()",
        nodes=2,
    ),
    Case(
        name="two nodes restart",
        line="--nnodes 2 --max-restarts 1 --rdzv-backend c10d --rdzv-endpoint localhost:{port}"
        " --rdzv-id again train.py",
        script=RESTART,
        nodes=2,
    ),
    Case(name="two nodes by default", line="--nnodes 2 --node-rank {node} train.py", nodes=2),
]

FORMS = [
    Case(name="module", line="-m pkg.mod a -m", files=PACKAGE),
    Case(name="package", line=f"{TWO} --module pkg", files=PACKAGE),
    Case(name="missing module", line="-m pkg.nothing", files=PACKAGE, code=1),
    Case(name="tool", line=f"{TWO} --no-python ./tool.sh a 'b c'", files={"tool.sh": TOOL}),
    Case(name="tool from PATH", line="--no-python sh -c 'echo $RANK; exit 0'"),
    Case(name="missing tool", line="--no-python ./nothing.sh", code=1),
    Case(name="sub folder", line="sub/train.py", files=SIBLING),
    Case(name="folder as script", line="app a", files={"app/__main__.py": PACKAGE["pkg/mod.py"]}),
    Case(
        name="script with space",
        line="'my train.py' a",
        files={"my train.py": PACKAGE["pkg/mod.py"]},
    ),
    Case(
        name="script called torchrun",
        line="torchrun a",
        files={"torchrun": PACKAGE["pkg/mod.py"]},
    ),
    Case(name="missing script", line="nothing.py", code=1),
    Case(name="syntax error", line="wrong.py", files={"wrong.py": "def\n"}, code=1),
    Case(name="script arguments", line="train.py a --b=c -d -- e", script=ARGUMENTS),
    Case(name="leading dashes", line="-- train.py -- a -- b", script=ARGUMENTS),
    Case(name="own nnodes", line="train.py --nnodes 2 --nproc-per-node 4", script=ARGUMENTS),
    Case(name="help of the script", line="train.py --help", script=ARGUMENTS),
    Case(
        name="odd arguments",
        line="""train.py 'ü ö' '' ' ' 日本 "it's" '*' '"' '\\n' -1 'a\nb'""",
        script=ARGUMENTS,
    ),
    Case(
        name="macros",
        line=f"{TWO} train.py '${{local_rank}}' 'x$local_rank' '$$' '${{x}}' '$'",
        script=ARGUMENTS,
    ),
]

FLAGS = [
    Case(name=f"flag {line}", line=f"{line} train.py a")
    for line in (
        "--event-log-handler null",
        "--signals-to-handle SIGTERM",
        "--duplicate-stdout-filters x",
        "--shutdown-timeout 5",
    )
] + [
    Case(name="flag numa binding", line="--numa-binding node train.py", code=-1, within_s=30),
    Case(name="flag logs specs", line="--logs-specs default train.py"),
]

STARTED = [*SHAPES, *MEETING, *NODES, *FORMS, *FLAGS]
