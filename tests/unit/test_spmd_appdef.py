"""AppDefs of torchx and torchrun commands, read without torchx."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from milkweed.errors import SpecError
from milkweed.spec import Resources
from milkweed.spmd.appdef import (
    RANK0_ENV,
    Application,
    RoleSpec,
    read_appdef,
    read_command,
    resolve,
    substitute,
)

DDP = (
    "torchrun --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:29500"
    " --rdzv_id '${app_id}' --nnodes 2 --nproc_per_node 4 --tee 3 --role ''"
    """ 'sub/train me.py' --lr '0.1 $HOME' 'it'"'"'s'"""
)


def resource(**said: Any) -> SimpleNamespace:
    """What torchx 0.7 has when nothing is said."""
    fields = {"cpu": -1, "gpu": -1, "memMB": -1, "capabilities": {}, "devices": {}}
    return SimpleNamespace(**(fields | said))


def old_role(**said: Any) -> SimpleNamespace:
    """A role of torchx 0.7.0."""
    texts = {"name": "trainer", "image": "image:latest", "retry_policy": "APPLICATION"}
    command = {"entrypoint": "workspace/entrypoint.sh", "args": ["torchrun", "train.py"], "env": {}}
    counts = {"num_replicas": 1, "min_replicas": None, "max_retries": 0, "resource": resource()}
    more = {"base_image": None, "port_map": {}, "metadata": {}, "mounts": []}
    return SimpleNamespace(**(texts | command | counts | more | said))


def new_role(**said: Any) -> SimpleNamespace:
    """A role of a nightly torchx: with a workspace, without a base image."""
    role = old_role(**({"workspace": None, "overrides": {}, "resource": resource(tags={})} | said))
    del role.base_image
    return role


def app(*roles: SimpleNamespace, name: Any = "my-training", **said: Any) -> SimpleNamespace:
    return SimpleNamespace(name=name, roles=list(roles), **({"metadata": {}} | said))


def read(**said: Any) -> RoleSpec:
    """The only role of an AppDef, in both shapes."""
    old = read_appdef(app(old_role(**said))).roles[0]
    new = read_appdef(app(new_role(**said))).roles[0]
    assert old == new
    return old


def words(*given: str) -> RoleSpec:
    """The role of a list of words."""
    return read_command(given).roles[0]


def refusal(role: SimpleNamespace) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read_appdef(app(role))
    return caught.value


def test_the_references_appdef_is_read() -> None:
    """The AppDef that Monarch's documents show has a wrapper, a command and two hosts."""
    found = read_appdef(
        app(
            new_role(
                image="my_workspace:latest",
                args=["torchrun", "--nnodes=2", "--nproc-per-node=8", "-m", "train"],
                num_replicas=2,
                resource=resource(cpu=64, gpu=8, memMB=1024),
            )
        )
    )
    asked = Resources(cpus=64, gpus=8, memory_bytes=2**30)
    role = RoleSpec(
        name="trainer",
        command=("--nnodes=2", "--nproc-per-node=8", "-m", "train"),
        wrapper=("workspace/entrypoint.sh",),
        hosts=2,
        resources=asked,
        image="my_workspace:latest",
    )
    assert found == Application(name="my-training", roles=(role,))
    assert (found.sizes, found.resources) == ({"trainer": 2}, {"trainer": asked})


def test_the_references_command_is_read() -> None:
    """The list that Monarch's documents show is one role on one host."""
    found = read_command(["torchrun", "--nproc-per-node=4", "--standalone", "train.py"])
    role = RoleSpec(
        name="trainer", command=("--nproc-per-node=4", "--standalone", "train.py"), literal=True
    )
    assert found == Application(name="spmd", roles=(role,))


def test_the_output_of_dist_ddp_is_read() -> None:
    """The shell's command that torchx's own component writes becomes words."""
    role = read(entrypoint="bash", args=["-c", DDP], num_replicas=2, min_replicas=2)
    found = resolve(role, folder="/code", app_id="run-1")
    assert found.wrapper == ()
    assert found.command == (
        *("--rdzv_backend", "c10d", "--rdzv_endpoint", f"${{{RANK0_ENV}:=localhost}}:29500"),
        *("--rdzv_id", "run-1", "--nnodes", "2", "--nproc_per_node", "4", "--tee", "3"),
        *("--role", "", "sub/train me.py", "--lr", "0.1 $HOME", "it's"),
    )
    assert (found.hosts, found.min_hosts, found.unexpanded) == (2, 2, ())


