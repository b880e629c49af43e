"""Secrets that come with a mesh at the endpoint: for their caller alone, and told nowhere."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from milkweed.backends.kubernetes.start import JOB_LABEL, NAME_NOTE
from milkweed.kube.resources import MESHES, SECRETS
from milkweed.operator.admission import REQUESTED_BY, SECRETS_NOTE
from milkweed.operator.job_secrets import LARGEST_DATA, MOST, AskedSecret
from milkweed.operator.policy import parse_policy
from milkweed.operator.provision import Provisioner
from unit.operator_asked import RULE, TRAINER, Reviewed, ask, post
from unit.operator_cluster import refuse
from unit.operator_runs import make_mesh

JOB = "3f0c5f0e-0000-4000-8000-000000000001"
HOSTS, AUTHORITY = "milkweed-3f0c5f0e-hosts", "milkweed-3f0c5f0e-authority"
PLACE = "/v1/namespaces/team/secrets"


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


VALUE = encode("hunter2")


def secret(name: str = HOSTS, **data: str) -> dict[str, Any]:
    return {"name": name, "data": data or {"key": VALUE}}


def job_mesh(name: str = "trainers", secrets: Any = None, **changes: Any) -> dict[str, Any]:
    """A request for a mesh of a job, whose pods see the first Secret."""
    notes = {NAME_NOTE: "my job"}
    mesh = make_mesh(name, labels={JOB_LABEL: JOB}, annotations=notes, **changes)
    volume = {"name": "milkweed", "secret": {"secretName": HOSTS}}
    mesh["spec"]["podTemplate"]["spec"]["volumes"] = [volume]
    return mesh | {"secrets": [secret(), secret(AUTHORITY)] if secrets is None else secrets}


@pytest.fixture
def cluster() -> Reviewed:
    return Reviewed()


@pytest.fixture
def provisioner(cluster: Reviewed) -> Provisioner:
    return Provisioner(cluster, lambda: parse_policy({"rules": [RULE]}))  # type: ignore[arg-type]


def find(cluster: Reviewed, name: str = HOSTS) -> dict[str, Any]:
    return cluster.objects[SECRETS.plural, "team", name]


def owners(cluster: Reviewed, name: str = HOSTS) -> list[str]:
    return [one["name"] for one in find(cluster, name)["metadata"]["ownerReferences"]]


# Making


def test_they_are_made_with_the_mesh(provisioner: Provisioner, cluster: Reviewed) -> None:
    """They carry the job's mark, belong to the mesh, and say who asked."""
    answer = post(provisioner, job_mesh())
    assert answer.status == 201
    (mesh,) = cluster.of_kind(MESHES.plural)
    assert mesh["metadata"]["annotations"][SECRETS_NOTE] == f"{HOSTS},{AUTHORITY}"
    assert "secrets" not in mesh
    made = find(cluster)
    assert (made["type"], made["data"]) == ("Opaque", {"key": VALUE})
    assert made["metadata"]["labels"] == {JOB_LABEL: JOB}
    assert made["metadata"]["annotations"][NAME_NOTE] == "my job"
    assert made["metadata"]["annotations"][REQUESTED_BY] == TRAINER
    (owner,) = made["metadata"]["ownerReferences"]
    assert owner["uid"] == mesh["metadata"]["uid"]
    assert "controller" not in owner


