"""Whether a cluster could ever give what a job asks for: all that is wrong at once, before anything is submitted.

`sbatch` takes much that can never run and lets it wait for ever: too many hosts, too many CPUs, too long.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...errors import SpecError
from ...spec import suggest
from .nodes import NodeRow
from .times import parse_time_limit, render_time_limit

_WORD = re.compile(r"[\w.:-]+", re.ASCII)
_MAX_NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """What one component of a job asks for: hosts of one kind, in one partition."""

    hosts: int
    partition: str | None
    """One name, several with commas between them, or None for the cluster's default."""
    ntasks_per_node: int
    cpus_per_task: int | None
    gpus_per_node: int | None
    memory_mb: int | None
    time_limit_s: float | None
    constraint: str | None
    field: str
    """What the user wrote, such as `meshes.trainers`."""
    gpu_type: str | None = None
    disk_mb: int | None = None
    qos: str | None = None
    """One may lift the limits of partitions, so where it is said these are left to Slurm."""
    variables: tuple[str, ...] = ()
    """What was taken from variables of sbatch, such as `SBATCH_PARTITION=gpu`."""

    @property
    def cpus_per_node(self) -> int:
        """How many CPUs each host must have."""
        return self.ntasks_per_node * (self.cpus_per_task or 1)


