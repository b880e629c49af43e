"""The policy: who may have what. Every mistake in it is named, and what it does not allow is denied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.operator.admission import (
    Usage,
    Verdict,
    admit,
)
from milkweed.operator.podcheck import QUEUE
from milkweed.operator.policy import Caller, Policy, Rule, load_policy, matches, parse_policy
from unit.operator_asked import RULE, gpu_mesh, make_rule
from unit.operator_runs import make_mesh

TRAINER = Caller("system:serviceaccount:team:trainer", ["system:serviceaccounts:team"])


# Reading


def test_a_whole_rule_is_read() -> None:
    """Every key of the file has its place."""
    rule = make_rule(
        groups=["g"],
        maxTotalHosts=8,
        maxTotalGpus=32,
        priorityClasses=["low"],
        queues=["q"],
        volumes=["emptyDir", "hostPath"],
        secrets=["keys"],
        podServiceAccounts=["worker"],
        capabilities=["IPC_LOCK"],
        privileged=True,
    )
    assert rule == Rule(
        name="research",
        service_accounts=("team/*",),
        groups=("g",),
        namespaces=("team", "scratch-*"),
        images=("worker:*", "registry.example.com/ml/*"),
        max_hosts=4,
        max_gpus=16,
        max_total_hosts=8,
        max_total_gpus=32,
        priority_classes=("low",),
        queues=("q",),
        volumes=("emptyDir", "hostPath"),
        secrets=("keys",),
        pod_service_accounts=("worker",),
        capabilities=("IPC_LOCK",),
        privileged=True,
    )


def test_what_is_not_said_is_the_careful_choice() -> None:
    """No limit is forgotten: those of one mesh must be said."""
    rule = make_rule()
    assert (rule.privileged, rule.secrets, rule.queues, rule.capabilities) == (False, (), (), ())
    assert "hostPath" not in rule.volumes
    assert "secret" not in rule.volumes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"maxHosts": "many"}, "rules[0].maxHosts: a whole number from 0 on, not 'many'"),
        ({"maxHosts": -1}, "rules[0].maxHosts: a whole number from 0 on, not -1"),
        ({"maxGpus": True}, "rules[0].maxGpus: a whole number from 0 on, not True"),
        ({"maxGpus": 1.5}, "rules[0].maxGpus: a whole number from 0 on, not 1.5"),
        ({"maxTotalGpus": None}, "rules[0].maxTotalGpus: a whole number from 0 on, not None"),
        ({"images": "worker:1"}, "rules[0].images: a list of texts, not 'worker:1'"),
        ({"images": [1]}, "rules[0].images: a list of texts, not [1]"),
        ({"namespaces": [""]}, "rules[0].namespaces: a list of texts, not ['']"),
        ({"privileged": "yes"}, "rules[0].privileged: true or false, not 'yes'"),
        ({"name": "My Rule"}, "rules[0].name: lowercase letters, digits and dashes"),
        ({"name": None}, "rules[0].name: lowercase letters, digits and dashes"),
        ({"maxHost": 3}, "rules[0].maxHost: there is no such key; did you mean 'maxHosts'?"),
        ({"serviceAccounts": []}, "rules[0]: serviceAccounts or groups must say whom it is for"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], words: str) -> None:
    """The field, what it should be, and what is there."""
    with pytest.raises(SpecError) as caught:
        make_rule(**change)
    assert words in caught.value.seen


@pytest.mark.parametrize("key", ["name", "namespaces", "images", "maxHosts", "maxGpus"])
def test_what_must_be_said(key: str) -> None:
    """A rule without limits would be no rule."""
    rule = {name: value for name, value in RULE.items() if name != key}
    with pytest.raises(SpecError) as caught:
        parse_policy({"rules": [rule]})
    assert f"rules[0].{key}: missing" in caught.value.seen


def test_all_mistakes_are_told_at_once() -> None:
    """Nobody mends a policy one mistake a time."""
    data = {"rule": 1, "rules": [{**RULE, "maxHosts": "x"}, 3, {**RULE, "maxGpus": "y"}]}
    with pytest.raises(SpecError) as caught:
        parse_policy(data)
    assert caught.value.what == "the policy is wrong in 4 places"
    assert caught.value.seen.splitlines() == [
        "rule: there is no such key; did you mean 'rules'?",
        "rules[0].maxHosts: a whole number from 0 on, not 'x'",
        "rules[1]: a rule is a mapping",
        "rules[2].maxGpus: a whole number from 0 on, not 'y'",
    ]


@pytest.mark.parametrize("data", [None, [], "x", {}, {"rules": None}, {"rules": {}}])
def test_what_is_no_policy(data: Any) -> None:
    """Nothing is not taken for a policy that denies, nor for one that allows."""
    with pytest.raises(SpecError):
        parse_policy(data)


def test_no_rules_are_a_policy() -> None:
    """It denies everything."""
    assert parse_policy({"rules": []}) == Policy([])


def test_two_rules_of_one_name() -> None:
    """Totals are counted by name, so names are used once."""
    with pytest.raises(SpecError) as caught:
        parse_policy({"rules": [RULE, RULE]})
    assert "two are named 'research'" in caught.value.seen


def test_a_policy_in_a_file(tmp_path: Path) -> None:
    """As YAML; an error names the file."""
    path = tmp_path / "policy.yaml"
    path.write_text(
        "rules:\n- name: a\n  groups: ['*']\n  namespaces: [x]\n  images: ['*']\n"
        "  maxHosts: 1\n  maxGpus: 0\n"
    )
    assert load_policy(path).rules[0].name == "a"
    path.write_text("rules: 1")
    with pytest.raises(SpecError, match=r"policy\.yaml"):
        load_policy(path)
    path.write_text("rules: [")
    with pytest.raises(SpecError, match="cannot be read"):
        load_policy(path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_policy(tmp_path / "missing")


# Whom is it for?


@pytest.mark.parametrize(
    ("caller", "yes"),
    [
        (TRAINER, True),
        (Caller("system:serviceaccount:other:trainer"), False),
        (Caller("system:serviceaccount:team"), False),
        (Caller("team/trainer"), False),
        (Caller("anybody", ["vision"]), True),
        (Caller("anybody", ["visions"]), False),
        (Caller("anybody"), False),
    ],
)
def test_whom_a_rule_is_for(caller: Caller, yes: bool) -> None:
    """ServiceAccounts by namespace and name, others by group; a user who is called alike is nobody."""
    assert make_rule(groups=["vision"]).is_for(caller) is yes


def test_patterns() -> None:
    """A star is anything, and everything else is itself."""
    assert matches("a/b/c", ["a/*"])
    assert not matches("A/b", ["a/*"])
    assert not matches("ab", ["a", "b"])
    assert not matches("x", [])


# What it allows


def ask(mesh: dict[str, Any], *rules: Rule, used: Usage | None = None) -> Verdict:
    policy = Policy(rules or [make_rule()])
    usage = {"research": used} if used else {}
    return admit(policy, TRAINER, mesh, usage, namespace="team")


def complaints(verdict: Verdict) -> list[str]:
    return [f"{one.field}: {one.text}" for one in verdict.violations]


def test_what_a_rule_allows() -> None:
    """Its name is told."""
    verdict = ask(gpu_mesh(4, 4))
    assert verdict.rule is not None
    assert verdict.rule.name == "research"


@pytest.mark.parametrize(
    ("mesh", "used", "words"),
    [
        (make_mesh(replicas=6), None, "spec.replicas: 6 hosts asked for, at most 4: 2 too many"),
        (gpu_mesh(4, 8), None, "spec.podTemplate: 32 GPUs asked for, at most 16: 16 too many"),
        (
            make_mesh(replicas=3),
            Usage(hosts=6),
            "spec.replicas: 3 hosts asked for beside 6 in use, at most 8: 1 too many",
        ),
        (
            gpu_mesh(2, 8),
            Usage(gpus=20),
            "spec.podTemplate: 16 GPUs asked for beside 20 in use, at most 32: 4 too many",
        ),
    ],
    ids=["hosts", "GPUs", "hosts in total", "GPUs in total"],
)
def test_limits_say_by_how_much(mesh: dict[str, Any], used: Usage | None, words: str) -> None:
    """Whoever is denied knows what would be allowed."""
    verdict = ask(mesh, make_rule(maxTotalHosts=8, maxTotalGpus=32), used=used)
    assert verdict.rule is None
    assert complaints(verdict) == [words]


def test_the_first_rule_that_allows_counts() -> None:
    """Rules add up; each denial is named with its rule when none allows."""
    small, large = make_rule(), make_rule(name="large", maxHosts=100)
    allowed = ask(make_mesh(replicas=50), small, large).rule
    assert allowed is not None
    assert allowed.name == "large"
    denied = ask(make_mesh(replicas=500), small, large)
    assert [one.rule for one in denied.violations] == ["research", "large"]


def test_whom_no_rule_is_for() -> None:
    """They are told so, and nothing of the rules of others."""
    verdict = admit(Policy([make_rule()]), Caller("stranger"), make_mesh(), {}, namespace="team")
    assert [one.text for one in verdict.violations] == ["no rule is for stranger"]


def test_namespaces() -> None:
    """Only those that the rule names."""
    rule = make_rule()
    assert admit(Policy([rule]), TRAINER, make_mesh(), {}, namespace="scratch-1").rule == rule
    denied = admit(Policy([rule]), TRAINER, make_mesh(), {}, namespace="kube-system")
    assert complaints(denied) == ["metadata.namespace: 'kube-system' is not among team, scratch-*"]


# Queues and priorities


def test_a_queue_must_be_named_where_there_are_some() -> None:
    """Else a mesh would go past them."""
    rule = make_rule(queues=["train-*"])
    assert "is missing; one of train-*" in complaints(ask(make_mesh(), rule))[0]
    assert ask(make_mesh(labels={QUEUE: "train-1"}), rule).rule
    assert "'other' is not allowed" in complaints(ask(make_mesh(labels={QUEUE: "other"}), rule))[0]


def test_no_queue_may_be_named_where_there_are_none() -> None:
    """Neither on the mesh nor on its pods."""
    assert not ask(make_mesh(labels={QUEUE: "x"})).rule
    mesh = make_mesh()
    mesh["spec"]["podTemplate"]["metadata"] = {"labels": {QUEUE: "x"}}
    assert not ask(mesh).rule


def test_priorities() -> None:
    """A class of pods, and a class of Kueue's."""
    rule = make_rule(priorityClasses=["low"])
    for name, allowed in (("low", True), ("high", False)):
        mesh = make_mesh(labels={"kueue.x-k8s.io/priority-class": name})
        assert bool(ask(mesh, rule).rule) is allowed
        mesh = make_mesh()
        mesh["spec"]["podTemplate"]["spec"]["priorityClassName"] = name
        assert bool(ask(mesh, rule).rule) is allowed
