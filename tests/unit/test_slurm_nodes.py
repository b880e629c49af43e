"""What `sinfo` of real clusters prints about nodes, and what other sites' nodes look like."""

from __future__ import annotations

from pathlib import Path

import pytest

from milkweed.backends.slurm.text import SINFO_FORMAT, NodeRow, make_sinfo, parse_sinfo

CORPUS = Path(__file__).parents[1] / "corpus" / "slurm"
VERSIONS = ["22.05", "24.11"]


def read(version: str, name: str) -> list[NodeRow]:
    return parse_sinfo((CORPUS / version / f"sinfo-{name}.txt").read_text("utf-8"))


def line(**more: str) -> str:
    """One record as `sinfo` would print it."""
    said = {
        "name": "n1",
        "hostname": "n1",
        "address": "n1",
        "partition": "debug*",
        "available": "up",
        "limit": "infinite",
        "size": "1-infinite",
        "state": "idle",
        "cpus": "4",
        "memory": "2000",
        "gres": "(null)",
        "features": "(null)",
        "reason": "none",
    }
    assert more.keys() <= said.keys()
    return f"node|{'|'.join({**said, **more}.values())}|end\n"


def one(**more: str) -> NodeRow:
    (row,) = parse_sinfo(line(**more))
    return row


def test_the_command_asks_for_each_node_in_each_partition() -> None:
    """Hidden partitions are asked for too, numbers are whole, and the format is the one that is read."""
    assert make_sinfo() == ["sinfo", "-N", "-a", "--noconvert", "-o", SINFO_FORMAT]
    assert SINFO_FORMAT.startswith("node|%N|")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_idle_cluster(version: str) -> None:
    """Every node of every partition is there once, with what it has."""
    rows = read(version, "idle")
    found = {(row.name, row.partition) for row in rows}
    assert len(found) == len(rows)
    assert found == {
        *(
            (f"n{number}", name)
            for number in range(1, 5)
            for name in ("debug", "down", "inactive", "urgent")
        ),
        *((f"n{number}", "short") for number in range(1, 4)),
        ("n1", "hidden"),
    }
    assert {row.state for row in rows} == {"idle"}
    assert all(row.usable for row in rows)
    assert {(row.cpus, row.memory_mb, row.gpus, row.gres) for row in rows} == {
        (4, 2000, 8, "gpu:8")
    }
    assert {(row.hostname, row.address) for row in rows} == {
        (f"n{n}", f"n{n}") for n in range(1, 5)
    }
    assert {(row.features, row.reason) for row in rows} == {((), "")}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_limits_of_partitions(version: str) -> None:
    """Each row carries what its partition allows."""
    found = {
        row.partition: (row.partition_up, row.default, row.max_time_s, row.min_nodes, row.max_nodes)
        for row in read(version, "idle")
    }
    assert found == {
        "debug": (True, True, None, 1, None),
        "down": (False, False, None, 1, None),
        "inactive": (False, False, None, 1, None),
        "urgent": (True, False, None, 1, None),
        "short": (True, False, 1800.0, 1, 2),
        "hidden": (True, False, 216000.0, 1, None),
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_drained_node(version: str) -> None:
    """The reason is the administrator's own text, with its bars; features are a list."""
    rows = {row.name: row for row in read(version, "drained") if row.partition == "debug"}
    assert rows["n4"].state == "drained"
    assert not rows["n4"].usable
    assert rows["n4"].reason == "bad disk | see ticket 12"
    assert rows["n1"].features == ("fast", "big")
    assert [rows[name].usable for name in ("n1", "n2", "n3")] == [True] * 3


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_that_died(version: str) -> None:
    """A star says that it does not answer."""
    rows = {row.name: row for row in read(version, "node-down") if row.partition == "debug"}
    assert (rows["n4"].state, rows["n4"].reason) == ("down*", "Not responding")
    assert [name for name, row in rows.items() if not row.usable] == ["n4"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_whose_prolog_failed(version: str) -> None:
    """Slurm drains a node on which jobs cannot start, and says why."""
    rows = {row.name: row for row in read(version, "launch-failed") if row.partition == "debug"}
    assert (rows["n3"].state, rows["n3"].usable) == ("drained", False)
    assert rows["n3"].reason == "Prolog error"


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("gpu:8", 8),
        ("gpu:a100:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-1,3)", 8),
        ("gpu:a100:4(S:0-1),gpu:v100:2(S:1)", 6),
        ("gpu:1,nic:2", 1),
        ("nic:2,gpu:3", 3),
        ("shard:a100:16,gpu:a100:4", 4),
        ("mygpu:5", 0),
        ("gpu", 0),
        ("gpu:a100", 0),
        ("craynetwork:4", 0),
        ("mps:200", 0),
        ("gpu:mi250x:8(S:0-3),tmpfs:1", 8),
        ("gpu:2g.20gb:3", 3),
    ],
)
def test_gpus_are_counted(gres: str, gpus: int) -> None:
    """All kinds of GPU count, and nothing else does."""
    row = one(gres=gres)
    assert row.gpus == gpus
    assert row.gres == ("" if gres == "(null)" else gres)


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [
        ("1-infinite", 1, None),
        ("2-8", 2, 8),
        ("1", 1, 1),
        ("4", 4, 4),
        ("infinite", 1, None),
        ("0-infinite", 0, None),
        ("1-4096", 1, 4096),
        ("1-4K", 1, 4096),
        ("2K-1M", 2048, 1048576),
        ("1k", 1024, 1024),
    ],
)
def test_sizes_of_jobs_are_read(size: str, low: int, high: int | None) -> None:
    """A range, one number, or no limit; multiples of 1024 may be shortened."""
    row = one(size=size)
    assert (row.min_nodes, row.max_nodes) == (low, high)


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        *(
            (state, True)
            for state in ("idle", "mixed", "allocated", "completing", "planned", "reserved")
        ),
        *(
            (state, True)
            for state in ("idle~", "idle#", "mixed-", "mixed+", "allocated^", "IDLE", "idle$")
        ),
        *(
            (state, False)
            for state in ("down", "down*", "drained", "draining", "drained*", "fail", "failing")
        ),
        *(
            (state, False)
            for state in ("idle*", "maint", "error", "future", "unknown", "inval", "perfctrs", "")
        ),
        *(
            (state, False)
            for state in ("blocked", "powering_down", "powered_down", "reboot", "rebooting")
        ),
    ],
)
def test_states_of_nodes(state: str, usable: bool) -> None:
    """A node that sleeps can be woken; one that does not answer or is being repaired cannot be used."""
    row = one(state=state)
    assert row.usable is usable
    assert row.state == state