@pytest.mark.parametrize(
    ("given", "wrapper"),
    [
        (["torchrun"], []),
        (["python", "-m", "torch.distributed.run"], []),
        (["python3", "-u", "-m", "torch.distributed.run"], []),
        (["python3.11", "-m", "torchrun"], []),
        (["python", "torchrun"], []),
        (["./entry.sh", "torchrun"], ["./entry.sh"]),
        (["./entry.sh", "python", "-m", "torch.distributed.run"], ["./entry.sh"]),
        (["uv", "run", "torchrun"], ["uv", "run"]),
        (["env", "A=1", "torchrun"], ["env", "A=1"]),
        (["bash", "setup.sh", "torchrun"], ["bash", "setup.sh"]),
        (["python", "setup.py", "torchrun"], ["python", "setup.py"]),
    ],
)
def test_torchrun_is_found_however_it_is_spelled(given: list[str], wrapper: list[str]) -> None:
    """What stands before torchrun is the wrapper; what stands after it is the command."""
    role = words(*given, "--nnodes=1", "train.py", "torchrun")
    assert (role.wrapper, role.command) == (tuple(wrapper), ("--nnodes=1", "train.py", "torchrun"))


@pytest.mark.parametrize(
    "given", [["/env/bin/torchrun"], ["/env/bin/python", "-m", "torch.distributed.run"]]
)
def test_another_interpreter_is_not_used_silently(given: list[str]) -> None:
    """The path of a torchrun says which Python was meant, and a note says that it is not used."""
    found = read_command([*given, "train.py"])
    assert found.roles[0].command == ("train.py",)
    assert found.notes == (
        f"command: {given[0]!r} is not used: ranks run with the Python of their hosts",
    )


@pytest.mark.parametrize(
    ("given", "wrapper"),
    [
        (["sh", "-c", "torchrun train.py 'a b'"], ()),
        (["/bin/bash", "-c", "exec torchrun train.py 'a b'"], ()),
        (["bash", "-c", "torchrun \\\n train.py \\\n 'a b'\n"], ()),
        (["bash", "-c", 'uv run torchrun train.py "a b"'], ("uv", "run")),
        (["entry.sh", "bash", "-c", "torchrun train.py a\\ b"], ("entry.sh",)),
        (["bash", "-lc", "torchrun train.py 'a b'"], ("bash", "-lc", 'exec "$@"', "bash")),
    ],
)
def test_a_shells_command_becomes_words(given: list[str], wrapper: tuple[str, ...]) -> None:
    """A shell that only runs torchrun is not needed; one with options of its own is kept."""
    role = words(*given)
    assert (role.wrapper, role.command) == (wrapper, ("train.py", "a b"))


@pytest.mark.parametrize(
    "text",
    [
        "source env.sh && torchrun train.py",
        "torchrun train.py; echo done",
        "torchrun train.py > log",
        "torchrun train.py | tee log",
        "torchrun train.py $(date)",
        'torchrun train.py "$(date)"',
        "torchrun train.py `date`",
        'torchrun train.py "`date`"',
        "torchrun train.py # all of it",
        "cd code\ntorchrun train.py",
        "A=1 torchrun train.py",
    ],
)
def test_a_shell_that_does_more_is_refused(text: str) -> None:
    """Nothing of a shell's command is dropped."""
    with pytest.raises(SpecError, match="does more than to run torchrun") as caught:
        words("bash", "-c", text)
    assert 'exec "$@"' in caught.value.hint


def test_quoted_signs_are_no_operators() -> None:
    """What a shell would pass on as it is, is passed on as it is."""
    role = words("bash", "-c", r"""torchrun t.py 'a;b&&c' "x|y>z # \"q\"" \; a#b 'don`t $X' \$Y""")
    assert role.command == ("t.py", "a;b&&c", 'x|y>z # "q"', ";", "a#b", "don`t $X", "$Y")
    assert role.unexpanded == ()


def test_what_a_shell_would_fill_in_is_told() -> None:
    """Variables stay as they are, and a note names each word that has one."""
    text = """torchrun --rdzv_endpoint $MASTER:29500 "$OUT/x's" ~/data 'a$b' HEAD~1"""
    found = read_command(["bash", "-c", text])
    role = found.roles[0]
    assert role.command[1:] == ("$MASTER:29500", "$OUT/x's", "~/data", "a$b", "HEAD~1")
    assert role.unexpanded == ("$MASTER:29500", "$OUT/x's", "~/data")
    assert found.notes[0] == "command.args: no shell fills in '$MASTER:29500'; it stays as it is"


