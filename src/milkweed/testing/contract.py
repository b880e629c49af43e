"""What every backend promises, as a class of tests that a backend runs against itself."""

# ruff: noqa: S101  assert is how pytest is spoken to

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..backends.base import Backend, Handle, Lists, LogLine, Request, Resizes
from ..errors import MilkweedError
from ..hosts import Host, cut_hosts
from ..spec import JobSpec
from ..status import Liveness, Status, is_legal


@dataclass(frozen=True)
class Tried:
    """One allocation that a test got."""

    backend: Backend
    spec: JobSpec
    apply_id: str
    handle: Handle

    def poll(self) -> Status:
        """Ask how it is."""
        return self.backend.poll(self.handle)


class BackendContract:
    """Subclass it, give it a pytest fixture `backend` and a `make_spec()`, and run pytest.

    Every test gets its allocations from the real scheduler and ends them, whatever happens.
    """

    start_timeout_s = 60.0
    """How long an allocation may take until every host is ready."""
    end_timeout_s = 60.0
    """How long a cancelled allocation may still look alive."""
    pause_s = 0.05
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    # What a backend's author says

    def make_spec(self) -> JobSpec:
        """A job the scheduler can give: two meshes are best, and two hosts in one of them."""
        raise NotImplementedError("a contract needs make_spec()")

    def make_another(self, backend: Backend) -> Backend:
        """A second object for the same scheduler, as a second program would make it."""
        return type(backend)()

    # Tests

    def test_a_backend_has_all_methods(self, backend: Backend) -> None:
        """A backend has a name, capabilities and every method of the seam."""
        assert isinstance(backend, Backend), f"{backend!r} lacks a part of the Backend protocol"
        assert backend.name.isidentifier(), f"{backend.name!r} cannot be the name of a block"
        if backend.capabilities.resize:
            assert isinstance(backend, Resizes), "it says resize, and has no resize()"

    def test_an_allocation_from_birth_to_end(self, backend: Backend) -> None:
        """What was submitted is found, runs, has hosts, and is gone when cancel returns."""
        with self.allocation(backend) as it:
            assert backend.find(it.apply_id) is not None, "submitted, and find() has nothing"
            assert it.poll().liveness is not Liveness.ENDED, "it ended at once"
            self.wait_ready(it)
            assert backend.hosts(it.handle), "it runs, and has no hosts"
            backend.cancel(it.handle)
            self.assert_ended(it)

    def test_an_unknown_id_is_not_found(self, backend: Backend) -> None:
        """An id that nobody submitted is certainly not there, and saying so is not an error."""
        assert backend.find(str(uuid.uuid4())) is None

    def test_a_handle_is_plain_data(self, backend: Backend) -> None:
        """A handle survives being written as JSON, and a second program can use it."""
        with self.allocation(backend) as it:
            copy = json.loads(json.dumps(it.handle))
            assert copy == it.handle, "the handle changes when it is written as JSON and read back"
            other = Tried(self.make_another(backend), it.spec, it.apply_id, copy)
            assert other.poll().liveness.alive, "a second program sees no living allocation"
            other.backend.cancel(copy)
            self.assert_ended(it)

    def test_a_lost_handle_is_found_by_the_id(self, backend: Backend) -> None:
        """With only the id left, a second program finds the allocation and can end it."""
        with self.allocation(backend) as it:
            other = self.make_another(backend)
            found = other.find(it.apply_id)
            assert found is not None, "find() has nothing for the id that was submitted"
            assert other.poll(found).liveness.alive
            other.cancel(found)
            self.assert_ended(it)

    def test_the_living_are_listed(self, backend: Backend) -> None:
        """Where the scheduler can be asked for all allocations, it names a living one and no ended one."""
        other = self.make_another(backend)
        if not isinstance(other, Lists):
            return
        with self.allocation(backend) as it:
            listed = other.allocations()
            assert it.apply_id in listed, "submitted, and allocations() has nothing of it"
            assert listed[it.apply_id] == it.spec.name, "it is listed under another name"
            backend.cancel(it.handle)
            self.assert_ended(it)
            assert it.apply_id not in other.allocations(), "it has ended, and is still listed"

    def test_looking_changes_nothing(self, backend: Backend) -> None:
        """Polling and finding, however often, end nothing, and only legal changes are seen."""
        with self.allocation(backend) as it:
            self.wait_ready(it)
            before = json.dumps(it.handle)
            seen = [self.look(it).liveness for _ in range(3)]
            assert json.dumps(it.handle) == before, "poll() changed the handle it was given"
            assert all(live.alive for live in seen), f"looked three times: {seen}"
            assert all(is_legal(*pair) for pair in pairwise(seen))

    def test_two_allocations_do_not_meet(self, backend: Backend) -> None:
        """Two submissions are two allocations: ending one leaves the other alone."""
        with self.allocation(backend) as one, self.allocation(backend) as two:
            assert one.handle != two.handle, "two ids share one handle"
            self.wait_ready(one)
            self.wait_ready(two)
            addresses = {host.address for host in backend.hosts(one.handle)}
            assert addresses.isdisjoint(host.address for host in backend.hosts(two.handle))
            backend.cancel(one.handle)
            self.assert_ended(one)
            assert two.poll().liveness.alive, "ending one allocation ended the other"

    def test_hosts_fill_the_meshes(self, backend: Backend) -> None:
        """Hosts can be cut into the declared meshes: ranks from 0, each with its own address."""
        with self.allocation(backend) as it:
            self.wait_ready(it)
            hosts = backend.hosts(it.handle)
            self.assert_meshes(it.spec, hosts)
            assert list(hosts) == list(backend.hosts(it.handle)), "asked twice, the hosts differ"

    def test_cancelling_twice_is_fine(self, backend: Backend) -> None:
        """Ending what has ended already is no error."""
        with self.allocation(backend) as it:
            backend.cancel(it.handle)
            backend.cancel(it.handle)
            self.assert_ended(it)

    def test_ended_stays_ended(self, backend: Backend) -> None:
        """After the end, every look says ended, and a search finds nothing alive."""
        with self.allocation(backend) as it:
            backend.cancel(it.handle)
            self.assert_ended(it)
            assert [it.poll().liveness for _ in range(3)] == [Liveness.ENDED] * 3
            found = backend.find(it.apply_id)
            assert found is None or backend.poll(found).liveness is Liveness.ENDED

    def test_logs_can_be_read(self, backend: Backend) -> None:
        """The lines of all hosts, or of one, can be read; a host that is not there is an error."""
        with self.allocation(backend) as it:
            self.wait_ready(it)
            assert all(isinstance(line, LogLine) for line in self.read_logs(it, None))
            meshes = cut_hosts(it.spec.sizes, backend.hosts(it.handle))
            first = next(iter(meshes.values()))[0].label
            assert {line.host for line in self.read_logs(it, first)} <= {first}
            with self.refused("logs of a host that is not there"):
                self.read_logs(it, "nobody/0")

    def test_sizes_change_and_nothing_else(self, backend: Backend) -> None:
        """Where sizes can change, an allocation that grows keeps the hosts it has."""
        if not backend.capabilities.resize or not isinstance(backend, Resizes):
            return
        with self.allocation(backend) as it:
            self.wait_ready(it)
            before = {host.address for host in backend.hosts(it.handle)}
            more = it.spec.resized({name: size + 1 for name, size in it.spec.sizes.items()})
            grown = Tried(backend, more, it.apply_id, backend.resize(it.handle, more))
            self.wait_ready(grown)
            self.assert_meshes(more, backend.hosts(grown.handle))
            assert before <= {host.address for host in backend.hosts(grown.handle)}
            small = Tried(backend, it.spec, it.apply_id, backend.resize(grown.handle, it.spec))
            self.wait_ready(small)
            self.assert_meshes(it.spec, backend.hosts(small.handle))

    # What tests are made of; public, because authors add tests of their own

    @contextlib.contextmanager
    def allocation(self, backend: Backend) -> Generator[Tried]:
        """An allocation that ends with the block."""
        spec = self.make_spec()
        backend.validate(spec)
        apply_id = str(uuid.uuid4())
        try:
            handle = backend.submit(Request(spec=spec, apply_id=apply_id))
            yield Tried(backend, spec, apply_id, handle)
        finally:
            found = backend.find(apply_id)
            if found is not None:
                backend.cancel(found)

    def look(self, it: Tried) -> Status:
        """Read everything that can be read."""
        assert it.backend.find(it.apply_id) is not None, "a living allocation was not found"
        it.backend.hosts(it.handle)
        return it.poll()

    def wait_ready(self, it: Tried) -> None:
        """Wait until every host is ready; an end or a failed host ends the wait."""

        def ready(status: Status) -> bool:
            assert status.liveness is not Liveness.ENDED, f"it ended: {status.reason}"
            assert not status.failed_hosts, f"hosts failed: {status.failed_hosts}"
            return status.ready

        self._wait(it, ready, self.start_timeout_s, "ready")

    def assert_ended(self, it: Tried) -> None:
        """Wait until the scheduler says that it has ended."""
        self._wait(
            it, lambda status: status.liveness is Liveness.ENDED, self.end_timeout_s, "ended"
        )

    def _wait(self, it: Tried, done: Callable[[Status], bool], timeout_s: float, goal: str) -> None:
        status = it.poll()
        waited_s = 0.0
        while not done(status):
            assert waited_s < timeout_s, f"not {goal} after {timeout_s:g} s: {status.describe()}"
            self.sleep(self.pause_s)
            waited_s += self.pause_s
            status = it.poll()

    def assert_meshes(self, spec: JobSpec, hosts: Sequence[Host]) -> None:
        """Check that hosts are what the spec declares."""
        meshes = cut_hosts(spec.sizes, hosts)
        for name, size in spec.sizes.items():
            assert [host.rank for host in meshes[name]] == list(range(size))
        addresses = [host.address for cut in meshes.values() for host in cut]
        assert all(addresses), "a ready host has no address"
        assert len(set(addresses)) == spec.host_count, "two hosts have one address"

    def read_logs(self, it: Tried, host: str | None) -> list[Any]:
        """What is in the logs now."""
        return list(it.backend.logs(it.handle, host, follow=False))

    @contextlib.contextmanager
    def refused(self, what: str) -> Generator[None]:
        """Check that something is refused with an error of milkweed's, which explains itself."""
        try:
            yield
        except MilkweedError:
            return
        raise AssertionError(f"not refused: {what}")
