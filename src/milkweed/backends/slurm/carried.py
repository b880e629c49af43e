"""What one component of a job says that sbatch takes for the others, too.

Before it reads components one by one it reads them all as one, and then forgets only some options. So a component
that does not say one of the others has it from any that does, and there is no word for saying nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set as AbstractSet

OWN = frozenset({
    "-B", "-F", "-G", "-L", "-O", "-S", "-m", "-s", "-w", "--bb", "--contiguous", "--core-spec",
    "--cores-per-socket", "--cpu-freq", "--cpus-per-gpu", "--distribution", "--extra-node-info",
    "--gpu-bind", "--gpu-freq", "--gpus", "--gpus-per-socket", "--gpus-per-task", "--gres",
    "--gres-flags", "--hint", "--licenses", "--mail-type", "--mail-user", "--mem-bind",
    "--mem-per-cpu", "--mem-per-gpu", "--mincpus", "--network", "--nodefile", "--nodelist",
    "--ntasks-per-core", "--ntasks-per-gpu", "--ntasks-per-socket", "--overcommit",
    "--oversubscribe", "--sockets-per-node", "--spread-job", "--switches", "--thread-spec",
    "--threads-per-core", "--tmp", "--use-min-nodes",
})  # fmt: skip
"""Options of sbatch that hold for one component, from 20.11 on; any other may be taken for all."""
_LONG = {
    "-b": "--begin",
    "-d": "--dependency",
    "-H": "--hold",
    "-I": "--immediate",
    "-v": "--verbose",
    "-x": "--exclude",
}


def find_carried(arguments: Iterable[str]) -> set[str]:
    """The options among arguments of sbatch that hold for all components."""
    names = (word.partition("=")[0] for word in arguments if word.startswith("-"))
    shorts = (name if name.startswith("--") else name[:2] for name in names)
    return {_LONG.get(name, name) for name in shorts} - OWN


def find_unsaid(said: Sequence[AbstractSet[str]]) -> tuple[int, int, str] | None:
    """The first option that one of several says and another does not: who, who not, and what."""
    for at, one in enumerate(said):
        for other, words in enumerate(said):
            if one - words:
                return at, other, min(one - words)
    return None
