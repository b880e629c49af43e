"""What is installed: rights with nothing to spare, pods that cannot do harm, and YAML that is read alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from milkweed import __version__
from milkweed.kube.login import parse_yaml
from milkweed.kube.resources import MESHES, STATEFUL_SETS
from milkweed.operator.definition import NAME_RULE, make_definition
from milkweed.operator.install import IMAGE, Install, make_install
from milkweed.operator.rights import (
    CLIENT_RULES,
    LEASE,
    LEASE_RULES,
    OPERATOR_RULES,
    PROVISION_RULES,
    REVIEW_RULES,
)
from milkweed.operator.yaml import render_yaml
from milkweed.testing import FakeClock
from unit.operator_cluster import Cluster
from unit.operator_farewell import mark_as_job, say_farewell
from unit.operator_helm import Chart, find_helm, render_with_helm
from unit.operator_runs import make_mesh, make_operator, run
from unit.test_operator_objects import check_golden

CHART = Path(__file__).parents[2] / "charts" / "milkweed-operator"
CASES = {
    "cluster": Install(),
    "namespaced": Install(namespace="ops", image="registry.example.com/m:1", only=("a", "b")),
    "provision": Install(provision=True, replicas=3),
    "provision-namespaced": Install(namespace="ops", only=("a",), provision=True),
}


def of_kind(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] in kinds]


@pytest.mark.parametrize("name", CASES)
def test_the_manifests_are_the_recorded_ones(name: str) -> None:
    """Every line that is applied to a cluster."""
    check_golden(f"install-{name}.yaml", render_yaml(make_install(CASES[name])))


@pytest.mark.parametrize("name", CASES)
def test_each_object_is_there_once(name: str) -> None:
    """And says what it is and where."""
    objects = make_install(CASES[name])
    places = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects
    ]
    assert len(set(places)) == len(places)
    assert all(one["apiVersion"] for one in objects)


@pytest.mark.parametrize("name", CASES)
def test_what_is_bound_is_there(name: str) -> None:
    """Each binding names a role and an account that are installed, too."""
    objects = make_install(CASES[name])
    roles = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"])
        for one in of_kind(objects, "Role", "ClusterRole")
    }
    accounts = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in of_kind(objects, "ServiceAccount")
    }
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        reference, (subject,) = binding["roleRef"], binding["subjects"]
        home = binding["metadata"].get("namespace", "")
        assert (reference["kind"], home, reference["name"]) in roles
        assert (subject["namespace"], subject["name"]) in accounts


def test_an_install_for_some_namespaces_has_no_rights_elsewhere() -> None:
    """No rights in the whole cluster, but for asking who somebody is, which no namespace has."""
    plain = make_install(CASES["namespaced"])
    assert of_kind(plain, "ClusterRole", "ClusterRoleBinding") == []
    asking = of_kind(make_install(CASES["provision-namespaced"]), "ClusterRole")
    assert [one["rules"] for one in asking] == [REVIEW_RULES]


def test_workers_may_do_nothing() -> None:
    """Their account has no token and no role."""
    objects = make_install(CASES["namespaced"])
    workers = [one for one in objects if one["metadata"]["name"] == "milkweed-worker"]
    assert [one["kind"] for one in workers] == ["ServiceAccount"] * 2
    assert not any(one["automountServiceAccountToken"] for one in workers)


# Rights


def allows(rules: list[dict[str, Any]], verb: str, group: str, plural: str) -> bool:
    return any(
        verb in rule["verbs"] and group in rule["apiGroups"] and plural in rule["resources"]
        for rule in rules
    )


def grants(rules: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {
        (verb, plural) for rule in rules for verb in rule["verbs"] for plural in rule["resources"]
    }


ALL_RULES = [OPERATOR_RULES, LEASE_RULES, CLIENT_RULES, PROVISION_RULES, REVIEW_RULES]


@pytest.mark.parametrize("rules", ALL_RULES)
def test_no_rule_has_a_wildcard(rules: list[dict[str, Any]]) -> None:
    """Each right is spelled out, and nobody gives rights to others or starts programs in pods."""
    words = {word for rule in rules for part in rule.values() for word in part}
    assert not words & {"*", "escalate", "bind", "impersonate", "pods/exec"}


def test_only_those_who_make_jobs_have_secrets() -> None:
    """Clients keep the certificates of their jobs there, as the endpoint does for its callers; it lists none."""
    for rules in ALL_RULES:
        verbs = {verb for verb, plural in grants(rules) if plural == "secrets"}
        assert bool(verbs) is any(rules is one for one in (CLIENT_RULES, PROVISION_RULES))
    verbs = {verb for verb, plural in grants(PROVISION_RULES) if plural == "secrets"}
    assert verbs == {"get", "create", "update", "delete"}


def test_the_endpoint_only_looks_at_pods() -> None:
    """It tells callers how theirs are."""
    assert {one for one in grants(PROVISION_RULES) if one[1] == "pods"} == {("list", "pods")}


def test_the_operator_deletes_nothing_but_meshes() -> None:
    """Nor does it make meshes, or touch pods."""
    granted = grants(OPERATOR_RULES)
    assert {plural for verb, plural in granted if "delete" in verb} == {"monarchmeshes"}
    assert not granted & {("create", "monarchmeshes"), ("deletecollection", "monarchmeshes")}
    assert {verb for verb, plural in grants(OPERATOR_RULES) if plural == "pods"} == {
        "list",
        "watch",
    }


def test_the_lease_is_the_operators_own() -> None:
    """Others' leases in its namespace are not its to change."""
    writing = [rule for rule in LEASE_RULES if "update" in rule["verbs"]]
    assert [rule["resourceNames"] for rule in writing] == [[LEASE]]


