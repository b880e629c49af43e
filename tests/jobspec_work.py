"""Jobspecs that run on real schedulers: the same work everywhere."""

from __future__ import annotations

import hashlib
import platform
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from milkweed.jobspec import Run, TransformerBase, load_runs, parse_jobspec
from milkweed.jobspec.graph import Graph, Group, Need, RunFile, Shape, Stage, Step, Submit, Work
from programs import wait_until

HOSTILE = [
    "a b",
    "$(touch $HOME/pwned)",
    "`id`",
    "'",
    '"',
    "\\",
    ";",
    "new\nline",
    "tab\t",
    "\r\n",
    "*",
    "",
    "-x",
    "é☃",
    "#!",
    "&& false",
]

DOCUMENT = """
version: 1
resources:
- {type: node, count: 2, with: [{type: slot, count: 1, label: each, with: [{type: core, count: 2}]}]}
task:
  slot: each
  count: {per_slot: 1}
  scripts:
  - name: install.sh
    content: |
      #!/bin/bash
      echo "installing on $(hostname) as $JOBSPEC_TASK_RANK of $JOBSPEC_TASKS"
  - name: job.sh
    content: |
      #!/bin/bash
      echo "hello from $(hostname)"; ls
  transform:
  - {step: write, filename: install.sh, executable: true}
  - {step: stage, filename: install.sh}
  - {step: submit, filename: install.sh, wait: true}
  - {step: write, filename: job.sh, executable: true}
  - {step: stage, filename: job.sh}
  - {step: submit, filename: job.sh, wait: true}
"""

SECRET = "hunter2-very-secret"  # noqa: S105  a secret of nobody
AUTH = """
version: 1
resources: {pair: {type: node, count: 2, with: [{type: core, count: 1}]}}
tasks:
- name: a
  resources: pair
  steps:
  - {name: auth, secret: token, variable: MY_TOKEN, export: TOKEN}
  command:
  - sh
  - -c
  - 'printf %s "$TOKEN" | sha256sum; stat -c %a "$JOBSPEC_SECRETS/token"; env | grep -c MY_TOKEN=; sleep 2'
  attributes: {watch: true}
"""


def make(*steps: Step, name: str = "") -> Graph:
    """A graph of these steps."""
    return Graph(steps=steps, name=name)


def submit(name: str, *argv: str | RunFile, needs: tuple[Need, ...] = (), **more: Any) -> Submit:
    """A job; what is not of a step is of its work."""
    own = {key: more.pop(key) for key in ("wait", "watch", "local", "replicas") if key in more}
    return Submit(id=name, needs=needs, work=Work(argv=argv, **more), **own)


def shell(name: str, script: str, *needs: Need, **more: Any) -> Submit:
    """A job that runs a line of shell."""
    return submit(name, "sh", "-c", script, needs=needs, **more)


class Shown(list[str]):
    """What was shown while a run was driven, but for the scheduler's own noise."""

    def __init__(self, noise: str) -> None:
        super().__init__()
        self._noise = noise

    def __call__(self, label: str, line: str) -> None:
        """Take one more line."""
        if not line.startswith(self._noise):
            self.append(f"{label}| {line}")


class Runs:
    """Runs on one kind of scheduler, which makes some noise of its own."""

    def __init__(self, transformer: Callable[[], TransformerBase], noise: str) -> None:
        self._make = transformer
        self._noise = noise

    def carry_out(self, graph: Graph, *, wait: bool = True) -> tuple[Run, Shown]:
        """Run a graph to its end; the run, and what was shown meanwhile."""
        transformer = self._make()
        shown = Shown(self._noise)
        return transformer.run(transformer.render(graph), wait=wait, show=shown), shown

    def printed(self, run: Run) -> list[str]:
        """All that the work of a run printed."""
        lines = self._make().logs(run)
        return [f"{label}| {line}" for label, line in lines if not line.startswith(self._noise)]

    def states(self, run: Run) -> dict[str, str]:
        """How each step is."""
        entries = self._make().status(run).entries
        return {name: entry.status.state.value for name, entry in entries.items()}

    def carry_on_after_a_kill(self, name: str, folder: Path, is_running: Callable[[], bool]) -> Run:
        """Kill the driver of a jobspec while its first work runs, and let another go on; the run."""
        gate, script = folder / "gate", folder / "spec.yaml"
        script.write_text(DOCUMENT.replace('echo "inst', f'{hold(gate)}; echo "inst'))
        program = textwrap.dedent(f"""
            from milkweed.jobspec import load_jobspec, load_transformer
            t = load_transformer({name!r})
            t.run(t.render(load_jobspec({str(script)!r})), wait=True)
        """)
        process = subprocess.Popen([sys.executable, "-c", program])
        wait_until(is_running, 90)
        process.send_signal(signal.SIGKILL)
        process.wait()
        gate.touch()
        run = the_run()
        self._make().carry_on(run, wait=True)
        return run

    def see_live(self, graph: Graph, gate: Path, *, wait: bool) -> list[str]:
        """What is shown of work that goes on only when its first line was: then `gate` is there."""
        transformer = self._make()
        shown = Shown(self._noise)

        def show(label: str, line: str) -> None:
            shown(label, line)
            if line == "begun":
                gate.touch()

        run = transformer.run(transformer.render(graph), wait=wait, show=show)
        assert run.progress().exit_code() == 0, run.progress()
        return shown


