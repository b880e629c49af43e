"""Logins that fail for a while, as their program does without a network: nothing is known, and no wait ends."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.backends.kubernetes import clients
from milkweed.backends.kubernetes.backend import KubernetesBackend
from milkweed.errors import AccessError
from milkweed.kube.resources import JOBS, Resource
from milkweed.status import Liveness
from unit.kubernetes_jobs import Space, make_spec, mesh_name, submit


def lock_out(space: Space, monkeypatch: pytest.MonkeyPatch, *kinds: Resource) -> None:
    """Nobody can log in any more; with kinds of objects, nobody who asks for those."""
    plurals = {kind.plural for kind in kinds}

    def check(_verb: str, resource: Resource, _namespace: str) -> None:
        if not plurals or resource.plural in plurals:
            raise AccessError("the login program failed", seen="no route to host")

    monkeypatch.setattr(space, "_check", check)


def test_a_login_that_fails_makes_a_job_unknown(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an error nor an end: the reason is told, and who waits goes on waiting."""
    handle = submit()
    backend = KubernetesBackend()
    space.add_pod(f"{mesh_name()}-0")
    assert backend.glance(handle).liveness is Liveness.RUNNING
    lock_out(space, monkeypatch)
    space.go_away()
    status = backend.glance(handle)
    assert status.liveness is Liveness.UNKNOWN
    assert status.reason == "the login program failed: no route to host"


def test_a_login_that_never_worked_is_an_error(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever begins with one hears so at once."""
    handle = submit()
    lock_out(space, monkeypatch)
    with pytest.raises(AccessError, match="the login program failed"):
        KubernetesBackend().glance(handle)


def test_a_login_that_fails_tells_no_end_of_a_client(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods are known by a watch that is open; nothing else is known of a client that has none."""
    monkeypatch.setattr(clients, "_told", {})
    handle: dict[str, Any] = submit(make_spec({"w": 1}), client_script=("true",))
    space.add_pod(f"{mesh_name()}-0")
    backend = KubernetesBackend()
    lock_out(space, monkeypatch, JOBS)
    status = backend.glance(handle)
    assert (status.liveness, status.reason) == (Liveness.RUNNING, "")
