"""What a connected job hands to a program."""

from __future__ import annotations

import copy
import pickle

import pytest

from milkweed.errors import ServiceMissingError
from milkweed.job.state import JobState
from milkweed.spec import RESERVED_MESH_NAMES, check_mesh_name


@pytest.fixture
def state() -> JobState:
    """Two meshes."""
    return JobState({"trainers": [1, 2], "data-loaders": [3]})


def test_meshes_are_attributes_and_items(state: JobState) -> None:
    """A mesh is reached both ways, and names that are no attributes by item."""
    assert state.trainers is state["trainers"]
    assert state["data-loaders"] == [3]
    assert getattr(state, "data-loaders") == [3]


def test_a_state_is_a_mapping(state: JobState) -> None:
    """Names, values and length, in the order of the declaration."""
    assert list(state) == ["trainers", "data-loaders"]
    assert len(state) == 2
    assert dict(state) == {"trainers": [1, 2], "data-loaders": [3]}
    assert "trainers" in state
    assert state.get("nobody") is None
    assert state == JobState(dict(state))


def test_a_mesh_that_is_not_there_is_named(state: JobState) -> None:
    """A slip is answered with what there is, and with the nearest."""
    with pytest.raises(AttributeError, match=r"no mesh 'trainer' .*did you mean 'trainers'\?"):
        _ = state.trainer
    with pytest.raises(KeyError):
        _ = state["trainer"]
    assert not hasattr(state, "trainer")


def test_a_state_can_be_looked_at(state: JobState) -> None:
    """Completion in a shell knows the meshes, and printing says their names."""
    assert "trainers" in dir(state)
    assert repr(state) == "JobState(trainers, data-loaders)"


def test_a_state_survives_copy_and_pickle(state: JobState) -> None:
    """Rebuilding a state does not look for meshes that are not there yet."""
    for other in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):  # noqa: S301  made in this test
        assert other == state


def test_a_state_does_not_change_with_what_it_was_made_of() -> None:
    """The meshes are those of the moment of connecting."""
    meshes = {"a": 1}
    state = JobState(meshes)
    meshes["b"] = 2
    assert list(state) == ["a"]


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("query_engine", "telemetry"),
        ("query_engine_client", "telemetry"),
        ("telemetry_url", "telemetry"),
        ("dashboard_url", "telemetry"),
        ("admin_url", "admin"),
    ],
)
def test_services_that_are_not_there_say_so(state: JobState, name: str, service: str) -> None:
    """What this version does not have is an error with its name, never a None that fails later."""
    with pytest.raises(ServiceMissingError, match=f"the {service} service"):
        getattr(state, name)


def test_no_mesh_can_hide_an_attribute() -> None:
    """Every public attribute that a state has itself is reserved as a name of meshes."""
    own = [name for name in dir(JobState({})) if not name.startswith("_")]
    assert set(own) <= RESERVED_MESH_NAMES
    for name in own:
        with pytest.raises(ValueError, match="reserved"):
            check_mesh_name(name)
