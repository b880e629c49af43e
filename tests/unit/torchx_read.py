"""A program: what milkweed reads of what torchx makes, as one line of JSON. Its PYTHONPATH has a torchx."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from types import SimpleNamespace
from typing import Any

from milkweed.backends import BUILT_IN
from milkweed.errors import MilkweedError
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.options import check_options
from milkweed.spmd.appdef import RANK0_ENV, read_appdef, resolve
from milkweed.spmd.schedulers import DIALECTS, choose_backend

NAMES = ("specs", "components.dist", "schedulers")
SCHEDULERS = ("local_cwd", "slurm", "kubernetes")


def load() -> SimpleNamespace:
    """Torchx's own modules."""
    made = [importlib.import_module(f"torchx.{name}") for name in NAMES]
    return SimpleNamespace(
        **{name.rpartition(".")[2]: each for name, each in zip(NAMES, made, strict=True)}
    )


def make_app(torchx: Any, image: str = "my_workspace:latest", **more: Any) -> Any:
    """The documents' example."""
    role = torchx.specs.Role(
        name="trainer",
        image=image,
        entrypoint="workspace/entrypoint.sh",
        args=["torchrun", "--nnodes=2", "--nproc-per-node=8", "-m", "train"],
        num_replicas=2,
        resource=torchx.specs.resource(h="gpu.xlarge"),
        **more,
    )
    return torchx.specs.AppDef(name="my-training", roles=[role])


def read_example(torchx: Any) -> dict[str, Any]:
    """What is read of it."""
    found = read_appdef(make_app(torchx))
    [role] = found.roles
    said = {"wrapper": role.wrapper, "command": role.command, "notes": found.notes}
    return {**said, "sizes": dict(found.sizes), "gpus": found.resources["trainer"].gpus}


def read_component(torchx: Any) -> dict[str, Any]:
    """What is read of what dist.ddp makes, and how torchx itself fills it in."""
    made = torchx.dist.ddp("it's", "$$x", script="train me.py", j="2x4", rdzv_backend="static")
    role = resolve(read_appdef(made).roles[0], folder="/code", app_id="id-1")
    values = torchx.specs.macros.Values("/code", "id-1", "${replica_id}", RANK0_ENV)
    theirs = values.apply(made.roles[0]).env
    return {"name": role.name, "command": role.command, "env": dict(role.env), "theirs": theirs}


def read_settings(torchx: Any, scheduler: str) -> dict[str, Any]:
    """What becomes of a scheduler's settings when all have their defaults."""
    factory = torchx.schedulers.get_scheduler_factories()[scheduler]
    settings = dict(iter(factory("test").run_opts()))
    cfg = {name: option.default for name, option in settings.items()}
    app = read_appdef(make_app(torchx, image=""))
    chosen = choose_backend(scheduler, cfg, app, BUILT_IN)
    if scheduler in BUILT_IN:
        check_options(BUILTIN_OPTIONS[scheduler], chosen.options, where=scheduler)
    unknown = {name.replace("-", "_") for name in cfg} - DIALECTS[scheduler].names
    return {"unknown": sorted(unknown), "notes": chosen.notes}


def read_workspaces(torchx: Any, folder: str) -> dict[str, Any]:
    """The folder that ranks start in, by what a role says of it; this torchx may have no such word."""
    if not hasattr(torchx.specs, "Workspace"):
        return {}
    workspace = torchx.specs.Workspace
    said = {
        "none": None,
        "empty": workspace({}),
        "folder": workspace({folder: ""}),
        "below": workspace({f"{folder}/code": "code"}),
        "text": workspace.from_str(folder),
        "elsewhere": workspace({folder: "other"}),
    }
    return {name: _read_folder(torchx, value) for name, value in said.items()}


def _read_folder(torchx: Any, workspace: Any) -> str:
    try:
        return read_appdef(make_app(torchx, workspace=workspace)).roles[0].workspace
    except MilkweedError as error:
        return f"refused: {error.what}"


def main(folder: str) -> None:
    """Print all of it."""
    warnings.simplefilter("ignore")  # dist.ddp has a newer name
    torchx = load()
    found = {
        "example": read_example(torchx),
        "component": read_component(torchx),
        "settings": {name: read_settings(torchx, name) for name in SCHEDULERS},
        "workspaces": read_workspaces(torchx, folder),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