def fill_in(item: Component, environ: Mapping[str, str]) -> Component:
    """A component with what sbatch takes from its variables where nothing was said."""
    limit_s = item.time_limit_s
    if limit_s is None and (text := environ.get("SBATCH_TIMELIMIT")):
        with contextlib.suppress(SpecError):  # sbatch itself says what is wrong with it
            limit_s = parse_time_limit(text, field="SBATCH_TIMELIMIT")
    unsaid = {
        "SBATCH_PARTITION": item.partition is None,
        "SBATCH_CONSTRAINT": item.constraint is None,
        "SBATCH_QOS": item.qos is None,
        "SBATCH_TIMELIMIT": limit_s is not None and item.time_limit_s is None,
    }
    taken = {name: environ[name] for name, lacks in unsaid.items() if lacks and environ.get(name)}
    return replace(
        item,
        partition=item.partition or taken.get("SBATCH_PARTITION"),
        constraint=item.constraint or taken.get("SBATCH_CONSTRAINT"),
        qos=item.qos or taken.get("SBATCH_QOS"),
        time_limit_s=limit_s,
        variables=tuple(f"{name}={value}" for name, value in taken.items()),
    )


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that a cluster could never give."""

    field: str
    message: str
    hint: str
    too_long: bool = False
    """Whether it is a time limit, of which `sbatch --test-only` takes no notice."""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


_Rows = Sequence[NodeRow]


@dataclass(frozen=True, slots=True)
class _Partition:
    nodes: _Rows
    """Those that Slurm shows: not those of a cloud that are switched off."""
    count: int
    """How many there are."""


_Partitions = dict[str, _Partition]


def find_problems(
    components: Sequence[Component],
    rows: Sequence[NodeRow],
    counts: Mapping[str, int] | None = None,
) -> list[Problem]:
    """What the cluster could never give, by the nodes that Slurm shows, and by how many each partition has.

    Nodes that are down count, since they may come back, and so does a partition that is down. Of a partition
    without any node nothing is known.
    """
    if not rows:  # sinfo told nothing, so nothing is known to be wrong
        return []
    partitions = _by_partition(rows, counts or {})
    problems = [
        _name_variables(problem, item)
        for item in components
        for problem in _check_one(item, partitions)
    ]
    return problems or list(_check_together(components, partitions))


def make_error(problems: Sequence[Problem], seen: str = "") -> SpecError:
    """All that is wrong, as one error."""
    return SpecError(
        "\n".join(str(problem) for problem in problems),
        seen=seen,
        hint="\n".join(dict.fromkeys(problem.hint for problem in problems)),
    )


def _name_variables(problem: Problem, item: Component) -> Problem:
    if not item.variables:
        return problem
    return replace(problem, message=f"{problem.message} (with {', '.join(item.variables)})")


def _by_partition(rows: _Rows, counts: Mapping[str, int]) -> _Partitions:
    """The nodes of each partition, each once."""
    found: dict[str, dict[str, NodeRow]] = {name: {} for name in counts}
    for row in rows:
        found.setdefault(row.partition, {})[row.name] = row
    return {
        name: _Partition(list(nodes.values()), max(len(nodes), counts.get(name, 0)))
        for name, nodes in found.items()
    }


def _named(item: Component, partitions: _Partitions) -> list[str]:
    """The partitions that a component may run in; none when nobody said and there is no default."""
    if item.partition is not None:
        return [name for name in item.partition.split(",") if name]
    return [name for name, each in partitions.items() if each.nodes and each.nodes[0].default]


def _check_one(item: Component, partitions: _Partitions) -> list[Problem]:
    """What is wrong with a component in each partition it may run in; one that suits is enough."""
    names = _named(item, partitions)
    unknown = [name for name in names if name not in partitions]
    if unknown:
        return [_unknown_partition(item, name, partitions) for name in unknown]
    found = [list(_check_partition(item, name, partitions[name])) for name in names]
    return found[0] if found and all(found) else []


def _unknown_partition(item: Component, name: str, partitions: _Partitions) -> Problem:
    near, listed = suggest(name, partitions), _listed(sorted(partitions))
    hint = f"the partitions are: {listed}"
    if near.startswith("did you mean"):
        hint = f"{near} {hint}"
    return Problem(item.field, f"there is no partition {name!r}", hint)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return shown if len(names) <= _MAX_NAMED else f"{shown}, and {len(names) - _MAX_NAMED} more"


def _check_partition(item: Component, name: str, each: _Partition) -> Iterator[Problem]:
    nodes = each.nodes
    if nodes and not item.qos:
        yield from _check_limits(item, name, nodes[0])
    if each.count and item.hosts > each.count:
        yield _too_many(item.field, _hosts(item.hosts), name, each)
    elif nodes:
        yield from _check_nodes(item, name, each)


def _check_nodes(item: Component, name: str, each: _Partition) -> Iterator[Problem]:
    nodes, hidden = each.nodes, each.count - len(each.nodes)
    lacking = list(_check_shape(item, name, nodes))
    yield from lacking
    fitting = [row for row in nodes if _fits(item, row)]
    if not lacking and len(fitting) + hidden < item.hosts:
        yield Problem(
            item.field,
            f"{_hosts(item.hosts)} with {_describe(item)}, but {_few(fitting)} of the "
            f"{each.count} nodes of partition {name!r} {_have(fitting)} that",
            "ask for fewer hosts, or for less on each",
        )


def _check_limits(item: Component, name: str, row: NodeRow) -> Iterator[Problem]:
    """The partition's own limits, which are the same in each of its rows."""
    limit = row.max_time_s
    if limit is not None and item.time_limit_s is not None and item.time_limit_s > limit:
        yield Problem(
            item.field,
            f"a time limit of {render_time_limit(item.time_limit_s)} is more than the "
            f"{render_time_limit(limit)} that partition {name!r} allows",
            f"ask for at most {render_time_limit(limit)}, or choose another partition",
            too_long=True,
        )
    if item.hosts < row.min_nodes:
        yield Problem(
            item.field,
            f"{_hosts(item.hosts)}, but a job in partition {name!r} has at least {row.min_nodes}",
            f"ask for at least {row.min_nodes}, or choose another partition",
        )
    if row.max_nodes is not None and item.hosts > row.max_nodes:
        yield Problem(
            item.field,
            f"{_hosts(item.hosts)}, but a job in partition {name!r} has at most {row.max_nodes}",
            f"ask for at most {row.max_nodes}, or choose another partition",
        )


def _too_many(field: str, hosts: str, name: str, each: _Partition) -> Problem:
    return Problem(
        field,
        f"{hosts}, but partition {name!r} has {each.count}{_unusable(each)}",
        f"ask for at most {each.count}, or choose another partition",
    )