VERBS = {
    "create": "create",
    "replace": "update",
    "patch": "patch",
    "patch status": "patch",
    "delete": "delete",
}


def test_everything_the_operator_does_is_allowed(clock: FakeClock) -> None:
    """In a life with a bit of everything, each write is covered by a rule, and each rule is used."""
    cluster = Cluster()
    operator = make_operator(cluster, clock)
    cluster.put(MESHES.plural, make_mesh())
    run(operator, cluster, clock)
    cluster.edit(MESHES.plural, "team", "trainers", lambda mesh: mesh["spec"].update(replicas=1))
    run(operator, cluster, clock)
    cluster.remove("services", "team", "trainers-svc")
    run(operator, cluster, clock)
    cluster.edit(MESHES.plural, "team", "trainers", mark_as_job)
    say_farewell(cluster, 0)
    run(operator, cluster, clock)
    assert cluster.of_kind(MESHES.plural) == []
    done = {
        (VERBS[verb], f"{plural}/status" if verb == "patch status" else plural)
        for verb, plural, _name in cluster.writes
    }
    granted = grants(OPERATOR_RULES) | grants(LEASE_RULES)
    assert done <= granted
    reading = {"get", "list", "watch"}
    unused = {one for one in granted - done if one[0] not in reading}
    assert unused == {
        ("update", "monarchmeshes/finalizers"),
        ("update", "services"),
    }


def test_what_is_followed_may_be_listed_and_watched(clock: FakeClock) -> None:
    """Each kind of object that the operator follows."""
    for follower in make_operator(Cluster(), clock).followers:
        kind = follower._resource
        for verb in ("list", "watch"):
            assert allows(OPERATOR_RULES, verb, kind.group, kind.plural)


# Pods


def pods(name: str) -> Iterator[dict[str, Any]]:
    for one in of_kind(make_install(CASES[name]), "Deployment"):
        yield one["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", CASES)
