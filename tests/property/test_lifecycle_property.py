"""Whatever happens between two steps, nothing is lost and nothing leaks."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings, strategies as st

from milkweed.backends.base import Capabilities
from milkweed.job.load import SpecJob
from milkweed.spec import JobSpec
from milkweed.testing import POINTS, crash_at
from property.story import Op, make_spec, story

NAMES = st.sampled_from(["a", "b", "trainers", "x-1"])
SIZES = st.dictionaries(NAMES, st.integers(1, 3), min_size=1, max_size=3)
ENV = st.dictionaries(
    st.sampled_from(["A", "B_1"]), st.text(max_size=5).filter(lambda t: "\0" not in t)
)
SPECS = st.builds(make_spec, SIZES, env=ENV)
WORDS = st.sampled_from([None, "ask", "replace", "new"])
DEEDS = (
    *("state", "state", "apply", "kill", "change", "change", "plan", "restart"),
    *("silence", "refuse", "lose", "garble", "end", "fail", "requeue"),
)
OPS = st.tuples(st.sampled_from(DEEDS), st.integers(0, 1), st.integers(0, 2), WORDS)
CRASHES = st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 4)), max_size=2)
CAPABILITIES = st.builds(Capabilities, queued=st.booleans(), resize=st.booleans())


@given(SPECS, CAPABILITIES)
def test_asking_twice_is_asking_once(spec: JobSpec, capabilities: Capabilities) -> None:
    """apply() twice and state() twice submit once and keep the same allocation, for new clients, too."""
    with story([spec], capabilities) as it:
        job = SpecJob(spec)
        first = job.state(it.path)
        ids = [job.apply_id]
        assert job.state(it.path) is first
        job.apply()
        ids.append(job.apply_id)
        for _ in range(2):
            other = SpecJob(spec)
            assert other.state(it.path) == first
            other.apply()
            ids.append(other.apply_id)
        assert len(set(ids)) == 1
        assert it.world.count("submit") == 1
        assert it.world.count("cancel") == 0


@settings(max_examples=300)
@given(
    st.lists(SPECS, min_size=3, max_size=3),
    CAPABILITIES,
    st.lists(OPS, min_size=1, max_size=12),
    CRASHES,
    st.frozensets(st.integers(0, 30), max_size=4),
)
def test_nothing_is_lost_and_nothing_leaks(
    specs: list[JobSpec],
    capabilities: Capabilities,
    ops: list[Op],
    crashes: list[tuple[str, int]],
    silent: frozenset[int],
) -> None:
    """Crashes, changes, refusals and silence, in any order: one living allocation per path, all known."""
    with story(specs, capabilities) as it, contextlib.ExitStack() as stack:
        it.world.unreachable_at = silent
        for point, nth in crashes:
            stack.enter_context(crash_at(point, nth))
        for op in ops:
            it.play(op)
        stack.close()
        it.recover(specs[0])
        it.end_all()


QUIET = ("apply", "apply", "kill", "silence", "refuse", "lose", "garble", "end", "fail")


@given(SPECS, CAPABILITIES, st.lists(st.sampled_from(QUIET), max_size=10))
def test_without_a_path_nothing_leaks_either(
    spec: JobSpec, capabilities: Capabilities, deeds: list[str]
) -> None:
    """A job that is only applied has at most one living allocation, and ends it without a trace."""
    with story([spec], capabilities) as it:
        job = SpecJob(spec, on_change="replace")
        for deed in deeds:
            it.play_alone(deed, job)
            assert len(it.world.alive) <= 1
            assert set(it.world.alive) <= {job.apply_id}
        it.world.calm_down()
        job.kill()
        it.end_all()