def test_they_go_with_the_last_mesh(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Both meshes of a job ask for them."""
    post(provisioner, job_mesh("a", replicas=1))
    post(provisioner, job_mesh("b", replicas=1))
    assert owners(cluster) == ["a", "b"]
    ask(provisioner, "DELETE", f"a?job={JOB}")
    cluster.settle()
    assert len(cluster.of_kind(SECRETS.plural)) == 2
    ask(provisioner, "DELETE", f"b?job={JOB}")
    cluster.settle()
    assert cluster.of_kind(SECRETS.plural) == []


def test_asking_twice_brings_them_up_to_date(provisioner: Provisioner, cluster: Reviewed) -> None:
    """The same writes nothing; what changed is changed, and what is missing is made."""
    post(provisioner, job_mesh())
    cluster.writes.clear()
    assert post(provisioner, job_mesh()).status == 200
    assert [one for one in cluster.writes if one[1] == SECRETS.plural] == []
    cluster.remove(SECRETS.plural, "team", AUTHORITY)
    other = [secret(HOSTS, key=encode("new")), secret(AUTHORITY)]
    assert post(provisioner, job_mesh(secrets=other)).status == 200
    assert find(cluster)["data"] == {"key": encode("new")}
    assert owners(cluster, AUTHORITY) == ["trainers"]


LARGE = base64.b64encode(bytes(LARGEST_DATA // 2 + 1)).decode()


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ("x", "secrets is a list"),
        ([1], "secrets[0].name is not milkweed-3f0c5f0e-…"),
        ([secret("mine")], "secrets[0].name is not milkweed-3f0c5f0e-…"),
        ([secret("milkweed-00000000-hosts")], "secrets[0].name is not milkweed-3f0c5f0e-…"),
        ([secret("milkweed-3f0c5f0e-")], "secrets[0].name is not milkweed-3f0c5f0e-…"),
        ([secret("milkweed-3f0c5f0e-*")], "secrets[0].name is not milkweed-3f0c5f0e-…"),
        ([secret() | {"type": "x"}], "secrets[0].type is not allowed"),
        ([{"name": HOSTS}], "secrets[0].data is missing"),
        ([secret(key="hunter2!")], "secrets[0].data.key is not base64"),
        ([secret(**{"a/b": VALUE})], "secrets[0].data has a key"),
        ([secret(), secret()], "secrets two have the same name"),
        ([secret(f"{HOSTS}{i}") for i in range(MOST + 1)], f"secrets {MOST + 1} asked for"),
        ([secret(key=LARGE), secret(AUTHORITY, key=LARGE)], "bytes in all"),
    ],
)
def test_secrets_that_are_refused(
    provisioner: Provisioner, cluster: Reviewed, secrets: Any, words: str
) -> None:
    """What is wrong is named, and no value of it."""
    answer = post(provisioner, job_mesh(secrets=secrets))
    assert answer.status == 400
    told = [f"{one['field']} {one['text']}" for one in answer.document["violations"]]
    assert any(words in one for one in told), told
    assert "hunter2" not in json.dumps([answer.document, answer.audit])
    assert cluster.objects == {}


@pytest.mark.parametrize("label", [None, "", "my-job", "3f0c5f0"])
def test_only_jobs_have_secrets(provisioner: Provisioner, label: str | None) -> None:
    """A mesh without the mark, or with something else in its place, carries none."""
    mesh = job_mesh()
    mesh["metadata"]["labels"] = {} if label is None else {JOB_LABEL: label}
    answer = post(provisioner, mesh)
    assert answer.status == 400
    assert answer.document["violations"][0]["field"] == f"metadata.labels.{JOB_LABEL}"


def test_pods_use_only_secrets_that_came_with_them(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """Whoever names another job's cannot read it so."""
    denied = post(provisioner, job_mesh(secrets=[secret(AUTHORITY)]))
    assert denied.status == 403
    assert HOSTS in denied.document["violations"][0]["text"]
    assert cluster.objects == {}


@pytest.mark.parametrize("whose", ["colleague", "a person"])
def test_a_name_that_somebody_else_has(
    provisioner: Provisioner, cluster: Reviewed, whose: str
) -> None:
    """Their Secret is not touched, and no mesh is made that would see it."""
    if whose == "colleague":
        post(provisioner, job_mesh("hers"), "colleague")
    else:
        cluster.put(SECRETS.plural, {"metadata": {"name": HOSTS}, "data": {"key": "x"}})
    before = find(cluster)
    answer = post(provisioner, job_mesh("mine"))
    assert (answer.status, answer.document["error"]) == (
        409,
        f"there is another Secret {HOSTS!r} already",
    )
    assert find(cluster) == before
    assert (MESHES.plural, "team", "mine") not in cluster.objects


@pytest.mark.parametrize(("status", "told"), [(422, 422), (403, 503)])
def test_a_secret_that_the_cluster_refuses(
    provisioner: Provisioner, cluster: Reviewed, status: int, told: int
) -> None:
    """The mesh does not stay without it, and what the cluster says of it is not passed on."""

    def forbid(plural: str, _body: Any) -> None:
        if plural == SECRETS.plural:
            raise refuse(status, "Invalid", f"data.key: {VALUE!r} is wrong")

    cluster.admit = forbid
    answer = post(provisioner, job_mesh())
    assert answer.status == told
    assert answer.document == {"error": f"the cluster does not take the Secret {HOSTS!r}: Invalid"}
    assert cluster.objects == {}


def test_a_cluster_that_goes_away_between_them(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Nobody knows what was done; asked again, it is whole."""
    cluster.faults.extend(["", "after"])
    assert post(provisioner, job_mesh()).status == 503
    assert post(provisioner, job_mesh()).status in {200, 201}
    assert owners(cluster)[-1] == "trainers"
    assert len(cluster.of_kind(SECRETS.plural)) == 2


# Seeing, changing and deleting


def test_ones_own_is_seen_changed_and_deleted(provisioner: Provisioner, cluster: Reviewed) -> None:
    """As often as need be."""
    post(provisioner, job_mesh())
    place = f"{PLACE}/{HOSTS}"
    assert ask(provisioner, "GET", place).document["data"] == {"key": VALUE}
    new = {"data": {"key": encode("new")}}
    changed = ask(provisioner, "PUT", place, body=new)
    assert (changed.status, changed.document) == (200, {"updated": HOSTS})
    assert ask(provisioner, "GET", place).document["data"] == new["data"]
    assert owners(cluster) == ["trainers"]
    assert ask(provisioner, "DELETE", place).status == 200
    assert ask(provisioner, "GET", place).status == 404


@pytest.mark.parametrize("body", [{}, {"data": {"key": "hunter2!"}}, {"data": {}, "type": "x"}])
def test_changes_that_are_refused(provisioner: Provisioner, body: Any) -> None:
    """The Secret stays what it is."""
    post(provisioner, job_mesh())
    answer = ask(provisioner, "PUT", f"{PLACE}/{HOSTS}", body=body)
    assert answer.status == 400
    assert "hunter2" not in json.dumps([answer.document, answer.audit])


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_secrets_of_others_are_not_there(
    provisioner: Provisioner, cluster: Reviewed, method: str
) -> None:
    """A colleague's, a person's, and none: the answer is the same."""
    post(provisioner, job_mesh(), "colleague")
    theirs = {"metadata": {"name": "milkweed-3f0c5f0e-other"}, "data": {"key": VALUE}}
    cluster.put(SECRETS.plural, theirs)
    texts = set()
    for name in (HOSTS, "milkweed-3f0c5f0e-other", "milkweed-3f0c5f0e-none"):
        answer = ask(provisioner, method, f"{PLACE}/{name}", body={"data": {}})
        assert answer.status == 404
        texts.add(answer.document["error"].replace(name, ""))
    assert len(texts) == 1
    assert find(cluster)["data"] == {"key": VALUE}


def test_an_account_that_was_made_anew_is_another_one(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """Whoever has its name now sees nothing of the one before."""
    post(provisioner, job_mesh())
    cluster.accounts[TRAINER] = "another uid"
    assert ask(provisioner, "GET", f"{PLACE}/{HOSTS}").status == 404
    assert ask(provisioner, "GET", "trainers").status == 404
    assert ask(provisioner, "DELETE", "trainers").status == 404


def test_secrets_that_are_no_jobs_cannot_even_be_named(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """Nobody is asked for them."""
    for name in ("database-password", "milkweed", "../x"):
        assert ask(provisioner, "GET", f"{PLACE}/{name}").status == 404
    assert cluster.requests == 0


# What is written down


def test_nothing_of_them_is_written_down(provisioner: Provisioner, cluster: Reviewed) -> None:
    """How many there were, and no more; not even where objects are printed by mistake."""
    made = post(provisioner, job_mesh())
    assert made.audit["secrets"] == 2
    seen = ask(provisioner, "GET", f"{PLACE}/{HOSTS}")
    for text in (json.dumps([made.document, made.audit, seen.audit]), repr(seen), repr(made)):
        assert VALUE not in text
    assert VALUE not in repr(AskedSecret(HOSTS, {"key": VALUE}))
    assert cluster.of_kind("events") == []
