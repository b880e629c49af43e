"""Where an AppDef runs: its backend, the settings of that, the folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.backends import BUILT_IN
from milkweed.errors import SpecError, UnknownBackendError
from milkweed.job.preparing import CODE_FOLDER
from milkweed.job.spmd import _folder_of, _make_program
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.options import check_options
from milkweed.spec import make_meshes
from milkweed.spmd.appdef import Application, RoleSpec, read_appdef
from milkweed.spmd.schedulers import BARE, DIALECTS, Chosen, choose_backend


def make_app(**said: Any) -> Application:
    role = RoleSpec(name="trainer", command=("train.py",), **said)
    return Application(name="app", roles=(role,))


APP = make_app()


def choose(scheduler: Any, cfg: Any = None, app: Application = APP) -> Chosen:
    return choose_backend(scheduler, cfg, app, BUILT_IN)


def refusal(scheduler: Any, cfg: Any = None, app: Application = APP) -> SpecError:
    with pytest.raises(SpecError) as caught:
        choose(scheduler, cfg, app)
    return caught.value


@pytest.mark.parametrize(
    ("scheduler", "backend"),
    [
        ("local_cwd", "process"),
        ("local", "process"),
        ("process", "process"),
        ("slurm", "slurm"),
        ("fake", "fake"),
        ("kubernetes", "kubernetes"),
    ],
)
def test_schedulers_are_backends(scheduler: str, backend: str) -> None:
    """Torchx's schedulers and milkweed's backends can both be named."""
    assert choose(scheduler) == Chosen(backend=backend)


def test_a_backend_of_a_plugin_is_taken_as_it_is() -> None:
    """An installed backend gets its settings unchanged, the default of Monarch's documents too."""
    cfg = {"hpcClusterUuid": "MastGenAICluster", "localityConstraints": ["region", "pci"]}
    chosen = choose_backend("mast_conda", {**cfg, "unsaid": None}, APP, ["mast_conda", "process"])
    assert chosen == Chosen(backend="mast_conda", options=cfg)


@pytest.mark.parametrize("scheduler", ["mast_conda", "aws_batch", "", None])
def test_a_scheduler_that_is_not_there_is_refused(scheduler: Any) -> None:
    """The error lists what there is, and how more can be installed."""
    with pytest.raises(UnknownBackendError) as caught:
        choose(scheduler)
    error = caught.value
    assert error.what == f"scheduler: there is none called {scheduler!r}"
    assert error.hint.startswith(
        "known: fake, flux, kubernetes, local, local_cwd, process, slurm\n"
    )
    assert "entry points of the group milkweed.backends" in error.hint


def test_a_misspelled_scheduler_gets_a_suggestion() -> None:
    """The nearest name is named."""
    with pytest.raises(UnknownBackendError, match="did you mean 'slurm'"):
        choose("slrum")


def test_there_are_no_containers() -> None:
    """Docker is not used, and the error says what to use."""
    assert "local_cwd" in refusal("local_docker").hint


def test_torchx_settings_of_slurm_are_translated() -> None:
    """What torchx calls otherwise gets milkweed's name, or becomes an argument of sbatch."""
    cfg = {
        "account": "lab",
        "partition": "gpu",
        "qos": "high",
        "constraint": "a100",
        "time": 90,
        "mail-user": "me@lab.org",
        "mail-type": "END",
        "comment": None,
        "job_dir": None,
        "quiet": False,
        "workspace_type": "dir",
    }
    assert choose("slurm", cfg) == Chosen(
        backend="slurm",
        options={
            "account": "lab",
            "partition": "gpu",
            "qos": "high",
            "constraint": "a100",
            "time_limit": "90",
            "slurm_args": ["--mail-user=me@lab.org", "--mail-type=END"],
        },
    )


def test_milkweeds_settings_of_slurm_are_taken() -> None:
    """Every key of the backend's own table is known, and arguments are added to those given."""
    cfg = {"exclusive": False, "renew": "30m", "slurm_args": ["--nice"], "mail_type": "END"}
    assert choose("slurm", cfg).options == {
        "exclusive": False,
        "renew": "30m",
        "slurm_args": ["--nice", "--mail-type=END"],
    }


