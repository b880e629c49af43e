"""Where a cluster asks how the operator is: /healthz, /readyz and /metrics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ..errors import SpecError
from .conditions import read_condition
from .loop import Operator
from .reading import text

PREFIX = "milkweed_operator"
IDLE_S = 10.0


def parse_address(words: str) -> tuple[str, int]:
    """`HOST:PORT`, or `:PORT` for all addresses of the machine."""
    host, colon, port = words.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SpecError(f"{words!r} is no address", hint="HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  all addresses were asked for


def serve_health(operator: Operator, address: tuple[str, int]) -> ThreadingHTTPServer:
    """Answer from a thread; the server, to be closed by the caller."""

    class Handler(_Handler):
        pass

    Handler.operator = operator
    server = ThreadingHTTPServer(address, Handler)
    server.daemon_threads = True
    threading.Thread(
        target=server.serve_forever, args=(0.1,), name="milkweed-health", daemon=True
    ).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    operator: Operator
    timeout = IDLE_S

    def do_GET(self) -> None:
        status, body = answer(self.operator, self.path.partition("?")[0])
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the library
        """Probes come every few seconds; nobody wants to read of them."""


def answer(operator: Operator, path: str) -> tuple[int, str]:
    """The status and the text for a path."""
    if path == "/healthz":
        ailment = operator.find_ailment()
        return (500, f"{ailment}\n") if ailment else (200, "ok\n")
    if path == "/readyz":
        ready = operator.is_synced()
        return (200, "ok\n") if ready else (503, "the cluster has not been listed yet\n")
    if path == "/metrics":
        return 200, render_metrics(measure(operator))
    return 404, "there are /healthz, /readyz and /metrics\n"


def measure(operator: Operator) -> Mapping[str, float]:
    """Numbers about the operator; no names of anybody's meshes."""
    counts, seen = operator.counts, operator.pictures
    return {
        "leads": operator.leadership.holds(),
        "terms_total": counts.terms,
        "looks_total": counts.looks,
        "failures_total": counts.failures,
        "refusals_total": counts.refusals,
        "writes_total": operator.hands.writes,
        "api_requests_total": operator.api.requests,
        "queue_length": len(operator.queue),
        "meshes": len(seen.meshes),
        "meshes_ready": count_ready(operator),
        "pods": len(seen.pods),
        "followers_in_trouble": sum(one.trouble is not None for one in operator.followers),
    }


def count_ready(operator: Operator) -> int:
    """How many meshes say that all their hosts are ready."""
    meshes = operator.pictures.meshes.all()
    return sum(text(read_condition(mesh), "status") == "True" for mesh in meshes)


def render_metrics(numbers: Mapping[str, float]) -> str:
    """Numbers as Prometheus reads them."""
    lines: list[str] = []
    for name, value in numbers.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# TYPE {PREFIX}_{name} {kind}", f"{PREFIX}_{name} {float(value):g}"]
    return "\n".join([*lines, ""])
