"""The endpoint for pods without rights: who they are is asked of the cluster, and nothing leaks."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from milkweed.kube.resources import MESHES
from milkweed.operator.admission import REQUESTED_BY, REQUESTED_BY_UID, RULE_LABEL
from milkweed.operator.asked import Request
from milkweed.operator.policy import Policy, parse_policy
from milkweed.operator.provision import PolicyFile, Provisioner
from unit.operator_asked import PATH, RULE, TRAINER, Reviewed, ask, post
from unit.operator_cluster import refuse
from unit.operator_runs import make_mesh


@pytest.fixture
def cluster() -> Reviewed:
    return Reviewed()


# Who asks


@pytest.mark.parametrize("token", ["", "unknown", "for the api server"])
def test_who_is_not_known_is_told_nothing(
    provisioner: Provisioner, cluster: Reviewed, token: str
) -> None:
    """No token, a wrong one, or one that was made for somebody else to read."""
    answer = post(provisioner, make_mesh(), token)
    assert answer.status == 401
    assert cluster.objects == {}
    assert "user" not in answer.audit


def test_an_api_server_that_knows_no_audiences(
    provisioner: Provisioner, cluster: Reviewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says yes to the token and nothing of whom it is for: that is no yes."""
    review = {"status": {"authenticated": True, "user": {"username": TRAINER}}}
    monkeypatch.setattr(cluster, "create", lambda *_args, **_query: review)
    assert post(provisioner, make_mesh()).status == 401


def test_whom_no_rule_is_for(provisioner: Provisioner) -> None:
    """They are known, and have nothing here."""
    answer = post(provisioner, make_mesh(), "stranger")
    assert answer.status == 403
    assert answer.audit["user"] == "system:serviceaccount:elsewhere:x"


# Making


def test_a_mesh_is_made(provisioner: Provisioner, cluster: Reviewed) -> None:
    """With who asked for it, and by which rule."""
    answer = post(provisioner, make_mesh(labels={"mine": "yes"}))
    assert answer.status == 201
    (mesh,) = cluster.of_kind(MESHES.plural)
    assert mesh["metadata"]["labels"] == {"mine": "yes", RULE_LABEL: "research"}
    notes = {REQUESTED_BY: TRAINER, REQUESTED_BY_UID: f"uid of {TRAINER}"}
    assert mesh["metadata"]["annotations"] == notes
    assert mesh["spec"] == make_mesh()["spec"]
    assert answer.document["metadata"]["name"] == "trainers"


def test_denials_name_the_rule_and_by_how_much(provisioner: Provisioner, cluster: Reviewed) -> None:
    """So that whoever asks can ask for less."""
    answer = post(provisioner, make_mesh(replicas=5, image="evil:1"))
    assert answer.status == 403
    assert answer.document["violations"] == [
        {
            "rule": "research",
            "field": "spec.replicas",
            "text": "5 hosts asked for, at most 4: 1 too many",
        },
        {
            "rule": "research",
            "field": "spec.podTemplate.spec.containers[0].image",
            "text": "'evil:1' is not among worker:*, registry.example.com/ml/*",
        },
    ]
    assert cluster.objects == {}


