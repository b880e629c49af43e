"""Waking a client that waits for these hosts, so that it need not ask its scheduler all the time.

A ring is a connection that is closed again. Nothing is said, and the client does nothing but look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

TIMEOUT_S = 3.0
_ringing: set[asyncio.Task[None]] = set()


def ring(addresses: Sequence[Sequence[str | int]]) -> None:
    """Ring at every address a client gave; one that is gone is nobody's loss."""
    for host, port in addresses:
        task = asyncio.get_running_loop().create_task(_ring(str(host), int(port)))
        _ringing.add(task)
        task.add_done_callback(_ringing.discard)


async def _ring(host: str, port: int) -> None:
    with contextlib.suppress(OSError, asyncio.TimeoutError):
        _reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), TIMEOUT_S)
        writer.close()
