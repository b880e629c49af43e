"""What callers of the endpoint do with their meshes: look at their hosts, change their size, give them back."""

from __future__ import annotations

from typing import Any

import pytest

from milkweed.backends.kubernetes.making import make_probe
from milkweed.backends.kubernetes.pod_template import inject_worker
from milkweed.backends.kubernetes.start import (
    JOB_LABEL,
    LOADER,
    MOUNT,
    Place,
    make_environment,
    make_volume,
    run_python,
    secret_name,
)
from milkweed.kube.resources import MESHES, PODS, SECRETS
from milkweed.operator.admission import RULE_LABEL, SECRETS_NOTE
from milkweed.operator.granting import LARGEST_MESH
from milkweed.operator.provision import Provisioner
from milkweed.testing import FakeClock
from unit.operator_asked import RULE, Reviewed, ask, post
from unit.operator_runs import get_mesh, get_set, make_mesh, make_operator, make_template, run
from unit.test_operator_job_secrets import AUTHORITY, HOSTS, JOB, encode, job_mesh, secret


@pytest.fixture
def cluster() -> Reviewed:
    return Reviewed()


def resize(provisioner: Provisioner, replicas: Any, token: str = "good", **more: Any) -> Any:  # noqa: S107  no secret
    return ask(provisioner, "PATCH", "trainers", token, {"replicas": replicas, **more})


# Looking


def test_why_hosts_wait_is_told(
    provisioner: Provisioner, cluster: Reviewed, clock: FakeClock
) -> None:
    """Each pod of the mesh, and nobody else's."""
    post(provisioner, make_mesh())
    run(make_operator(cluster, clock), cluster, clock)
    waiting = {"reason": "ImagePullBackOff", "message": "not found"}

    def break_pod(pod: dict[str, Any]) -> None:
        own = {"name": "worker", "state": {"waiting": waiting}}
        pod["spec"] = {"containers": [{"name": "worker"}]}
        pod["status"] = {"phase": "Pending", "containerStatuses": [own], "conditions": []}

    cluster.edit(PODS.plural, "team", "trainers-1", break_pod)
    labels = get_set(cluster)["spec"]["template"]["metadata"]["labels"]
    cluster.put(PODS.plural, {"metadata": {"name": "copy", "labels": labels}, "status": {}})
    first, second = ask(provisioner, "GET", "trainers").document["pods"]
    assert (first["name"], first["ready"], first["word"]) == ("trainers-0", True, "")
    assert (second["name"], second["phase"], second["ready"]) == ("trainers-1", "Pending", False)
    assert second["word"] == "ImagePullBackOff"
    assert "its image cannot be pulled: not found" in second["reason"]
    assert not {"labels", "owner"} & set(first)


# Resizing


