"""Job files: what they mean, and the exact words when they are wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from milkweed.errors import JobFileError
from milkweed.jobfile import JobFile, find_jobfile, load_jobfile, parse_jobfile
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.options import OptionField
from milkweed.spec import CodeSpec, JobSpec, Lifetime, MeshSpec, Resources

SLURM = {
    "partition": OptionField("text", "The partition.", required=True),
    "extra": OptionField("data", "More."),
    "poll": OptionField("duration", "How often to look.", client=True),
}
TABLES: Mapping[str, Mapping[str, OptionField]] = {**BUILTIN_OPTIONS, "slurm": SLURM}
SMALL = "name: demo\non: process\nmeshes: {workers: 2}\n"


def parse(text: str) -> JobFile:
    return parse_jobfile(text, "job.yaml", options_of=TABLES.get, backends=sorted(TABLES))


def load(path: Path) -> JobFile:
    return load_jobfile(path, options_of=TABLES.get, backends=sorted(TABLES))


# What a job file means


def test_the_whole_file_becomes_a_spec() -> None:
    """Every key of a job file ends up in its place of the job."""
    text = """
        name: demo
        on: process
        meshes:
          trainers:
            hosts: 2
            cpus: 4
            gpus: 8
            gpu_type: H100
            memory: 64Gi
            disk: 200GB
            env: {NCCL_DEBUG: INFO}
          dataloaders: 1
        env: {MODE: fast}
        code: {workdir: ., include: ["*.py"], exclude: [tests, "*.pyc"]}
        lifetime: {idle_timeout: 30m, time_limit: 12:00:00}
        run: python train.py --lr 0.1
        on_change: ask
        process: {transport: tls, start_timeout: 90s}
        slurm: {partition: gpu}
    """
    resources = Resources(
        cpus=4, gpus=8, gpu_type="H100", memory_bytes=64 * 2**30, disk_bytes=200 * 10**9
    )
    assert parse(dedent(text)) == JobFile(
        spec=JobSpec(
            name="demo",
            backend="process",
            meshes=(
                MeshSpec(name="trainers", hosts=2, resources=resources, env={"NCCL_DEBUG": "INFO"}),
                MeshSpec(name="dataloaders", hosts=1),
            ),
            options={"transport": "tls"},
            client={"start_timeout": 90.0},
            env={"MODE": "fast"},
            code=CodeSpec(workdir=str(Path.cwd()), include=("*.py",), exclude=("tests", "*.pyc")),
            lifetime=Lifetime(idle_timeout_s=1800.0, time_limit_s=43200.0),
            run=("python", "train.py", "--lr", "0.1"),
        ),
        path=Path("job.yaml"),
        on_change="ask",
    )


def test_the_smallest_file() -> None:
    """Name, backend and meshes are enough."""
    jobfile = parse(SMALL)
    meshes = (MeshSpec(name="workers", hosts=2),)
    assert jobfile.spec == JobSpec(name="demo", backend="process", meshes=meshes)
    assert jobfile.on_change is None


def test_plain_words_mean_what_yaml_1_2_says() -> None:
    """`no`, `off`, `on`, `yes` and dates are text, and so is the key `on`."""
    spec = parse(SMALL + "env: {A: no, B: off, C: on, D: yes, E: 2020-01-01, F: 1_000}\n").spec
    assert spec.backend == "process"
    assert list(spec.env.values()) == ["no", "off", "on", "yes", "2020-01-01", "1_000"]


@pytest.mark.parametrize(("hosts", "count"), [("012", 12), ("0x10", 16), ("0o10", 8), ("+3", 3)])
def test_whole_numbers_are_those_of_yaml_1_2(hosts: str, count: int) -> None:
    """A leading zero does not make a number octal; 0o and 0x do what they say."""
    spec = parse(f"name: demo\non: process\nmeshes: {{workers: {hosts}}}\n").spec
    assert spec.sizes == {"workers": count}


def test_only_the_chosen_block_is_used() -> None:
    """Blocks of other backends wait in the file, unread, whatever they hold."""
    spec = parse(SMALL + "slurm: {no_such_key: 1}\nlocal:\nprocess: {python_exe: py}\n").spec
    assert spec.options == {"python_exe": "py"}
    assert spec.client == {}


def test_one_word_moves_the_job() -> None:
    """Changing `on` takes the other block, and nothing else."""
    text = SMALL + "slurm: {partition: gpu, poll: 5s, extra: {a: [1]}}\nprocess: {log_dir: x}\n"
    spec = parse(text.replace("on: process", "on: slurm")).spec
    assert (spec.backend, spec.options) == ("slurm", {"partition": "gpu", "extra": {"a": [1]}})
    assert spec.client == {"poll": 5.0}


def test_saying_a_default_changes_nothing() -> None:
    """A job that spells out a default is the same allocation."""
    said = parse(SMALL + "process: {transport: ipc, stream_logs: true}\n").spec
    assert said == parse(SMALL).spec


def test_an_unused_backend_is_not_imported() -> None:
    """A block of a backend that is listed does not load that backend."""
    asked: list[str] = []

    def options_of(name: str) -> Mapping[str, OptionField] | None:
        asked.append(name)
        return TABLES.get(name)

    text = SMALL + "slurm: {}\nlocal: {}\n"
    parse_jobfile(text, "job.yaml", options_of=options_of, backends=sorted(TABLES))
    assert asked == ["process"]


def test_backends_need_no_list() -> None:
    """Without a list of names, a backend is known when it has a table."""
    text = SMALL + "slurm: {}\n"
    assert parse_jobfile(text, "job.yaml", options_of=TABLES.get).spec.backend == "process"


def test_empty_mappings_may_be_left_empty() -> None:
    """A mapping whose entries are all commented out is an empty one."""
    assert parse(SMALL + "env:\ncode:\nlifetime:\nprocess:\n").spec == parse(SMALL).spec


def test_aliases_stand_for_whole_values() -> None:
    """An anchor's value can be used again."""
    text = """
        name: demo
        on: process
        meshes:
          a: &mesh {hosts: 2, env: {X: "1"}}
          b: *mesh
    """
    a, b = parse(dedent(text)).spec.meshes
    assert (a.hosts, a.env) == (b.hosts, b.env) == (2, {"X": "1"})


