"""Ports that are nobody's yet, and nobody else's any more."""

from __future__ import annotations

import socket


def hold_port() -> socket.socket:
    """A free port that nobody else is given, and that rank 0 can still listen on.

    It is bound and not listened on: the kernel lets another socket of the same kind bind it, too, once that one
    allows addresses to be reused, as every server does, but never hands it out as a free one.
    """
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104  where rank 0 listens
        try:
            held = socket.socket(family)
        except OSError:
            continue
        try:
            if family == socket.AF_INET6:
                held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind((host, 0))
        except OSError:
            held.close()
        else:
            return held
    raise OSError("this host has no free port")