def test_macros_are_no_variables_of_a_shell() -> None:
    """Torchx's macros are filled in before a shell would see them, in quotes or not."""
    text = 'torchrun ${img_root}/train.py --id "${app_id}" --home $$HOME'
    role = read(entrypoint="bash", args=["-c", text])
    assert role.unexpanded == ("$$HOME",)
    found = resolve(role, folder="/code", app_id="a b")
    assert found.command == ("/code/train.py", "--id", "a b", "--home", "$HOME")
    assert found.unexpanded == ("$HOME",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "the command is empty"),
        (["python", "train.py"], "command: no torchrun command"),
        (["bash", "-c", "python train.py"], "command: no torchrun command"),
        (["bash", "-c", "torchrun 'train.py"], "is no command"),
        (["bash", "-c", ""], "command: no torchrun command"),
        (["bash", "-c", "torchrun a.py", "x"], "command: 'x' follows the shell's command"),
        (["python", "-m", "torch.distributed.launch", "a.py"], "distributed.launch is not"),
        (["torchrun", 4], "is not a list of words"),
        ("torchrun train.py", "the command 'torchrun train.py' is not a list"),
    ],
)
def test_what_is_no_torchrun_command_is_refused(given: Sequence[str], said: str) -> None:
    """An error says what is wrong with the words."""
    with pytest.raises(SpecError, match=said):
        read_command(given)


def test_the_error_says_what_was_looked_for() -> None:
    """Without a torchrun command, the known spellings are listed."""
    error = refusal(new_role(args=["python", "a.py"]))
    assert error.what == "roles.trainer: no torchrun command"
    assert error.seen == "workspace/entrypoint.sh python a.py"
    assert "python -m torch.distributed.run" in error.hint


def test_words_of_a_list_are_literal() -> None:
    """Who writes a list writes what torchrun gets: macros and dollars have no meaning there."""
    role = words("torchrun", "train.py", "$$5", "${app_id}")
    assert resolve(role, folder="/code", app_id="x").command == ("train.py", "$$5", "${app_id}")


@pytest.mark.parametrize("entrypoint", ["<MISSING>", "", None])
def test_an_entrypoint_may_be_missing(entrypoint: str | None) -> None:
    """Where torchx says that there is no entrypoint, the arguments are the whole command."""
    role = read(entrypoint=entrypoint)
    assert (role.wrapper, role.command) == ((), ("train.py",))


def test_macros_are_filled_in_everywhere() -> None:
    """Words, wrapper and variables are filled in, once."""
    role = read(
        entrypoint="${img_root}/entry.sh",
        args=["torchrun", "--node-rank=${replica_id}", "$$$$x", "${base_img_root}", "${other}"],
        env={"ID": "job-${app_id}", "HOST": "${rank0_env}", "COST": "$$5"},
    )
    found = resolve(role, folder="/code", app_id="run-1")
    assert found.wrapper == ("/code/entry.sh",)
    assert found.command == ("--node-rank=${replica_id}", "$$x", "/code", "${other}")
    assert found.env == {"ID": "job-run-1", "HOST": RANK0_ENV, "COST": "$5"}
    assert resolve(found, folder="/else", app_id="run-2") == found


def test_one_text_is_filled_in() -> None:
    """Unknown names and single dollars stay."""
    text = substitute("$app_id ${app_id} $ ${replica_id} $HOME $1", folder="/f", app_id="x")
    assert text == "x x $ ${replica_id} $HOME $1"


@pytest.mark.parametrize(
    "said",
    [
        {"env": {"SHARD": "${replica_id}"}},
        {"entrypoint": "entry-${replica_id}.sh"},
        {"args": ["torchrun", "train.py", "--shard=${replica_id}"]},
        {"args": ["torchrun", "--node_rank", "${replica_id}", "train.py", "${replica_id}"]},
    ],
)
def test_a_number_of_each_host_is_refused(said: dict[str, Any]) -> None:
    """Only torchrun's --node-rank may have a number that differs between hosts."""
    error = refusal(new_role(**said))
    assert "different on each host" in error.what
    assert "GROUP_RANK" in error.hint


def test_torchruns_own_node_rank_may_differ() -> None:
    """What dist.ddp writes for the static rendezvous is left for the parser."""
    role = read(args=["torchrun", "--node_rank", "${replica_id}", "train.py"])
    assert role.command == ("--node_rank", "${replica_id}", "train.py")