def test_the_later_anchor_wins() -> None:
    """An anchor that is set again means the later value from there on."""
    text = "name: &a demo\non: &a process\nmeshes: {workers: 1}\nenv: {B: *a}\n"
    assert parse(text).spec.env == {"B": "process"}


def test_run_may_be_words() -> None:
    """A list of words is taken as it is; a text is cut like a shell would."""
    assert parse(SMALL + "run: [a, 'b c', '$d']\n").spec.run == ("a", "b c", "$d")
    assert parse(SMALL + "run: |\n  a \\\n  'b c' $d\n").spec.run == ("a", "b c", "$d")


def test_json_is_a_job_file() -> None:
    """A job written by a JSON library is read, characters beyond the first plane included."""
    text = '{"name": "demo", "on": "process", "meshes": {"a": 1}, "env": {"A": "\\ud83e\\udd8b"}}'
    assert parse(text).spec.env == {"A": "\U0001f98b"}


def test_byte_order_marks_and_windows_lines_do_not_matter() -> None:
    """A file saved on another system is the same job."""
    assert parse("\ufeff" + SMALL.replace("\n", "\r\n")).spec == parse(SMALL).spec


def test_a_version_line_may_say_1_2() -> None:
    """A `%YAML 1.2` line is what job files are anyway."""
    assert parse("%YAML 1.2\n---\n" + SMALL + "...\n").spec == parse(SMALL).spec


# Files


def test_load_reads_a_file(tmp_path: Path) -> None:
    """Loading a file is parsing its text, with the file's own path."""
    path = tmp_path / "job.yaml"
    path.write_text(SMALL + "on_change: new\n")
    jobfile = load(path)
    assert (jobfile.spec, jobfile.path, jobfile.on_change) == (parse(SMALL).spec, path, "new")


def test_the_workdir_is_seen_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder means the same wherever the command is run from."""
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "job.yaml"
    monkeypatch.chdir(tmp_path)
    for said, meant in ((".", "sub"), ("../src", "src"), (f"{tmp_path}/x", "x")):
        path.write_text(SMALL + f"code: {{workdir: {said}}}\n")
        assert load(Path("sub/job.yaml")).spec.code.workdir == str(tmp_path / meant)


def test_the_workdir_may_be_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the person's home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    path = tmp_path / "job.yaml"
    path.write_text(SMALL + "code: {workdir: ~/src}\n")
    assert load(path).spec.code.workdir == str(tmp_path / "home" / "src")


def test_the_folder_for_logs_is_seen_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job has its logs in one place, wherever each command is run from."""
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "job.yaml"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for said, meant in (("logs", "sub/logs"), ("~/logs", "home/logs"), (f"{tmp_path}/x", "x")):
        path.write_text(SMALL + f"process: {{log_dir: {said}}}\n")
        assert load(Path("sub/job.yaml")).spec.options == {"log_dir": str(tmp_path / meant)}