def test_a_mesh_is_resized(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Its Secrets first, and its notes with it."""
    post(provisioner, job_mesh())
    cluster.writes.clear()
    more = "milkweed-3f0c5f0e-more"
    change = {
        "replicas": 4,
        "secrets": [secret(key=encode("new")), secret(more)],
        "annotations": {"milkweed.dev/handle": "{}"},
    }
    answer = ask(provisioner, "PATCH", f"trainers?job={JOB}", body=change)
    assert (answer.status, answer.document["spec"]["replicas"]) == (200, 4)
    mesh = get_mesh(cluster)
    assert mesh["spec"]["replicas"] == 4
    assert mesh["metadata"]["annotations"]["milkweed.dev/handle"] == "{}"
    assert mesh["metadata"]["annotations"][SECRETS_NOTE] == f"{AUTHORITY},{HOSTS},{more}"
    assert [one[1] for one in cluster.writes] == [SECRETS.plural, SECRETS.plural, MESHES.plural]
    assert (answer.audit["hosts"], answer.audit["rule"], answer.audit["secrets"]) == (
        4,
        "research",
        2,
    )


def test_more_hosts_may_need_more_files(provisioner: Provisioner, cluster: Reviewed) -> None:
    """Of their own Secret, in their own volume; all else of the template is as it was."""
    mesh = job_mesh()
    pod = mesh["spec"]["podTemplate"]["spec"]
    pod["volumes"] = [{"name": "tmp", "emptyDir": {}}, *pod["volumes"]]
    post(provisioner, mesh)
    files = [{"key": "cert-0-1", "path": "tls-1/tls.crt"}]
    change = {"replicas": 4, "files": files}
    assert ask(provisioner, "PATCH", f"trainers?job={JOB}", body=change).status == 200
    made = get_mesh(cluster)["spec"]["podTemplate"]["spec"]
    own = {"name": "milkweed", "secret": {"secretName": HOSTS, "items": files}}
    assert made == {**pod, "volumes": [{"name": "tmp", "emptyDir": {}}, own]}


@pytest.mark.parametrize(
    "volumes",
    [
        [],
        [{"name": "milkweed", "emptyDir": {}}],
        [{"name": "milkweed", "secret": {"secretName": "shared"}}],
    ],
)
def test_files_are_of_no_other_secret(
    provisioner: Provisioner, cluster: Reviewed, policy: dict[str, Any], volumes: list[Any]
) -> None:
    """A volume of something else is not changed, whatever its name."""
    policy["rules"][0] |= {"secrets": ["shared"], "volumes": ["emptyDir"]}
    mesh = job_mesh()
    mesh["spec"]["podTemplate"]["spec"]["volumes"] = volumes
    assert post(provisioner, mesh).status == 201
    before = get_mesh(cluster)
    change = {"replicas": 2, "files": [{"key": "k", "path": "p"}]}
    answer = ask(provisioner, "PATCH", f"trainers?job={JOB}", body=change)
    assert (answer.status, "no volume 'milkweed'" in answer.document["error"]) == (400, True)
    assert get_mesh(cluster) == before


def test_growth_is_within_the_policy(
    provisioner: Provisioner, cluster: Reviewed, policy: dict[str, Any]
) -> None:
    """In one mesh and in all; what the mesh has already does not count against it."""
    post(provisioner, make_mesh())
    post(provisioner, make_mesh("other", 2), "colleague")
    assert resize(provisioner, 4).status == 200
    denied = resize(provisioner, 5)
    assert denied.status == 403
    texts = [one["text"] for one in denied.document["violations"]]
    assert texts == [
        "5 hosts asked for, at most 4: 1 too many",
        "5 hosts asked for beside 2 in use, at most 6: 1 too many",
    ]
    policy["rules"][0]["images"] = ["other:*"]
    assert resize(provisioner, 5).status == 403
    assert resize(provisioner, 1).status == 200
    assert get_mesh(cluster)["spec"]["replicas"] == 1


def test_another_rule_may_allow_the_growth(
    provisioner: Provisioner, cluster: Reviewed, policy: dict[str, Any]
) -> None:
    """Then it counts there."""
    policy["rules"].append({**RULE, "name": "large", "maxHosts": 100})
    post(provisioner, make_mesh())
    assert resize(provisioner, 50).status == 200
    assert get_mesh(cluster)["metadata"]["labels"][RULE_LABEL] == "large"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "replicas"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"replicas": "2"}, "replicas"),
        ({"replicas": 2, "podTemplate": {}}, "podTemplate"),
        ({"replicas": 2, "annotations": {"other": "x"}}, "annotations.other"),
        ({"replicas": 2, "annotations": {"milkweed.dev/handle": 1}}, "annotations.milkweed.dev/handle"),
        ({"replicas": 2, "secrets": [secret("other")]}, "secrets[0].name"),
        ({"replicas": 2, "files": {}}, "files"),
        ({"replicas": 2, "files": [{"key": "k", "path": "x" * LARGEST_MESH}]}, "files"),
        ({"replicas": 2, "files": [{"key": "k"}]}, "files[0]"),
        ({"replicas": 2, "files": [{"key": "k", "path": "p", "mode": 0o777}]}, "files[0]"),
        ({"replicas": 2, "files": [{"key": "k", "path": 1}]}, "files[0]"),
    ],
)  # fmt: skip
def test_changes_that_are_refused(
    provisioner: Provisioner, cluster: Reviewed, body: Any, field: str
) -> None:
    """Nothing else of a mesh can be changed."""
    post(provisioner, job_mesh())
    before = get_mesh(cluster)
    answer = ask(provisioner, "PATCH", f"trainers?job={JOB}", body=body)
    assert answer.status == 400
    assert answer.document["violations"][0]["field"] == field
    assert get_mesh(cluster) == before


def test_meshes_of_others_are_not_resized(provisioner: Provisioner, cluster: Reviewed) -> None:
    """They are not there."""
    post(provisioner, make_mesh())
    assert resize(provisioner, 1, "colleague").status == 404
    assert get_mesh(cluster)["spec"]["replicas"] == 2


# Giving back


def test_a_mesh_that_leaves(provisioner: Provisioner, cluster: Reviewed) -> None:
    """It is seen until its hosts are gone, and can be neither changed nor had again until then."""
    post(provisioner, make_mesh())
    stamp = {"deletionTimestamp": "2024-01-01T00:00:00Z"}
    cluster.edit(MESHES.plural, "team", "trainers", lambda mesh: mesh["metadata"].update(stamp))
    assert ask(provisioner, "GET", "trainers").document["leaving"] is True
    assert resize(provisioner, 1).status == 409
    assert post(provisioner, make_mesh()).status == 409


def test_a_mesh_that_is_too_large(provisioner: Provisioner) -> None:
    """Secrets may be large, and meshes not."""
    mesh = make_mesh(annotations={"long": "x" * LARGEST_MESH})
    answer = post(provisioner, mesh)
    assert answer.status == 400
    assert f"more than {LARGEST_MESH} bytes" in answer.document["violations"][0]["text"]


def test_what_jobs_ask_for_is_within_a_plain_rule(
    provisioner: Provisioner, cluster: Reviewed
) -> None:
    """The pods of a job use nothing but what every rule allows, and their own Secret."""
    mesh = job_mesh()
    place, apply_id = (
        Place(namespace="team", name="trainers"),
        mesh["metadata"]["labels"][JOB_LABEL],
    )
    mesh["spec"]["podTemplate"] = inject_worker(
        make_template(),
        command=run_python(LOADER),
        env=make_environment(place),
        mounts=[{"name": "milkweed", "mountPath": MOUNT, "readOnly": True}],
        volumes=[make_volume(apply_id, {"part": "0.0", "certificates": [{}]}, 0)],
        ports=[{"name": "monarch", "containerPort": place.port}],
        probe=make_probe(apply_id),
    ).template
    assert post(provisioner, mesh).document.get("violations", []) == []
    assert secret_name(apply_id) == HOSTS
    assert len(cluster.of_kind(SECRETS.plural)) == 2


# Of which job


OTHER_JOB = "99999999-0000-4000-8000-000000000002"


def test_whose_mesh_it_is_is_told(provisioner: Provisioner) -> None:
    """By the job's mark, and nothing else that its labels say."""
    post(provisioner, job_mesh())
    assert ask(provisioner, "GET", "trainers").document["metadata"]["labels"] == {JOB_LABEL: JOB}
    post(provisioner, make_mesh("plain", labels={"team": "vision"}))
    assert ask(provisioner, "GET", "plain").document["metadata"]["labels"] == {}


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_a_mesh_of_another_job_is_not_there(
    provisioner: Provisioner, cluster: Reviewed, method: str
) -> None:
    """Whoever says which job they mean never meets another one, though both are theirs."""
    post(provisioner, job_mesh())
    before = get_mesh(cluster)
    answer = ask(provisioner, method, f"trainers?job={OTHER_JOB}", body={"replicas": 1})
    assert (answer.status, answer.document["missing"]) == (404, True)
    assert OTHER_JOB in answer.document["error"]
    assert get_mesh(cluster) == before
    assert ask(provisioner, method, f"trainers?job={JOB}", body={"replicas": 1}).status == 200


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
def test_who_changes_a_mesh_of_a_job_says_which(
    provisioner: Provisioner, cluster: Reviewed, method: str
) -> None:
    """By its name alone it is not changed: that may be another job's by now."""
    post(provisioner, job_mesh())
    answer = ask(provisioner, method, "trainers", body={"replicas": 1})
    assert answer.status == 400
    assert "?job=ID" in answer.document["error"]
    assert get_mesh(cluster)["spec"]["replicas"] == 2


def test_the_same_of_another_job_is_another_mesh(provisioner: Provisioner) -> None:
    """What was asked for twice is one thing only where it is for one job."""
    jobs = [make_mesh(labels={JOB_LABEL: job}) for job in (JOB, JOB, OTHER_JOB)]
    assert [post(provisioner, mesh).status for mesh in jobs] == [201, 200, 409]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_secret_of_another_job_is_not_there(provisioner: Provisioner, method: str) -> None:
    """Where the caller says which job they mean."""
    post(provisioner, job_mesh())
    place = f"/v1/namespaces/team/secrets/{HOSTS}"
    body = {"data": {"key": encode("new")}}
    assert ask(provisioner, method, f"{place}?job={OTHER_JOB}", body=body).status == 404
    assert ask(provisioner, method, f"{place}?job={JOB}", body=body).status == 200