@pytest.mark.parametrize(
    "given", [None, "<NONE>", resource(), resource(cpu=0, gpu=0, memMB=0), resource(cpu=None)]
)
def test_resources_may_be_unsaid(given: Any) -> None:
    """What torchx uses for «not said» asks for nothing."""
    assert read(resource=given).resources == Resources()


def test_what_schedulers_interpret_is_kept() -> None:
    """Capabilities, devices and metadata are for whoever chooses the backend."""
    role = read(
        resource=resource(capabilities={"type": "p4d"}, devices={"efa": 4}),
        metadata={"slurm.x": 1},
        port_map={"c10d": 29500},
    )
    assert (role.capabilities, role.devices) == ({"type": "p4d"}, {"efa": 4})
    assert role.metadata == {"slurm.x": 1}


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"mounts": ["x"]}, "roles.trainer.mounts: milkweed mounts nothing"),
        ({"max_retries": 3}, "roles.trainer.max_retries: no scheduler starts the program 3 more"),
        ({"base_image": "x"}, "roles.trainer.base_image: milkweed does not know"),
        ({"novelty": 1}, "roles.trainer.novelty: milkweed does not know"),
        ({"resource": resource(tpu=1)}, "roles.trainer.resource.tpu: milkweed does not know"),
        ({"resource": resource(cpu=0.5)}, "roles.trainer.resource.cpu: 0.5 is not a whole number"),
        ({"resource": resource(gpu=True)}, "roles.trainer.resource.gpu: True is not a whole"),
        ({"num_replicas": 0}, "roles.trainer.num_replicas: 0 hosts"),
        ({"num_replicas": "2"}, "roles.trainer.num_replicas: '2' is not a whole number"),
        ({"min_replicas": "1"}, "roles.trainer.min_replicas: '1' is not a whole number"),
        ({"env": {"A": 1}}, "roles.trainer.env.A: 1 is not text"),
        ({"args": "torchrun train.py"}, "roles.trainer.args: 'torchrun train.py' is not a list"),
        ({"args": ["torchrun", 1]}, "roles.trainer.args: .* is not a list of words"),
        ({"name": "x" * 64}, "has 64 characters"),
        ({"name": ""}, "is empty"),
    ],
)
def test_what_cannot_be_honoured_is_refused(said: dict[str, Any], what: str) -> None:
    """The error names the field; nothing is dropped in silence."""
    with pytest.raises(SpecError, match=what):
        read_appdef(app(old_role(**said)))


def test_unknown_fields_that_say_nothing_are_fine() -> None:
    """A later torchx may have more fields; only one that is set could matter."""
    assert read(novelty=None, another={}, _private=1).name == "trainer"


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("train me", "train_me"),
        ("my.module", "my_module"),
        ("02_train", "role_02_train"),
        ("keys", "role_keys"),
        ("import", "role_import"),
        ("_x", "role__x"),
    ],
)
def test_roles_get_names_that_meshes_may_have(given: str, made: str) -> None:
    """Torchx names roles after scripts; a note says what the mesh is called instead."""
    found = read_appdef(app(new_role(name=given)))
    assert found.roles[0].name == made
    assert found.notes == (f"roles.{given}: is no name of a mesh; it is called {made!r}",)


def test_two_roles_cannot_be_one_mesh() -> None:
    """Names that would become the same are refused."""
    with pytest.raises(SpecError, match="two of them would be the mesh 'a_b'"):
        read_appdef(app(new_role(name="a b"), new_role(name="a.b")))


def test_the_application_gets_a_name_that_jobs_may_have() -> None:
    """A name with spaces or slashes is changed, and a note says so."""
    found = read_appdef(app(new_role(), name="/exp/train me"))
    assert found.name == "exp-train-me"
    assert found.notes[0].endswith("is no name of a job; it is called 'exp-train-me'")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (app(), "roles: the AppDef has none"),
        (app(new_role(), name=""), "name: '' is empty"),
        (app(new_role(), name="//"), "name: '//' has characters that are not allowed"),
        ({"name": "x"}, "dict is not an AppDef"),
        ("torchrun train.py", "str is not an AppDef"),
    ],
)
def test_what_is_no_application_is_refused(given: Any, said: str) -> None:
    """Something without roles or a usable name is not read."""
    with pytest.raises(SpecError, match=said):
        read_appdef(given)