def _unusable(each: _Partition) -> str:
    """Say how many of the nodes are out of order, and in what state."""
    broken = [row for row in each.nodes if not row.usable]
    if not broken:
        return ""
    states = ", ".join(f"{row.name} {row.state}" for row in broken[:3])
    more = ", …" if len(broken) > 3 else ""
    return f", of which {each.count - len(broken)} can be used now ({states}{more})"


def _check_shape(item: Component, name: str, nodes: _Rows) -> Iterator[Problem]:
    """What no node of the partition has, one by one."""
    for words, wanted, have in _wants(item):
        most = max(map(have, nodes))
        if wanted > most:
            yield Problem(
                item.field,
                f"{wanted} {words} on each host, but no node of partition {name!r} has "
                f"{f'more than {most}' if most else 'any'}",
                f"ask for at most {most} {words}, or choose another partition"
                if most
                else _alternatives(item, nodes),
            )
    if (feature := _feature(item)) and not any(feature in row.features for row in nodes):
        known = sorted(set(itertools.chain.from_iterable(row.features for row in nodes)))
        yield Problem(
            item.field,
            f"no node of partition {name!r} has the feature {feature!r}",
            f"its features are: {_listed(known)}" if known else "its nodes have no features",
        )


def _wants(item: Component) -> Iterator[tuple[str, int, Callable[[NodeRow], int]]]:
    yield "CPUs", item.cpus_per_node, lambda row: row.cpus
    if item.gpus_per_node:
        yield "GPUs", item.gpus_per_node, lambda row: row.gpus
    if item.gpus_per_node and (kind := item.gpu_type):
        yield f"GPUs of type {kind!r}", item.gpus_per_node, lambda row: row.gpus_of(kind)
    if item.memory_mb:
        yield "MB of memory", item.memory_mb, lambda row: row.memory_mb
    if disk_mb := item.disk_mb:
        # What nobody has asked for is not known to be too little.
        yield "MB of disk", disk_mb, lambda row: disk_mb if row.disk_mb is None else row.disk_mb


def _alternatives(item: Component, nodes: _Rows) -> str:
    kinds = sorted({kind for row in nodes for kind in row.gpu_types})
    if item.gpu_type and kinds:
        return f"its types of GPUs are: {_listed(kinds)}"
    return "leave it out, or choose another partition"


def _feature(item: Component) -> str:
    """The one feature that is asked for; empty for none, and for an expression."""
    text = item.constraint or ""
    return text if _WORD.fullmatch(text) else ""


def _fits(item: Component, row: NodeRow) -> bool:
    feature = _feature(item)
    return all(wanted <= have(row) for _, wanted, have in _wants(item)) and (
        not feature or feature in row.features
    )


def _describe(item: Component) -> str:
    """What was asked for, as far as it is more than the least."""
    parts = [
        f"{wanted} {words}" for words, wanted, _ in _wants(item) if wanted > 1 or words != "CPUs"
    ]
    if feature := _feature(item):
        parts.append(f"the feature {feature!r}")
    *most, last = parts or ["a CPU"]
    return f"{', '.join(most)} and {last}" if most else last


def _hosts(count: int) -> str:
    return "1 host" if count == 1 else f"{count} hosts"


def _few(nodes: _Rows) -> str:
    return f"only {len(nodes)}" if nodes else "none"


def _have(nodes: _Rows) -> str:
    return "has" if len(nodes) == 1 else "have"


def _check_together(components: Sequence[Component], partitions: _Partitions) -> Iterator[Problem]:
    """Components that share one partition must fit into it together."""
    shared: dict[str, list[Component]] = {}
    for item in components:
        names = _named(item, partitions)
        if len(names) == 1:
            shared.setdefault(names[0], []).append(item)
    for name, items in shared.items():
        hosts = sum(item.hosts for item in items)
        if hosts > partitions[name].count > 0:
            field = ", ".join(item.field for item in items)
            yield _too_many(field, f"{hosts} hosts in all", name, partitions[name])