def test_totals_are_of_all_meshes_of_the_rule(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Whoever asked for them; what is given back can be had again."""
    assert post(provisioner, make_mesh("a", 4)).status == 201
    denied = post(provisioner, make_mesh("b", 3), "colleague")
    assert denied.document["violations"][0]["text"].endswith(
        "beside 4 in use, at most 6: 1 too many"
    )
    assert ask(provisioner, "DELETE", "a").status == 200
    assert post(provisioner, make_mesh("b", 3), "colleague").status == 201


def test_meshes_that_others_made_do_not_count(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Whoever has rights of their own is not held to the policy."""
    cluster.put(MESHES.plural, make_mesh("big", 100))
    assert post(provisioner, make_mesh("a", 4)).status == 201


def test_asking_twice_is_asking_once(provisioner: Provisioner, cluster: Reviewed) -> None:
    """The answer to the first may have been lost; it does not count against itself."""
    assert post(provisioner, make_mesh("a", 4)).status == 201
    assert post(provisioner, make_mesh("a", 4)).status == 200
    assert len(cluster.of_kind(MESHES.plural)) == 1


def test_a_name_that_is_taken(provisioner: Provisioner) -> None:
    """By somebody else, or by another mesh of one's own."""
    post(provisioner, make_mesh("a", 2))
    assert post(provisioner, make_mesh("a", 1)).status == 409
    assert post(provisioner, make_mesh("a", 2), "colleague").status == 409


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"1", b"\xff", b"[" * 100_000])
def test_bodies_that_are_no_mesh(provisioner: Provisioner, body: bytes) -> None:
    """They are refused, whatever they are."""
    assert provisioner.answer(Request("POST", PATH, "good", body)).status == 400


def test_a_mesh_out_of_shape(provisioner: Provisioner) -> None:
    """What is wrong is named."""
    mesh = make_mesh() | {"status": {}}
    answer = post(provisioner, mesh)
    assert answer.status == 400
    assert answer.document["violations"][0]["field"] == "status"


def test_what_the_cluster_refuses_is_passed_on(provisioner: Provisioner, cluster: Reviewed) -> None:
    """In its own words."""

    def forbid(_plural: str, _body: Any) -> None:
        raise refuse(422, "Invalid", "the name is too long")

    cluster.admit = forbid
    answer = post(provisioner, make_mesh())
    assert (answer.status, answer.document["seen"]) == (422, "the name is too long")


