"""Changing the sizes of an allocation that lives, and of the follow-up that is to take its place."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import BackendError, UnreachableError
from ...spec import JobSpec
from ...status import HostState
from ..base import Handle, Request
from ..keepers import Answer, ask_all
from ..noted import settle
from ..places import Kept, ask_host, make_door
from . import commands
from .handles import is_kept, load_rows
from .hosts import judge_hosts
from .places import Place, make_places
from .renewal import followers, last_end, next_generation
from .resize import (
    check_release,
    drop_gone,
    drop_lost,
    finish,
    group,
    limit_growth,
    make_growth,
    next_component,
    places_of,
    release,
    surplus,
)
from .shape import Part
from .start import load_parts


class Sized(Kept):
    """A backend of which meshes can be given other sizes."""

    _sleep: Callable[[float], object]

    @abstractmethod
    def _submit(
        self, request: Request, parts: Sequence[Part], *, generation: int, first: int
    ) -> int:
        """Ask for components."""

    def resize(self, handle: Handle, spec: JobSpec) -> Handle:
        """Add what is wanted and not there as components of its own, and release what is not wanted."""
        settle(Path(handle["folder"]), self._sleep)  # what was asked for in vain may come after all
        before = self._hosts_left(handle)
        try:
            return self._resize_all(handle, spec)
        except BackendError as error:
            error.unfinished = self._hosts_left(handle) != before
            raise

    def _hosts_left(self, handle: Handle) -> set[tuple[int, int]]:
        """The hosts that were asked for and not given back, as the job's own files have them."""
        parts = load_parts(Path(handle["folder"]), handle["generation"])
        return {(place.component, place.index) for place in make_places([], parts)}

    def _resize_all(self, handle: Handle, spec: JobSpec) -> Handle:
        """The same, where all that was asked for before was answered."""
        resized = self._resize(handle, spec)
        rows = load_rows(handle, 0.0)
        generation = handle["generation"]
        following = [row for row in followers(rows, generation) if row.liveness.alive]
        if not following:
            return resized
        after = {**resized, "generation": next_generation(following, generation)}
        try:
            after = self._resize(after, spec, follows_until=last_end(rows, generation))
        except UnreachableError:
            raise
        except BackendError:
            # Hosts that are not the declared ones would take nobody's place: another is asked for.
            self._cancel_following(handle)
        return {**resized, "jobs": after["jobs"]}

    def _cancel_following(self, handle: Handle) -> None:
        """Give back the follow-up, with what was added to it just now."""
        following = followers(load_rows(handle, 0.0), handle["generation"])
        if jobs := sorted({row.leader for row in following}):
            commands.run(["scancel", *map(str, jobs)])
            commands.queue.wake()

    def _resize(
        self, handle: Handle, spec: JobSpec, *, follows_until: float | None = None
    ) -> Handle:
        """The same for one generation."""
        folder, generation = Path(handle["folder"]), handle["generation"]
        rows = load_rows(handle, 0.0, generation)
        if finish(spec, rows, load_parts(folder, generation)):
            rows = load_rows(handle, 0.0, generation)
        unwanted = surplus(spec, places_of(rows, load_parts(folder, generation)))
        for places in unwanted.values():
            check_release(places)
        drop_gone(folder, load_parts(folder, generation), rows)
        places = places_of(rows, load_parts(folder, generation))
        lost = [] if unwanted else self._lost(places)
        growth = make_growth(spec, [place for place in places if place not in lost])
        jobs = self._grow(handle, spec, limit_growth(growth, rows), follows_until)
        # Others take their place first: a job that has nothing left has ended.
        for released in unwanted.values():
            release(spec, folder, released, make_door)
        for released in group(lost).values():
            drop_lost(spec, folder, released, make_door)
        return {**handle, "jobs": sorted([*handle["jobs"], *jobs]), "sizes": dict(spec.sizes)}

    def _grow(
        self, handle: Handle, spec: JobSpec, growth: Sequence[Part], follows_until: float | None
    ) -> list[int]:
        """Ask for more components; all of them, or none."""
        folder, generation = Path(handle["folder"]), handle["generation"]
        before = load_parts(folder, generation)
        request = Request(
            spec=spec,
            apply_id=handle["apply_id"],
            keep=is_kept(before),
            follows_until=follows_until,
            # A batch client is there already. Where Slurm ends it, nobody comes any more.
            waits=not any(part["with_client"] for part in before.values()),
        )
        jobs: list[int] = []
        try:
            for part in growth:
                first = next_component(load_parts(folder, generation))
                jobs.append(self._submit(request, [part], generation=generation, first=first))
        except UnreachableError:
            raise
        except BackendError:
            if jobs:
                commands.run(["scancel", *map(str, jobs)])
            added = {
                at: part for at, part in load_parts(folder, generation).items() if at not in before
            }
            drop_gone(folder, added, ())
            raise
        return jobs

    def _lost(self, places: Sequence[Place]) -> list[Place]:
        """The hosts that serve no more: their nodes are down or gone, or their keepers, or their workers."""
        judged = judge_hosts(self._ask(places), nodes_age_s=0.0)
        failed = [each for each in judged if each[1].state is HostState.FAILED]
        return [place for place, status in failed if not status.unheard]

    def _ask(self, places: Sequence[Place]) -> list[tuple[Place, Answer | str]]:
        """Every host's own answer, or why there is none."""
        return ask_all(places, ask_host)
