"""Whether an instance could ever give what a plan asks for: all that is wrong at once, before it is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...backends.flux.nodes import Node
from ...errors import SpecError
from ...spec import suggest
from ..plan import Plan

_Problem = tuple[str, str]


def check_plan(plan: Plan, nodes: Sequence[Node], queues: Sequence[str]) -> None:
    """Refuse what the instance could never give; SpecError lists all that is wrong."""
    found: list[_Problem] = []
    for action in plan.actions:
        jobspec: Any = action.details.get("jobspec")
        if jobspec is not None:
            found += _check_job(f"step {action.id}", jobspec, nodes, queues)
    if found:
        hints = dict.fromkeys(hint for _, hint in found if hint)
        raise SpecError("\n".join(text for text, _ in found), hint="\n".join(hints))


def _check_job(
    field: str, jobspec: Mapping[str, Any], nodes: Sequence[Node], queues: Sequence[str]
) -> Iterator[_Problem]:
    system = jobspec["attributes"]["system"]
    queue = system.get("queue")
    if queue is not None and queue not in queues:
        hint = suggest(queue, queues) if queues else "take it out: the instance has no named queues"
        yield f"{field}: there is no queue {queue!r}", hint
    if not nodes or "constraints" in system:  # which nodes may be chosen is Flux's to say
        return
    counts = read_counts(jobspec["resources"])
    asked, there = _compare(counts, nodes)
    if asked > there:
        each = ", ".join(f"{counts[kind]} {kind}s" for kind in ("core", "gpu") if counts.get(kind))
        what = "nodes" if "node" in counts else "slots"
        per = f"{counts['slot']} slots of {each}" if "node" in counts else each
        most = max(nodes, key=lambda node: (node.cores, node.gpus))
        yield (
            f"{field}: {asked} {what} with {per} each, but the instance has {there} such {what}",
            f"ask for less: it has {len(nodes)} nodes with {most.cores} cores and {most.gpus} GPUs at most",
        )


def read_counts(resources: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many of each type there are inside the one above it."""
    found: dict[str, int] = {}
    for vertex in resources:
        found[vertex["type"]] = vertex["count"]
        found |= read_counts(vertex.get("with", ()))
    return found


def _compare(counts: Mapping[str, int], nodes: Sequence[Node]) -> tuple[int, int]:
    """How many nodes or slots are asked for, and how many there could be."""
    fitting = [_count_slots(node, counts) for node in nodes]
    if "node" in counts:
        return counts["node"], len([slots for slots in fitting if slots >= counts["slot"]])
    return counts["slot"], sum(fitting)


def _count_slots(node: Node, counts: Mapping[str, int]) -> int:
    slots = node.cores // counts["core"]
    return min(slots, node.gpus // counts["gpu"]) if counts.get("gpu") else slots