def test_rights_that_we_lack_are_not_the_callers_doing(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """They could do nothing about it."""

    def forbid(_plural: str, _body: Any) -> None:
        raise refuse(403, "Forbidden", "cannot create")

    cluster.admit = forbid
    assert post(provisioner, make_mesh()).status == 503


def test_a_cluster_that_is_away(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Try again later."""
    cluster.down = True
    assert post(provisioner, make_mesh()).status == 503


def test_two_requests_do_not_share_what_is_left(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """Counting and making is one step."""
    answers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda name=name: answers.append(post(provisioner, make_mesh(name, 4)).status)
        )
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(answers) == [201, 403, 403, 403]


# Seeing and deleting


def test_ones_own_mesh_is_seen(provisioner: Provisioner, cluster: Reviewed) -> None:
    """What it is and how it is, without the notes of others on it."""
    post(provisioner, make_mesh())
    cluster.edit(
        MESHES.plural, "team", "trainers", lambda mesh: mesh.update(status={"replicas": 1})
    )
    answer = ask(provisioner, "GET", "trainers")
    assert answer.status == 200
    assert answer.document["status"] == {"replicas": 1}
    shown = {"name", "namespace", "uid", "generation", "labels"}
    assert set(answer.document["metadata"]) == shown


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_meshes_of_others_are_not_there(
    provisioner: Provisioner, cluster: Reviewed, method: str
) -> None:
    """A colleague's, one that somebody made with rights of their own, and none: the answer is the same."""
    post(provisioner, make_mesh("hers"), "colleague")
    cluster.put(MESHES.plural, make_mesh("theirs"))
    texts = set()
    for name in ("hers", "theirs", "none"):
        answer = ask(provisioner, method, name)
        assert answer.status == 404
        texts.add(answer.document["error"].replace(name, ""))
    assert len(texts) == 1
    assert len(cluster.of_kind(MESHES.plural)) == 2


def test_deleting(provisioner: Provisioner, cluster: Reviewed) -> None:
    """One's own, and by somebody whom the policy has forgotten since, too."""
    post(provisioner, make_mesh())
    assert ask(provisioner, "DELETE", "trainers").document == {"deleted": "trainers"}
    assert cluster.of_kind(MESHES.plural) == []


def test_only_what_was_looked_at_is_deleted(
    provisioner: Provisioner, cluster: Reviewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mesh goes, and a colleague makes one of its name, before it is deleted: theirs stays."""
    post(provisioner, make_mesh())
    real = cluster.delete

    def delete(*args: Any, **options: str) -> bool:
        cluster.remove(MESHES.plural, "team", "trainers")
        post(provisioner, make_mesh(), "colleague")
        return real(*args, **options)

    monkeypatch.setattr(cluster, "delete", delete)
    assert ask(provisioner, "DELETE", "trainers").status == 409
    assert len(cluster.of_kind(MESHES.plural)) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v1/namespaces/team/pods", 404),
        ("GET", "/v1/namespaces/../secrets", 404),
        ("POST", "/v1/namespaces/TEAM/meshes", 404),
        ("GET", "/v1/namespaces/team/meshes/a/status", 404),
        ("GET", PATH, 405),
        ("DELETE", PATH, 405),
        ("POST", f"{PATH}/a", 405),
        ("PUT", f"{PATH}/a", 405),
    ],
)
def test_paths_that_lead_nowhere(
    provisioner: Provisioner, cluster: Reviewed, method: str, path: str, status: int
) -> None:
    """They are answered before anybody is asked anything."""
    assert provisioner.answer(Request(method, path, "good")).status == status
    assert cluster.requests == 0


def test_namespaces_that_are_not_served(cluster: Reviewed, policy: dict[str, Any]) -> None:
    """Though a rule may name them."""
    some = Provisioner(cluster, lambda: parse_policy(policy), namespaces=("scratch-1",))  # type: ignore[arg-type]
    assert post(some, make_mesh()).status == 403
    mesh = make_mesh()
    mesh["metadata"]["namespace"] = "scratch-1"
    assert post(some, mesh, path="/v1/namespaces/scratch-1/meshes").status == 201


# What is written down


def test_every_request_is_written_down(provisioner: Provisioner) -> None:
    """Who, what, how much, by which rule and what came of it; no token and no variable of the pod."""
    mesh = make_mesh(replicas=3)
    variable = {"name": "PASSWORD", "value": "hunter2"}
    mesh["spec"]["podTemplate"]["spec"]["containers"][0]["env"] = [variable]
    made = post(provisioner, mesh)
    assert made.audit == {
        "verb": "POST",
        "path": PATH,
        "user": TRAINER,
        "namespace": "team",
        "name": "trainers",
        "hosts": 3,
        "gpus": 0,
        "rule": "research",
        "status": 201,
    }
    assert "hunter2" not in json.dumps(made.audit)
    assert "good" not in json.dumps(made.audit)


# The policy's file


def write_policy(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({"rules": [{**RULE, **changes}]}))


def test_a_policy_that_changes_is_read_again(tmp_path: Path) -> None:
    """Without a restart."""
    path = tmp_path / "policy.yaml"
    write_policy(path)
    file = PolicyFile(path)
    assert file.get().rules[0].max_hosts == 4
    replaced = tmp_path / "new"
    write_policy(replaced, maxHosts=9)
    replaced.replace(path)
    assert file.get().rules[0].max_hosts == 9


def test_a_policy_that_is_broken_allows_nothing(tmp_path: Path, cluster: Reviewed) -> None:
    """Not even what the one before allowed; what is wrong is told to those who run the endpoint."""
    path = tmp_path / "policy.yaml"
    write_policy(path)
    provisioner = Provisioner(cluster, PolicyFile(path).get)  # type: ignore[arg-type]
    assert provisioner.is_ready()
    other = tmp_path / "new"
    write_policy(other, maxHosts="many")
    other.replace(path)
    answer = post(provisioner, make_mesh())
    assert answer.status == 503
    assert "maxHosts" not in json.dumps(answer.document)
    assert "maxHosts" in answer.audit["trouble"]
    path.unlink()
    assert not provisioner.is_ready()


def test_an_empty_policy_denies(cluster: Reviewed) -> None:
    """What nobody allowed is denied."""
    assert post(Provisioner(cluster, Policy), make_mesh()).status == 403  # type: ignore[arg-type]
