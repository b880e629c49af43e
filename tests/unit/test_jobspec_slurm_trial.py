"""Steps that look impossible on a Slurm cluster and are not: Slurm itself is asked before one is refused."""

from __future__ import annotations

import pytest

from milkweed.errors import SpecError, UnreachableError
from milkweed.jobspec import load_runs
from milkweed.jobspec.graph import Auth, Shape, Step
from milkweed.jobspec.transformers.slurm import Transformer
from unit.jobspec_slurm_runs import graph, job
from unit.slurm_fake import FakeSlurm

REFUSAL = "allocation failure: Requested node configuration is not available"
NINE = Shape(nodes=9, slots=9)


def check(*found: Step) -> None:
    made = Transformer()
    made.check_cluster(made.render(graph(*found)))


def trials(slurm: FakeSlurm) -> list[list[str]]:
    return [words[1:] for words in slurm.called("sbatch") if words[0] == "--test-only"]


@pytest.mark.usefixtures("home")
def test_what_looks_possible_needs_no_more_questions(cluster: FakeSlurm) -> None:
    """The usual way is one look at the nodes."""
    check(job("a"), job("b"))
    assert [name for name, *_words in cluster.calls] == ["sbatch", "sinfo"]
    assert trials(cluster) == []


@pytest.mark.usefixtures("home")
def test_nodes_that_slurm_does_not_show(cluster: FakeSlurm) -> None:
    """Nodes of a cloud that are switched off are counted; of what they have nothing is known."""
    cluster.partitions(debug=9, cloud=2)
    check(job("a", shape=NINE), job("b", queue="cloud", shape=Shape(gpus_per_slot=4)))
    assert trials(cluster) == []


@pytest.mark.usefixtures("home")
def test_the_very_submission_is_tried(cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin of the site may place it elsewhere; what holds a secret is kept from the trial, too."""
    monkeypatch.setenv("SOURCE", "s3cret")
    cluster.partitions(debug=4)
    cluster.would_take()
    auth = Auth(id="auth", secret="token", variable="SOURCE")
    check(auth, job("a", "auth", shape=NINE, bank="mine"))
    [words] = trials(cluster)
    assert {"--account=mine", "--nodes=9", "--parsable"} <= set(words)
    assert cluster.script.startswith("#!/bin/sh")
    assert "SOURCE" not in cluster.environment("sbatch")
    assert cluster.submitted == []


@pytest.mark.usefixtures("home")
def test_what_slurm_would_not_start_either_is_refused(cluster: FakeSlurm) -> None:
    """By what is known of all nodes, with Slurm's own word; no other step is submitted."""
    cluster.partitions(debug=6)
    with pytest.raises(SpecError, match="step a: 9 hosts, but partition 'debug' has 6") as caught:
        Transformer().run(Transformer().render(graph(job("b"), job("a", shape=NINE))))
    assert REFUSAL in caught.value.seen
    assert (cluster.submitted, load_runs()) == ([], [])


@pytest.mark.usefixtures("home")
def test_what_nobody_said_may_come_from_variables(
    cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As sbatch takes it: the error names the variable."""
    cluster.partitions(debug=4)
    monkeypatch.setenv("SBATCH_PARTITION", "gpuu")
    check(job("a", queue="debug"))
    with pytest.raises(SpecError, match=r"'gpuu' \(with SBATCH_PARTITION=gpuu\)"):
        check(job("a"))


@pytest.mark.usefixtures("home")
def test_silence_about_what_looks_impossible(cluster: FakeSlurm) -> None:
    """Nothing is refused, and nothing is submitted: it is asked again when Slurm answers."""
    cluster.partitions(debug=4)
    cluster.would_take(refusal="allocation failure: Unable to contact slurm controller")
    with pytest.raises(UnreachableError):
        check(job("a", shape=NINE))
