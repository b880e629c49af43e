"""In which order the components of a job are submitted: sbatch carries much of what one says over to the next.

What it does not carry over holds for one component. All else holds for those after it, too, unless they say
something else, and there is no word for saying nothing. So components that say less come first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set as AbstractSet
from typing import TypeVar

_T = TypeVar("_T")

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
"""Options of sbatch that hold for one component, from 20.11 on; any other may be carried over."""
_LONG = {
    "-b": "--begin",
    "-d": "--dependency",
    "-H": "--hold",
    "-I": "--immediate",
    "-v": "--verbose",
    "-x": "--exclude",
}


def find_carried(arguments: Iterable[str]) -> set[str]:
    """The options among arguments of sbatch that hold for later components, too."""
    names = (word.partition("=")[0] for word in arguments if word.startswith("-"))
    shorts = (name if name.startswith("--") else name[:2] for name in names)
    return {_LONG.get(name, name) for name in shorts} - OWN


def put_in_order(
    items: Sequence[tuple[_T, AbstractSet[str]]],
) -> tuple[list[_T], Collection[tuple[_T, _T, str]]]:
    """Items in an order in which none says what a later one does not; where there is none, who says what more."""
    left, found = list(items), list[_T]()
    while left:
        first = next((each for each in left if all(each[1] <= said for _, said in left)), None)
        if first is None:
            return found, [
                (one, other, min(said - others))
                for one, said in left
                for other, others in left
                if said - others and others - said
            ]
        left.remove(first)
        found.append(first[0])
    return found, ()