def test_a_folder_is_what_a_backend_declares_as_one(tmp_path: Path) -> None:
    """Another's `log_dir` may be a path on its cluster: it stays as it was said."""
    tables: dict[str, Mapping[str, OptionField]] = {
        "mine": {"log_dir": OptionField("text", "There."), "cache": OptionField("folder", "Here.")}
    }
    path = tmp_path / "job.yaml"
    path.write_text("name: demo\non: mine\nmeshes: {a: 1}\nmine: {log_dir: l, cache: c}\n")
    spec = load_jobfile(path, options_of=tables.get, backends=["mine"]).spec
    assert spec.options == {"log_dir": "l", "cache": str(tmp_path / "c")}


@pytest.mark.parametrize(
    "line", ["code: {workdir: ~nobody-here/x}", "process: {log_dir: ~nobody-here}"]
)
def test_a_folder_at_nobodys_home_is_a_mistake_with_a_place(tmp_path: Path, line: str) -> None:
    """It is told like any other, with its line."""
    path = tmp_path / "job.yaml"
    path.write_text(f"{SMALL}{line}\n")
    told = load_error(path)
    assert told.startswith(f"{path}:4:")
    assert "begins with the home of somebody who is not known here" in told


def load_error(path: Path) -> str:
    with pytest.raises(JobFileError) as caught:
        load(path)
    return str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """A file that is not there is named."""
    path = tmp_path / "none.yaml"
    assert load_error(path) == (
        f"{path}: there is no such file\n"
        "  do:   create it, or name another file; the usual name is milkweed.yaml"
    )


def test_a_folder_is_told_which_file_to_name(tmp_path: Path) -> None:
    """A folder is not read; the job file in it is pointed out."""
    told = f"{tmp_path}: this is a folder, not a file\n  do:   "
    assert load_error(tmp_path) == f"{told}the usual name is {tmp_path / 'milkweed.yaml'}"
    (tmp_path / "job.yaml").touch()
    assert load_error(tmp_path) == f"{told}name the file: {tmp_path / 'job.yaml'}"


def test_an_unreadable_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system says about a file that it does not open is shown."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    path = tmp_path / "job.yaml"
    assert load_error(path) == f"{path}: cannot be read\n  seen: Permission denied"


def test_an_impossible_path_is_told() -> None:
    """A path that no system could open is an error of the same kind."""
    assert "cannot be read" in load_error(Path("a\0b"))


def test_bytes_that_are_not_utf_8_are_placed(tmp_path: Path) -> None:
    """The first byte that is not UTF-8 is named with its place."""
    path = tmp_path / "job.yaml"
    path.write_bytes(b"name: demo\non: \xff\n")
    assert load_error(path) == (
        f"{path}:2:5: the byte 0xff is not UTF-8\n  do:   save the file as UTF-8"
    )


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    """A file that cannot be a job file is refused before it is parsed."""
    path = tmp_path / "job.yaml"
    path.write_bytes(b"#" * (2**20 + 1))
    assert load_error(path).startswith(f"{path}: has more than 1,048,576 bytes\n")


def test_mistakes_of_a_loaded_file_name_its_path(tmp_path: Path) -> None:
    """The place of a mistake can be opened as it is written."""
    path = tmp_path / "job.yaml"
    path.write_text(SMALL + "rum: x\n")
    assert load_error(path).startswith(f"{path}:4:1: rum: unknown key\n")


def test_a_folder_has_one_job_file(tmp_path: Path) -> None:
    """`milkweed.yaml` is looked for before `job.yaml`, and folders are passed over."""
    assert find_jobfile(tmp_path) is None
    (tmp_path / "milkweed.yaml").mkdir()
    assert find_jobfile(tmp_path) is None
    (tmp_path / "job.yaml").touch()
    assert find_jobfile(str(tmp_path)) == tmp_path / "job.yaml"
    (tmp_path / "milkweed.yaml").rmdir()
    (tmp_path / "milkweed.yaml").touch()
    assert find_jobfile(tmp_path) == tmp_path / "milkweed.yaml"


def test_importing_is_cheap() -> None:
    """Importing the module loads neither a YAML parser nor a validator nor a backend."""
    code = (
        "import sys, milkweed.jobfile\n"
        "heavy = {'ruamel', 'pydantic', 'milkweed.backends'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
