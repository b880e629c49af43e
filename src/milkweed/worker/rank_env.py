"""The variables of ranks, and the CPUs they are bound to: what may be wrong is known before one is started."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import affinity, serve
from .fleet import Fleet, HostEntry

Message = Mapping[str, Any]


def host_base(fleet: Fleet, entry: HostEntry | None, order: Message) -> dict[str, str]:
    """A host's variables, and those of the order over them.

    Where the client is on this machine the variables of its shell come first, as with torchrun; else those that
    the keeper was started with.
    """
    if entry is None:
        return {**os.environ, **order["env"]}
    shell = order.get("shell")
    host = fleet.host_env(entry, shell)
    return {**(own_environment(host) if shell is None else host), **order["env"]}


def find_unlike(env: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """Variables that a person has set, and that ranks would have otherwise."""
    return sorted(key for key, value in known.items() if env.get(key) != value)


def make_base(fleet: Fleet, entry: HostEntry, order: Message) -> dict[str, str]:
    """What all ranks of an order have."""
    base = host_base(fleet, entry, order)
    if len(order["ranks"]) > 1:
        base.setdefault("OMP_NUM_THREADS", "1")
    base.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return base


def make_env(
    base: Mapping[str, str], rank: Message, *, error: str, virtual: bool
) -> dict[str, str]:
    """The variables of one rank; `error` is the file in which it may tell of an exception."""
    env = {**base, **rank["env"], "TORCHELASTIC_ERROR_FILE": error}
    return {**env, **virtual_rank(int(rank["local"]), env)} if virtual else env


def own_environment(env: Mapping[str, str]) -> dict[str, str]:
    """An environment without what only the keeper needs: the way to import itself."""
    kept = dict(env)
    kept.pop("MONARCH_SKIP_TRITON_DEEPBIND", None)
    here = str(Path(serve.__file__).parents[2])
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    if paths[0] == here:
        kept["PYTHONPATH"] = os.pathsep.join(paths[1:])
        if not kept["PYTHONPATH"]:
            del kept["PYTHONPATH"]
    return kept


def virtual_rank(local: int, env: Mapping[str, str]) -> dict[str, str]:
    """Let a rank see one device only, as its first."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    names = [str(local)] if visible is None else visible.split(",")
    if visible is not None and local >= len(names):
        raise ValueError(f"local rank {local} has no device: CUDA_VISIBLE_DEVICES={visible}")
    mine = names[0] if visible is None else names[local]
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": mine.strip()}


def find_cpus(
    mode: str | None,
    locals_: Sequence[int],
    env: Mapping[str, str],
    addresses: Sequence[str] | None = None,
) -> dict[int, set[int]]:
    """The CPUs that ranks are bound to; none when they may run anywhere. Who knows where GPUs are gives it."""
    if not mode:
        return {}
    allowed = os.sched_getaffinity(0)
    if addresses is None:
        addresses = affinity.gpu_addresses(env)
    return {
        local: affinity.cpus_for(mode, local, allowed=allowed, env=env, addresses=addresses)
        for local in locals_
    }
