"""A way to a pod as one word, so that it can stand in an address."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from urllib.parse import quote, unquote

from .api import Api
from .config import load_config
from .forward import Forward, dial

_SAFE = "/:@.-_~+=, "


@functools.cache
def api_of(context: str | None, kubeconfig: str | None) -> Api:
    """The API server of a context; one for the life of the program."""
    return Api(load_config(context, kubeconfig))


def render_via(context: str, kubeconfig: str | None, namespace: str, pod: str) -> str:
    """The word for a pod behind an API server."""
    return "|".join(quote(word, safe=_SAFE) for word in (context, kubeconfig or "", namespace, pod))


@functools.cache
def forward_via(via: str, port: int, open_port: Callable[..., Forward] = Forward) -> int:
    """The port of this machine that leads to a port of the pod; it stays for the life of the program."""
    api, namespace, pod = _parse_via(via)
    return open_port(api, namespace, pod, port).port


def dial_via(via: str, port: int, dial: Callable[..., socket.socket] = dial) -> socket.socket:
    """A socket whose other end is a port of the pod that the word names."""
    api, namespace, pod = _parse_via(via)
    return dial(api, namespace, pod, port)


def _parse_via(via: str) -> tuple[Api, str, str]:
    context, kubeconfig, namespace, pod = map(unquote, via.split("|"))
    return api_of(context or None, kubeconfig or None), namespace, pod