def test_other_spellings() -> None:
    """A plus says that others have more; a reason may have several lines."""
    row = one(
        cpus="64+",
        memory="256000+",
        partition="gpu",
        reason="line one\nline | two",
        limit="1-00:00:00",
    )
    assert (row.cpus, row.memory_mb, row.partition, row.default) == (64, 256000, "gpu", False)
    assert row.reason == "line one\nline | two"
    assert row.max_time_s == 86400.0


@pytest.mark.parametrize("version", VERSIONS)
def test_large_limits(version: str) -> None:
    """A limit of 4096 hosts is read, whether the command was kept from shortening it or not."""
    for name in ("large", "large-shortened"):
        found = {row.partition: row.max_nodes for row in read(version, name)}
        assert (found["big"], found["debug"]) == (4096, None)


def test_no_nodes() -> None:
    """A cluster without nodes is no error."""
    assert parse_sinfo("") == []
    assert parse_sinfo("\n") == []


@pytest.mark.parametrize(
    "text",
    [
        "PARTITION AVAIL TIMELIMIT",
        line(cpus="many"),
        line(memory=""),
        line(size="few"),
        line(size="1-K"),
        line(limit="soon"),
        line().removesuffix("|end\n"),
        line() + line()[:20],
        "node|n1|end\n",
    ],
)
def test_what_is_not_a_node_is_refused(text: str) -> None:
    """An error shows what could not be read; output that was cut off is never taken for all there is."""
    with pytest.raises(ValueError, match=r"node") as caught:
        parse_sinfo(text)
    assert text.strip().splitlines()[-1][:12].removeprefix("node|") in str(caught.value)


@pytest.mark.parametrize(
    ("state", "unheard"),
    [
        ("allocated*", True),
        ("mixed*", True),
        ("unknown", True),
        ("unknown*", True),
        ("draining*", True),
        ("maint*", True),
        ("down*", False),
        ("drained*", False),
        ("powered_down*", False),
        ("idle", False),
    ],
)
def test_nodes_that_do_not_answer_slurm(state: str, unheard: bool) -> None:
    """One that Slurm has not given up yet may be back; one that is down as well is not waited for."""
    row = one(state=state)
    assert (row.unheard, row.usable) == (unheard, state == "idle")


@pytest.mark.parametrize(
    ("state", "gone"),
    [
        *((state, True) for state in ("down", "down*", "DRAINED", "drained*", "fail", "error")),
        *((state, True) for state in ("future", "powered_down", "powered_down~")),
        *((state, False) for state in ("idle", "allocated*", "mixed-", "unknown", "")),
        *((state, False) for state in ("draining", "draining@", "failing*", "maint", "reboot^")),
        *((state, False) for state in ("blocked", "inval", "powering_down", "perfctrs")),
    ],
)
def test_nodes_that_can_have_no_job(state: str, gone: bool) -> None:
    """Those that are only taken out of service when their jobs have ended are not among them."""
    assert one(state=state).gone is gone