LIVE = {
    "a step that says it": (False, lambda gate: live("a", gate, wait=True, watch=True)),
    "a step of a run that is waited for": (True, lambda gate: live("a", gate)),
    "a step in a group that says it": (
        False,
        lambda gate: Group(
            id="g",
            work=Work(argv=(), shape=Shape()),
            steps=(live("g/a", gate, wait=True, watch=True),),
        ),
    ),
}
"""Work that is shown while it runs, and whether the whole run is waited for."""


def live(name: str, gate: Path, **more: Any) -> Submit:
    """Work that ends when somebody has seen its first line; else its time limit ends it."""
    return shell(name, f"echo begun; {hold(gate)}; echo seen", duration_s=180.0, **more)


def the_run() -> Run:
    """The only run that is recorded."""
    [run] = load_runs()
    return run


EXAMPLES = Path(__file__).parents[1] / "examples" / "jobspec"
EXAMPLE_WORDS = {
    "steps": "hello from",
    "tasks": "nothing is lost",
    "flux": "hello from",
    "hello-world-jobspec": "hello world from",
    "hello-world-wait-jobspec": "hello world from",
    "hello-world-batch": "the first of 2",
}
"""The examples, and what each prints."""


def load_example(name: str) -> Graph:
    """An example as it is; one that requires amd64 requires this machine's kind where that is another."""
    path = EXAMPLES / f"{name}.yaml"
    machine = platform.machine()
    text = path.read_text()
    return parse_jobspec(text if machine == "x86_64" else text.replace("amd64", machine), str(path))


DEPENDENT_STATES = {
    "bad": "failed",
    "ok": "skipped",
    "later": "skipped",
    "notok": "done",
    "any": "done",
    "after": "done",
}


def hold(gate: Path) -> str:
    """Shell that goes on when a file is there."""
    return f"until [ -e '{gate}' ]; do sleep 0.1; done"


def dependent_work(gate: Path) -> Graph:
    """Work that fails when a file is there, and needs of all kinds."""
    return make(
        shell("bad", f"{hold(gate)}; exit 3"),
        shell("ok", "echo never", Need("bad")),
        shell("later", "echo never", Need("ok")),
        shell("notok", "echo repaired", Need("bad", "afternotok")),
        shell("any", "echo whatever", Need("bad", "afterany")),
        shell("after", "echo begun", Need("bad", "after")),
    )


def failing_group(*more: Step) -> Group:
    """A group with a step that fails, one that is left out, one that takes too long, and others."""
    steps = (
        shell("g/bad", "exit 9"),
        shell("g/never", "echo never", Need("g/bad")),
        shell("g/else", "echo else", Need("g/bad", "afternotok")),
        shell("g/long", "sleep 60", duration_s=1.5),
    )
    return Group(id="g", work=Work(argv=(), shape=Shape(slots=2)), steps=(*steps, *more))


def mixed_group(here: str) -> Group:
    """A group with a step, a group of replicas, a local step and one of all nodes."""
    wide = Shape(nodes=2, slots=2, cores_per_slot=2)
    replicas = shell("g/in/r", "echo replica $JOBSPEC_REPLICA", replicas=2)
    small = Work(argv=(), shape=Shape(slots=2))
    inner = Group(id="g/in", needs=(Need("g/first"),), work=small, steps=(replicas,))
    steps = (
        shell("g/first", "echo first $X"),
        inner,
        shell("g/here", here, Need("g/in"), local=True),
        shell("g/all", "echo all", Need("g/here"), shape=wide),
    )
    return Group(id="g", work=Work(argv=(), shape=wide, environment={"X": "outer"}), steps=steps)


def odd_folder(folder: Path, nodes: int) -> tuple[Graph, str]:
    """Work on some nodes that looks at a staged folder with hostile names; how each line ends."""
    staged = folder / "it's $(odd)\nname"
    (staged / "inner").mkdir(parents=True)
    (staged / "inner" / "b; rm -rf *").write_bytes(bytes(range(256)))
    (staged / "link").symlink_to("inner")
    (staged / "run").write_text("#!/bin/sh\necho ran\n")
    (staged / "run").chmod(0o755)
    show = (
        "import glob, hashlib, os; d = glob.glob('it*')[0]; "
        "print(ascii(d), hashlib.md5(open(d + '/link/b; rm -rf *', 'rb').read()).hexdigest(),"
        " os.access(d + '/run', os.X_OK))"
    )
    shape = Shape(nodes=nodes, slots=nodes)
    job = submit("a", "python3", "-c", show, needs=(Need("s"),), wait=True, shape=shape)
    graph = make(Stage(id="s", path=str(staged)), job)
    return graph, f"{staged.name!a} e2c865db4162bed963bfaa9ef6ac18f0 True"


def check_secret(shown: list[str]) -> None:
    """On both nodes the work of AUTH had its secret, in a file of its own, and nothing else that holds it."""
    wanted = hashlib.sha256(SECRET.encode()).hexdigest()
    assert len([line for line in shown if wanted in line]) == 2
    assert sorted(line for line in shown if line.endswith("600")) == ["a| 0: 600", "a| 1: 600"]
    assert len([line for line in shown if line.endswith(": 0")]) == 2
