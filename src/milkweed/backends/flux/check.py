"""Whether an instance could ever give what a job asks for: all that is wrong at once, and before it asks.

Flux takes a job that asks for more than there is, and lets it wait or fails it later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...errors import SpecError
from ...spec import suggest
from .nodes import Node
from .shape import Part


def check_parts(parts: Sequence[Part], nodes: Sequence[Node], queues: Sequence[str]) -> None:
    """Refuse what the instance could never give; SpecError lists all that is wrong."""
    problems = [problem for part in parts for problem in _check_one(part, nodes, queues)]
    if not problems and nodes:
        problems = list(_check_together(parts, nodes))
    if problems:
        raise SpecError(
            "\n".join(text for text, _hint in problems),
            hint="\n".join(dict.fromkeys(hint for _text, hint in problems)),
        )


def _check_one(
    part: Part, nodes: Sequence[Node], queues: Sequence[str]
) -> Iterator[tuple[str, str]]:
    shape = part.shape
    if shape.queue is not None and shape.queue not in queues:
        hint = suggest(shape.queue, queues) if queues else "take it out: the instance has one queue"
        yield f"flux.queue: there is no queue {shape.queue!r}", hint
    if not nodes:
        return
    chosen = [node for node in nodes if node.has(shape.properties)]
    if not chosen:
        known = sorted({word for node in nodes for word in node.properties})
        hint = f"its nodes have: {', '.join(known)}" if known else "its nodes have no properties"
        yield f"flux.properties: no node is {' and '.join(shape.properties)}", hint
        return
    enough = [
        node
        for node in chosen
        if node.cores >= (shape.cores or 1) and node.gpus >= (shape.gpus or 0)
    ]
    if len(enough) < len(part.hosts):
        yield _too_few(part, len(enough), chosen)


def _too_few(part: Part, count: int, chosen: Sequence[Node]) -> tuple[str, str]:
    shape = part.shape
    wants = [f"{shape.cores} cores"] if shape.cores else []
    wants += [f"{shape.gpus} GPUs"] if shape.gpus else []
    such = f" with {' and '.join(wants)}" if wants else ""
    most = f"{max(n.cores for n in chosen)} cores and {max(n.gpus for n in chosen)} GPUs"
    text = f"{part.field}: {len(part.hosts)} hosts, but the instance has {count} nodes{such}"
    return text, f"ask for less: it has {len(chosen)} nodes, with at most {most} each"


def _check_together(parts: Sequence[Part], nodes: Sequence[Node]) -> Iterator[tuple[str, str]]:
    """Components run at the same time, and those that share with nobody take whole nodes."""
    alone = [part for part in parts if part.shape.exclusive]
    hosts = sum(len(part.hosts) for part in alone)
    if hosts > len(nodes):
        fields = ", ".join(part.field for part in alone)
        yield (
            f"{fields}: together {hosts} hosts, but the instance has {len(nodes)} nodes",
            "ask for less, or share nodes with exclusive=False",
        )
