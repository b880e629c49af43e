"""Jobs that end because a node failed: whose node it was, and what its host wrote last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.slurm import commands
from milkweed.backends.slurm.places import PartData
from milkweed.backends.slurm.status import explain_end
from unit.slurm_fake import START_S, FakeSlurm, part, row, shown, write_log

NODES = ("n1", "n2", "n3")
END = "Slurm job 7 is NODE_FAIL: a node failed"


@pytest.fixture
def logs(slurm: FakeSlurm, tmp_path: Path) -> Path:
    """The folder of a job that Slurm ended for a node; the nodes are as `show` says."""
    slurm.answer("scontrol", shown(state="NODE_FAIL", code="0:15"))
    for number in range(len(NODES)):
        write_log(tmp_path / f"w.{number}.log", f"of w/{number}\n")
    return tmp_path


def show(slurm: FakeSlurm, *names: str, state: str = "down*") -> None:
    """The cluster has these nodes."""
    slurm.nodes(*names, state=state, reason="Not responding")


def noted(logs: Path, **more: Any) -> PartData:
    """Three hosts on three nodes, as a client has noted it in this run of the job."""
    nodes = {str(index): name for index, name in enumerate(NODES)}
    hosts = [f"w/{number}" for number in range(len(NODES))]
    said = {"logs": str(logs), "record_folder": str(logs), "nodes": nodes, "nodes_start": START_S}
    return part(*hosts, **{**said, **more})


def explain(data: PartData, folder: Path, *, state: str = "NODE_FAIL") -> list[str]:
    """How the job ended, line by line."""
    return explain_end([row(state=state)], (7,), folder, {0: data}).reason.splitlines()


def test_the_host_on_the_node_that_failed_is_named_with_its_last_lines(
    slurm: FakeSlurm, logs: Path
) -> None:
    """Slurm's word on the node after its failure, and the log of the host that was there; no other's."""
    show(slurm, *NODES, state="idle")
    commands.load_nodes()
    show(slurm, "n2")
    assert explain(noted(logs), logs) == [
        END,
        "host w/1 was on node n2; Slurm says that node n2 is down*: Not responding",
        "  of w/1",
    ]


def test_slurm_may_name_a_node_that_is_back_already(slurm: FakeSlurm, logs: Path) -> None:
    """Newer versions say which node it was: one that was restarted is in order when it is looked at."""
    said = shown(state="NODE_FAIL", code="0:15")
    slurm.answer("scontrol", said.replace(" Dependency", " FailedNode=n3 Dependency"))
    show(slurm, *NODES, state="idle")
    assert explain(noted(logs), logs) == [END, "host w/2 was on node n3, which failed", "  of w/2"]


def test_what_was_noted_in_an_earlier_run_names_nobody(slurm: FakeSlurm, logs: Path) -> None:
    """The job was put back into the queue since, and had other nodes: no host is better than the wrong one."""
    show(slurm, "n2")
    assert explain(noted(logs, nodes_start=START_S - 600), logs) == [END]


def test_a_node_that_nobody_tells_of_names_nobody(slurm: FakeSlurm, logs: Path) -> None:
    """All nodes are in order again, or Slurm does not show them: the end is told all the same."""
    show(slurm, *NODES, state="idle")
    assert explain(noted(logs), logs) == [END]
    slurm.answer("sinfo", err="sinfo: error\n", code=1)
    assert explain(noted(logs), logs) == [END]


def test_a_failure_of_many_nodes_is_told_in_a_few_lines(slurm: FakeSlurm, logs: Path) -> None:
    """A switch takes a hundred nodes with it: the first hosts are told of, and how many more there are."""
    names = [f"n{number}" for number in range(100)]
    show(slurm, *names)
    data = part(
        *(f"w/{number}" for number in range(100)),
        logs=str(logs),
        record_folder=str(logs),
        nodes={str(number): name for number, name in enumerate(names)},
        nodes_start=START_S,
    )
    lines = explain(data, logs)
    assert len(lines) < 20
    assert lines[-1] == "96 more hosts were on nodes that failed"


@pytest.mark.parametrize("state", ["TIMEOUT", "CANCELLED", "PREEMPTED", "COMPLETED"])
def test_other_ends_ask_for_no_nodes(slurm: FakeSlurm, logs: Path, state: str) -> None:
    """A node that is down has nothing to do with them."""
    slurm.answer("scontrol", shown(state=state))
    show(slurm, "n2")
    assert not any("was on node" in line for line in explain(noted(logs), logs, state=state))
    assert slurm.called("sinfo") == []


def test_a_job_that_never_started_has_no_host_on_a_node(slurm: FakeSlurm, logs: Path) -> None:
    """Slurm may tell no start, and then nobody can have noted anything of this run."""
    show(slurm, "n2")
    data = part("w/0", logs=str(logs), record_folder=str(logs))
    lost = row(state="NODE_FAIL", start=None)
    assert explain_end([lost], (7,), logs, {0: data}).reason == END