@pytest.mark.parametrize(
    ("scheduler", "cfg", "what", "hint"),
    [
        ("slurm", {"comment": "x"}, "scheduler_cfg.comment: 'x' cannot be", "its own mark"),
        ("slurm", {"nomem": True}, "scheduler_cfg.nomem: True cannot be", "memMB=-1"),
        ("slurm", {"job_dir": "/x"}, "scheduler_cfg.job_dir: '/x' cannot be", "log_dir"),
        ("slurm", {"workspace_type": "docker"}, "scheduler_cfg.workspace_type", "copies no code"),
        ("slurm", {"image_repo": "x"}, "scheduler_cfg.image_repo", "no images"),
        ("slurm", {"mail-usr": "x"}, "scheduler_cfg.mail-usr: slurm has no such", "'mail_user'"),
        ("slurm", {"partitions": "x"}, "partitions: slurm has no such", "'partition'"),
        ("slurm", {"time": "1", "time_limit": "2"}, "scheduler_cfg.time_limit: is said twice", ""),
        ("slurm", {"slurm_args": "--x", "mail-type": "END"}, "slurm_args: is not a list", "--x"),
        ("local_cwd", {"prepend_cwd": True}, "scheduler_cfg.prepend_cwd: True", "PATH"),
        ("local", {"auto_set_cuda_visible_devices": True}, "cannot be honoured", "CUDA_VISIBLE"),
        ("local_cwd", {"partition": "x"}, "local_cwd has no such setting", "known: "),
        ("kubernetes", {"efa_device_count": 0}, "efa_device_count: 0 cannot be", "devices"),
        ("kubernetes", {"reserved_memmb": 0}, "reserved_memmb: 0 cannot be", "less"),
        ("kubernetes", {"queue": "q"}, "queue: 'q' cannot be", "pod_template"),
        ("kubernetes", {"service_account": "me"}, "service_account: 'me'", "pod_template"),
        ("kubernetes", {"priority_class": "p"}, "priority_class: 'p'", "pod_template"),
        ("kubernetes", {"image_repo": "r"}, "image_repo: 'r'", "no images"),
        ("kubernetes", {"zeal": 1}, "kubernetes has no such setting", "known: "),
        ("slurm", ["partition"], "scheduler_cfg: ['partition'] is not a mapping", "partition"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(
    scheduler: str, cfg: Any, what: str, hint: str
) -> None:
    """The error names the setting, and what to do instead."""
    error = refusal(scheduler, cfg)
    assert what in error.what
    assert hint in error.hint


def test_folders_of_logs_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that was named here means the same on other machines."""
    monkeypatch.chdir(tmp_path)
    for scheduler in ("local_cwd", "slurm"):
        chosen = choose(scheduler, {"log_dir": "logs"})
        table = BUILTIN_OPTIONS[chosen.backend]
        options, _client = check_options(table, chosen.options, where=scheduler)
        assert options == {"log_dir": str(tmp_path / "logs")}


def test_settings_of_kubernetes_keep_their_names() -> None:
    """What the backend knows is passed on; what only torchx knows is told about."""
    cfg = {"namespace": "ml", "image": "i", "context": "c"}
    torchx = {"validate_spec": False, "quiet": False, "reserved_millicpu": 100, "queue": None}
    chosen = choose("kubernetes", {**cfg, **torchx})
    assert chosen.options == cfg
    assert chosen.notes == ("scheduler_cfg.validate_spec: has no effect",)


def test_pods_are_made_of_the_images_of_roles(tmp_path: Path) -> None:
    """Each role's pods have its image and get its workspace."""
    app = make_app(image="repo/train:1", workspace=str(tmp_path))
    meshes = {"trainer": {"image": "repo/train:1"}}
    assert choose("kubernetes", app=app).options == {"meshes": meshes, "sync_dirs": [str(tmp_path)]}
    said = {"meshes": {"trainer": {"port": 30000}}, "sync_dirs": []}
    meshes = {"trainer": {"port": 30000, "image": "repo/train:1"}}
    assert choose("kubernetes", said, app=app).options == {"meshes": meshes, "sync_dirs": []}


def test_roles_of_pods_start_where_their_workspace_is_sent_to(tmp_path: Path) -> None:
    """Macros mean that folder, too; a role without one starts where its pods do."""
    sent = tmp_path / "code"
    sent.mkdir()
    own, theirs = (
        RoleSpec(name=name, command=("${img_root}/t.py",), workspace=workspace)
        for name, workspace in (("own", ""), ("theirs", str(sent)))
    )
    found = Application(name="app", roles=(own, theirs))
    chosen = choose_backend("kubernetes", {"image": "i"}, found, BUILT_IN)
    made = [_make_program(each, "app", _folder_of(each, chosen)) for each in found.roles]
    there = f"{CODE_FOLDER}/code"
    assert [program.cwd for program in made] == [None, there]
    assert [program.command[-1] for program in made] == ["/t.py", f"{there}/t.py"]


@pytest.mark.parametrize(
    "said",
    [
        {"image": "mine"},
        {"meshes": {"trainer": {"image": "mine"}}},
        {"meshes": {"trainer": {"pod_template": {"containers": []}}}},
        {"meshes": {"trainer": {"label_selector": "app=x"}}},
        {"meshes": "nonsense"},
        {"meshes": {"trainer": "nonsense"}},
    ],
)
def test_settings_about_pods_win_over_images_of_roles(said: dict[str, Any]) -> None:
    """What was said of pods stays as it is; nonsense is refused by who reads it."""
    assert choose("kubernetes", said, app=make_app(image="repo/train:1")).options == said


def test_translated_names_are_in_the_tables() -> None:
    """Every name that a translation gives is one that the backend knows."""
    for dialect in DIALECTS.values():
        table = BUILTIN_OPTIONS.get(dialect.backend)
        if table is not None:
            assert {*dialect.renamed.values(), *dialect.convert, *dialect.kept} <= {*table}
            assert not {*dialect.renamed, *dialect.refused, *dialect.idle} & {*table}


def test_backends_without_images_are_there() -> None:
    """The backends whose hosts are machines as they are, are those of milkweed itself."""
    assert {*BUILT_IN} >= BARE


def test_what_has_no_effect_is_told() -> None:
    """On machines as they are, images, devices and the like are only noted."""
    app = make_app(
        image="repo/image:1",
        capabilities={"node.type": "p4d"},
        devices={"efa": 4},
        metadata={"slurm.x": 1},
    )
    image, *others = choose("slurm", app=replace(app, metadata={"team": "x"})).notes
    assert image.startswith("roles.trainer.image: 'repo/image:1' has no effect on slurm: hosts")
    assert others == [
        "roles.trainer.resource.capabilities: 'node.type' has no effect on slurm",
        "roles.trainer.resource.devices: 'efa' has no effect on slurm: hosts see all",
        "roles.trainer.metadata: 'slurm.x' has no effect on slurm",
        "metadata: 'team' has no effect on slurm",
    ]


def test_an_image_that_is_a_folder_has_an_effect(tmp_path: Path) -> None:
    """It is where ranks start, so there is nothing to tell."""
    assert choose("local_cwd", app=make_app(image=str(tmp_path))).notes == ()


@pytest.mark.parametrize("said", [{"capabilities": {"x": "y"}}, {"devices": {"efa": 1}}])
def test_the_wrong_machines_are_not_asked_for(said: dict[str, Any]) -> None:
    """A cluster that has many kinds of machines would give any: that is refused."""
    error = refusal("kubernetes", app=make_app(image="i", **said))
    assert error.what == f"roles.trainer.resource.{next(iter(said))}: cannot be asked of kubernetes"
    assert choose("kubernetes", app=make_app(image="i")).notes == ()


def make_role(**said: Any) -> SimpleNamespace:
    """A role as torchx has it, as far as it must be."""
    must = {"name": "trainer", "image": "", "entrypoint": "", "args": ["torchrun", "a.py"]}
    return SimpleNamespace(**(must | {"num_replicas": 1} | said))


def folder(**said: Any) -> str:
    """Where the ranks of a role start."""
    return read_appdef(SimpleNamespace(name="app", roles=[make_role(**said)])).roles[0].workspace


def test_several_roles_are_several_meshes() -> None:
    """Each role is a mesh, with the hosts and resources it asks for."""
    reader = make_role(name="reader", num_replicas=3, resource=SimpleNamespace(cpu=2))
    found = read_appdef(SimpleNamespace(name="app", roles=[make_role(), reader]))
    meshes = make_meshes(found.sizes, None, found.resources)
    assert [(mesh.name, mesh.hosts, mesh.resources.cpus) for mesh in meshes] == [
        ("trainer", 1, None),
        ("reader", 3, 2),
    ]


def test_a_workspace_is_where_ranks_start(tmp_path: Path) -> None:
    """A folder, as text or as a project without a target, is taken as it is."""
    for given in (str(tmp_path), SimpleNamespace(projects={str(tmp_path): ""})):
        assert folder(workspace=given) == str(tmp_path)


def test_an_image_that_is_a_folder_is_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is said of a workspace, an image counts only if it is a local folder."""
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path)
    assert folder(image="code:latest") == ""
    for unsaid in ({}, {"workspace": None}, {"workspace": SimpleNamespace(projects={})}):
        assert folder(image="code", **unsaid) == str(tmp_path / "code")


def test_projects_that_are_in_place_need_no_copy(tmp_path: Path) -> None:
    """Projects whose targets are where they lie already are one folder."""
    for name in ("torch", "sub/vision"):
        (tmp_path / name).mkdir(parents=True)
    projects = {
        f"{tmp_path}/torch": "torch/",
        f"{tmp_path}/sub/vision": "sub/vision",
        str(tmp_path): None,
    }
    assert folder(workspace=SimpleNamespace(projects=projects)) == str(tmp_path)


@pytest.mark.parametrize("projects", [{"/a": "b"}, {"/a": "", "/b": ""}, {"/a": "a", "/b": ""}])
def test_projects_that_must_be_copied_are_refused(projects: dict[str, str]) -> None:
    """Milkweed cannot bring projects to the hosts, and says so."""
    with pytest.raises(SpecError, match="cannot bring its projects to the hosts yet") as caught:
        folder(workspace=SimpleNamespace(projects=projects))
    assert f"/a to {projects['/a'] or '.'}" in caught.value.seen


@pytest.mark.parametrize(
    ("given", "said"), [("/no/such/folder", "there is no folder"), (7, "7 is not a folder")]
)
def test_a_workspace_that_is_no_folder_is_refused(given: Any, said: str) -> None:
    """Ranks cannot start in a folder that is not there."""
    with pytest.raises(SpecError, match=said):
        folder(workspace=given)
