"""What looks impossible and is not: Slurm itself is asked before a job is refused, and only then."""

from __future__ import annotations

import pytest

from milkweed.backends.slurm.backend import SlurmBackend
from milkweed.errors import SpecError, UnreachableError
from milkweed.spec import JobSpec
from unit.slurm_fake import FakeSlurm
from unit.slurm_jobs import make_spec

REFUSAL = "allocation failure: Requested node configuration is not available"


def trials(slurm: FakeSlurm) -> list[list[str]]:
    return [words[1:] for words in slurm.called("sbatch") if words[0] == "--test-only"]


def refuse(spec: JobSpec) -> SpecError:
    with pytest.raises(SpecError) as caught:
        SlurmBackend().validate(spec)
    return caught.value


def test_what_looks_possible_needs_no_more_questions(cluster: FakeSlurm) -> None:
    """The usual way is one look at the nodes."""
    SlurmBackend().validate(make_spec(2))
    assert [name for name, *_words in cluster.calls] == ["sbatch", "sinfo"]
    assert trials(cluster) == []


def test_nodes_of_a_cloud_that_are_switched_off(cluster: FakeSlurm) -> None:
    """Slurm does not show them, and gives them all the same: of what they have nothing is known."""
    cluster.partitions(debug=4, cloud=2)
    SlurmBackend().validate(make_spec(2, partition="cloud", gpus_per_node=4))
    assert trials(cluster) == []


def test_more_than_a_cloud_has(cluster: FakeSlurm) -> None:
    """It is counted with what Slurm does not show, and Slurm's own word is told, too."""
    cluster.partitions(debug=4, cloud=2)
    error = refuse(make_spec(9, partition="cloud"))
    assert error.what == "meshes.w: 9 hosts, but partition 'cloud' has 2"
    assert REFUSAL in error.seen


def test_the_very_submission_is_tried(cluster: FakeSlurm) -> None:
    """With its arguments and a script like it; nothing is submitted."""
    cluster.partitions(debug=6)
    cluster.would_take()
    SlurmBackend().validate(make_spec(6, gpus_per_node=4, account="mine"))
    [words] = trials(cluster)
    assert {"--account=mine", "--nodes=6", "--gpus-per-node=4", "--exclusive"} <= set(words)
    assert cluster.script.startswith("#!/bin/sh")
    assert cluster.submitted == []


def test_some_nodes_are_shown_and_others_are_not(cluster: FakeSlurm) -> None:
    """Six hosts in a partition that shows four: the others would be switched on, and may have more."""
    cluster.partitions(debug=6)
    SlurmBackend().validate(make_spec(6))
    assert trials(cluster) == []
    assert "1 GPUs on each host, but no node" in refuse(make_spec(1, gpus_per_node=1)).what
    cluster.would_take()
    SlurmBackend().validate(make_spec(1, gpus_per_node=1))
    cluster.would_take(refusal=REFUSAL)
    assert "9 hosts, but partition 'debug' has 6" in refuse(make_spec(9)).what


def test_a_partition_whose_nodes_are_still_to_come(cluster: FakeSlurm) -> None:
    """Nodes may join a cluster while a job waits, so an empty partition is left to Slurm."""
    cluster.partitions(debug=4, dynamic=0)
    SlurmBackend().validate(make_spec(2, partition="dynamic", gpus_per_node=4))
    assert trials(cluster) == []


def test_a_partition_that_is_not_there(cluster: FakeSlurm) -> None:
    """The error lists all partitions, also those that show no nodes."""
    cluster.partitions(debug=4, cloud=2)
    cluster.would_take(refusal="allocation failure: Invalid partition name specified")
    error = refuse(make_spec(1, partition="nosuch"))
    assert error.what == "meshes.w: there is no partition 'nosuch'"
    assert error.hint == "the partitions are: cloud, debug"


def test_a_plugin_of_the_site_chooses_the_partition(cluster: FakeSlurm) -> None:
    """More hosts than the default partition has, and Slurm would start it elsewhere."""
    cluster.partitions(debug=4)
    cluster.would_take()
    SlurmBackend().validate(make_spec(9))


@pytest.mark.parametrize(
    ("settings", "partition", "taken"),
    [
        ({"EnforcePartLimits": "NO", "JobSubmitPlugins": "(null)"}, None, False),
        ({"EnforcePartLimits": "NO", "JobSubmitPlugins": "lua"}, None, True),
        ({"EnforcePartLimits": "NO", "JobSubmitPlugins": "lua"}, "debug", False),
        ({"EnforcePartLimits": "ANY"}, None, True),
        ({}, None, False),
    ],
)
def test_time_limits_that_slurm_itself_does_not_mind(
    cluster: FakeSlurm, settings: dict[str, str], partition: str | None, taken: bool
) -> None:
    """A job that is longer than its partition allows would be taken, and wait for ever."""
    cluster.nodes("n1", limit="1:00:00")
    cluster.partitions(debug=1)
    cluster.cluster("lab", **settings)
    cluster.would_take()
    spec = make_spec(1, time_limit="2:00:00", partition=partition)
    if taken:
        SlurmBackend().validate(spec)
    else:
        assert "more than the 01:00:00 that partition 'debug' allows" in refuse(spec).what


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_qos_may_lift_limits(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Where one is said, the limits of partitions are left to Slurm; how many nodes there are is not."""
    cluster.nodes("n1", limit="1:00:00")
    if by == "variable":
        monkeypatch.setenv("SBATCH_QOS", "long")
    said = {"qos": "long"} if by == "option" else {}
    SlurmBackend().validate(make_spec(1, time_limit="2:00:00", **said))
    assert trials(cluster) == []
    assert "2 hosts, but partition 'debug' has 1" in refuse(make_spec(2, **said)).what


def test_silence_about_what_looks_impossible(cluster: FakeSlurm) -> None:
    """Nothing is refused, and nothing is submitted: it is asked again when Slurm answers."""
    cluster.partitions(debug=4)
    cluster.would_take(refusal="allocation failure: Unable to contact slurm controller")
    with pytest.raises(UnreachableError):
        SlurmBackend().validate(make_spec(9))


def test_what_came_from_a_variable_is_named(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for a partition in the program that stands in the shell; what was said hides the variable."""
    monkeypatch.setenv("SBATCH_PARTITION", "gpuu")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "90")
    expected = (
        "meshes.w: there is no partition 'gpuu' (with SBATCH_PARTITION=gpuu, SBATCH_TIMELIMIT=90)"
    )
    assert refuse(make_spec(1)).what == expected
    expected = "meshes.w: there is no partition 'mine'"
    assert refuse(make_spec(1, partition="mine", time_limit="10")).what == expected
