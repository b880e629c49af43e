"""The page about Kubernetes says what the code does: rights, options, names, examples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from milkweed.backends.kubernetes.settings import MESH_KEYS
from milkweed.backends.kubernetes.start import (
    DEFAULT_PORT,
    JOB_LABEL,
    MESH_LABEL,
    Place,
    authority_name,
    secret_name,
)
from milkweed.compute import Compute
from milkweed.jobfile import parse_jobfile
from milkweed.kube.login import parse_yaml
from milkweed.operator.install import Install, make_install
from milkweed.operator.policy import parse_policy
from milkweed.operator.rights import (
    CLIENT_RULES,
    LEASE_RULES,
    OPERATOR_RULES,
    PROVISION_RULES,
    REVIEW_RULES,
)
from milkweed.option_tables import BUILTIN_OPTIONS, KUBERNETES_OPTIONS
from milkweed.worker.tls import PORT_COUNT

DOC = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text("utf-8")
SECTIONS = dict(
    re.findall(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", DOC, re.MULTILINE | re.DOTALL)
)
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\|[^\n]*\n\|[-|]+\n((?:\|[^\n]*\n)+)", re.MULTILINE)
RULES = {
    "milkweed-operator": OPERATOR_RULES,
    "milkweed-operator-lease": LEASE_RULES,
    "milkweed-client": CLIENT_RULES,
    "milkweed-provision": PROVISION_RULES,
    "milkweed-provision-review": REVIEW_RULES,
}


def blocks(info: str) -> list[str]:
    """The fenced blocks with this info string."""
    return [found[2] for found in BLOCK.finditer(DOC) if found[1] == info]


def rows(section: str) -> list[list[str]]:
    """The cells of the tables of a section, without their heads."""
    lines = [line for table in TABLE.findall(SECTIONS[section]) for line in table.splitlines()]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def keys(section: str) -> set[str]:
    """All words in code of the first column of a section's tables."""
    return {word for row in rows(section) for word in re.findall(r"`(\w+)`", row[0])}


def render(rule: Mapping[str, Any]) -> list[str]:
    """A rule as a row of the page."""
    ([group], [resource]) = rule["apiGroups"], rule["resources"]
    named = "".join(f" named `{name}`" for name in rule.get("resourceNames", ()))
    return [group or "core", f"`{resource}`{named}", ", ".join(rule["verbs"])]


@pytest.mark.parametrize("role", RULES)
def test_rights_are_the_granted_ones(role: str) -> None:
    """Each table is the rules of its role, no more and no less, in their order."""
    assert rows(role) == [render(rule) for rule in RULES[role]]


def test_every_role_that_is_installed_has_a_table() -> None:
    """No role is granted that the page does not show; that of workers has none."""
    cases = (Install(provision=True), Install(provision=True, only=("a",)))
    made = [one for case in cases for one in make_install(case)]
    roles = [one for one in made if one["kind"] in {"Role", "ClusterRole"}]
    assert {one["metadata"]["name"] for one in roles} == set(RULES)
    for one in roles:
        assert one["rules"] == RULES[one["metadata"]["name"]]
    assert rows("milkweed-worker") == []


def test_every_option_has_a_row() -> None:
    """Each key of the block and of a mesh is explained, and none that there is not."""
    assert keys("Options") == {*KUBERNETES_OPTIONS, *MESH_KEYS}
    shown = {row[0].partition("`")[2].partition("`")[0]: row for row in rows("Options")}
    for key, option in KUBERNETES_OPTIONS.items():
        assert ("¹" in shown[key][0]) == option.client, key
        assert all(f"`{word}`" in shown[key][1] for word in option.choices), key


def test_every_field_of_a_compute_has_a_row() -> None:
    """But for its image, of which the next section tells."""
    known = {item.name for item in fields(Compute)}
    assert known - {"image"} <= keys("Compute and Image") <= known


@pytest.mark.parametrize("text", blocks("yaml"))
def test_job_files_parse(text: str) -> None:
    """Every job file on the page is one without mistakes."""
    known = sorted(BUILTIN_OPTIONS)
    made = parse_jobfile(text, "milkweed.yaml", options_of=BUILTIN_OPTIONS.get, backends=known)
    assert made.spec.backend == "kubernetes"


def test_the_policy_is_one() -> None:
    """The example has no mistakes, and denies as is shown."""
    [text] = blocks("yaml policy")
    [rule] = parse_policy(parse_yaml(text)).rules
    assert f"rule {rule.name}: spec.replicas 9 hosts asked for, at most {rule.max_hosts}" in DOC


def test_names_are_the_real_ones() -> None:
    """What objects are called, their labels, and the ports of hosts."""
    job, place = "ae818d35-0000", Place(namespace="training", name="trainers")
    for name in (secret_name(job), authority_name(job), place.service, place.address(0)):
        assert f"`{name}`" in SECTIONS["Names and ports"]
    assert f"`{JOB_LABEL}`" in DOC
    assert f"`{MESH_LABEL}`" in DOC
    assert f"{DEFAULT_PORT} to {DEFAULT_PORT + PORT_COUNT - 1}" in DOC