def test_our_own_pods_are_held_short(name: str) -> None:
    """No root, no more rights than they start with, nothing to write to, and the strictest namespace."""
    for pod in pods(name):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert {"livenessProbe", "readinessProbe"} <= set(container)
    (home,) = of_kind(make_install(CASES[name]), "Namespace")
    assert home["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_two_operators_and_one_endpoint() -> None:
    """One operator can take the other's place; two endpoints would count limits twice."""
    operator, endpoint = of_kind(make_install(Install(provision=True)), "Deployment")
    assert operator["spec"]["replicas"] == 2
    assert (endpoint["spec"]["replicas"], endpoint["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_namespaces_are_passed_to_the_programs() -> None:
    """They serve what they have rights for."""
    for pod in pods("provision-namespaced"):
        assert pod["containers"][0]["args"][-1] == "--namespace=a"


def test_the_image_is_of_this_version() -> None:
    """Unless somebody says otherwise."""
    assert IMAGE.endswith(f":{__version__}")


# The definition


def test_the_definition_is_compatible() -> None:
    """The group, the version and the names under which meshes of other operators are stored."""
    made = make_definition()
    assert made["metadata"]["name"] == "monarchmeshes.monarch.pytorch.org"
    (version,) = made["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["required"] == ["spec"]
    assert schema["x-kubernetes-validations"][0]["rule"] == NAME_RULE
    spec = schema["properties"]["spec"]
    assert spec["required"] == ["replicas", "podTemplate"]
    assert spec["properties"]["port"]["default"] == 26600
    assert spec["properties"]["podTemplate"]["x-kubernetes-preserve-unknown-fields"] is True
    assert version["subresources"]["status"] == {}


def test_all_that_is_told_is_in_the_definition() -> None:
    """What the schema does not name would be dropped by the cluster."""
    (version,) = make_definition()["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert set(status) == {"observedGeneration", "replicas", "readyReplicas", "conditions"}
    condition = status["conditions"]["items"]["properties"]
    assert {"type", "status", "reason", "message", "observedGeneration"} < set(condition)


# The chart


def rendered(**chosen: Any) -> dict[tuple[str, str, str], dict[str, Any]]:
    return by_place(Chart(CHART).render("ops", **chosen))


def by_place(objects: list[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in objects
    }


def installed(**chosen: Any) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The same by `milkweed operator manifests`; a release's namespace is made by others."""
    objects = json.loads(json.dumps(make_install(Install(namespace="ops", **chosen))))
    made = by_place(objects)
    del made["Namespace", "", "ops"]
    keep = {"helm.sh/resource-policy": "keep"}
    name = "monarchmeshes.monarch.pytorch.org"
    made["CustomResourceDefinition", "", name]["metadata"]["annotations"] = keep
    return made


@pytest.mark.parametrize("only", [[], ["a"], ["a", "b", "123"]])
@pytest.mark.parametrize("provision", [True, False])
def test_the_chart_installs_the_same(only: list[str], provision: bool) -> None:
    """Object by object, and field by field."""
    ours = rendered(namespaces=only, provision={"enabled": provision}, image="x/y:1", replicas=5)
    theirs = installed(only=only, provision=provision, image="x/y:1", replicas=5)
    assert ours == theirs


def test_what_the_chart_chooses_is_what_the_command_chooses() -> None:
    """Without a word from anybody."""
    assert rendered() == installed()


def test_the_definition_stays_when_the_release_goes() -> None:
    """With it would go every mesh of the cluster. It may be left to others."""
    place = "CustomResourceDefinition", "", "monarchmeshes.monarch.pytorch.org"
    assert rendered()[place]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert place not in rendered(definition=False)


def test_the_chart_is_of_this_version() -> None:
    """Chart, program and image go together."""
    about = parse_yaml((CHART / "Chart.yaml").read_text("utf-8"))
    assert about["version"] == about["appVersion"] == __version__
    assert Chart(CHART).values()["image"] == IMAGE


HELM = find_helm()


@pytest.mark.skipif(not HELM, reason="there is no Helm here (tests/labs/prepare.sh kubernetes)")
@pytest.mark.parametrize("only", [[], ["a", "b"]])
@pytest.mark.parametrize("provision", [True, False])
def test_helm_renders_the_same(only: list[str], provision: bool) -> None:
    """Helm itself, where it is, and what stands for it elsewhere."""
    chosen = [f"namespaces={{{','.join(only)}}}"] if only else []
    chosen.append(f"provision.enabled={str(provision).lower()}")
    shown = render_with_helm(CHART, "ops", *chosen)
    documents = [parse_yaml(part) for part in shown.split("\n---\n") if part.strip("-\n")]
    assert by_place([one for one in documents if one]) == installed(only=only, provision=provision)


# YAML

TEXTS = st.text(max_size=12) | st.sampled_from(
    ["yes", "No", "null", "~", "1e3", "0x1f", "1:30", "- a", "a: b", "#x", "a #b", "", " ", ".inf"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=15,
)


@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4))
def test_yaml_is_read_as_it_was_meant(found: dict[str, Any]) -> None:
    """Whatever is written comes back the same."""
    assert parse_yaml(render_yaml([found]).removeprefix("---\n")) == found


def test_yaml_is_for_people() -> None:
    """Plain words are plain, lists are not indented, and one document follows the other."""
    shown = render_yaml([{"a": {"b": ["x", {"c": 1, "d": []}]}}, {"e": {}}])
    assert shown == "---\na:\n  b:\n  - x\n  - c: 1\n    d: []\n---\ne: {}\n"


def test_kinds_are_those_of_the_cluster() -> None:
    """The rules name the same plurals that requests do."""
    assert allows(OPERATOR_RULES, "update", STATEFUL_SETS.group, STATEFUL_SETS.plural)
    assert allows(OPERATOR_RULES, "watch", MESHES.group, MESHES.plural)
