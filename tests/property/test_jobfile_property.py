"""Job files under random input: good ones mean what they say, bad ones only ever give JobFileError."""

from __future__ import annotations

import io
import json
import keyword
import os
import shlex
from typing import Any

from hypothesis import assume, example, given, strategies as st
from ruamel.yaml import YAML

from milkweed.errors import JobFileError
from milkweed.jobfile import JobFile, parse_jobfile
from milkweed.option_tables import BUILTIN_OPTIONS
from milkweed.spec import (
    RESERVED_MESH_NAMES,
    CodeSpec,
    JobSpec,
    Lifetime,
    MeshSpec,
    Resources,
)
from milkweed.units import render_size

# What YAML can carry in quotes and programs can be given: no surrogates, no NUL.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
full_texts = texts.filter(bool)
job_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
mesh_names = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,12}", fullmatch=True).filter(
    lambda name: name not in RESERVED_MESH_NAMES and not keyword.iskeyword(name)
)
envs = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), texts)
counts = st.integers(1, 10**6)
seconds = st.integers(1, 10**7).map(float)
resources = st.builds(
    Resources,
    cpus=st.none() | counts,
    gpus=st.none() | st.integers(0, 16),
    gpu_type=st.none() | full_texts,
    memory_bytes=st.none() | st.integers(1, 2**50),
    disk_bytes=st.none() | st.integers(1, 2**50),
)
meshes = st.lists(
    st.builds(MeshSpec, name=mesh_names, hosts=counts, resources=resources, env=envs),
    min_size=1,
    max_size=4,
    unique_by=lambda mesh: mesh.name,
).map(tuple)
texts_tuples = st.lists(texts, max_size=3).map(tuple)
folders = full_texts.map(lambda text: os.path.abspath(f"/{text}"))
specs = st.builds(
    JobSpec,
    name=job_names,
    backend=st.just("process"),
    meshes=meshes,
    options=st.fixed_dictionaries({}, optional={"transport": st.just("tls"), "log_dir": folders}),
    client=st.fixed_dictionaries(
        {}, optional={"start_timeout": seconds, "stream_logs": st.just(False)}
    ),
    env=envs,
    code=st.builds(
        CodeSpec, workdir=st.none() | folders, include=texts_tuples, exclude=texts_tuples
    ),
    lifetime=st.builds(Lifetime, idle_timeout_s=seconds, time_limit_s=st.none() | seconds),
    run=texts_tuples,
)
on_changes = st.sampled_from([None, "ask", "replace", "new"])


def parse(text: str) -> JobFile:
    return parse_jobfile(
        text, "job.yaml", options_of=BUILTIN_OPTIONS.get, backends=sorted(BUILTIN_OPTIONS)
    )


def said(values: dict[str, Any]) -> dict[str, Any]:
    """Only what has a value, as a person would write it."""
    return {key: value for key, value in values.items() if value not in (None, {}, [])}


def mesh_data(mesh: MeshSpec) -> int | dict[str, Any]:
    wants = mesh.resources
    if wants == Resources() and not mesh.env:
        return mesh.hosts
    return {
        "hosts": mesh.hosts,
        **said(
            {
                "cpus": wants.cpus,
                "gpus": wants.gpus,
                "gpu_type": wants.gpu_type,
                "memory": wants.memory_bytes and render_size(wants.memory_bytes),
                "disk": wants.disk_bytes,
                "env": dict(mesh.env),
            }
        ),
    }


def job_data(spec: JobSpec, on_change: str | None, *, run_as_text: bool) -> dict[str, Any]:
    """A job as the plain data of its file."""
    code, lifetime = spec.code, spec.lifetime
    words = list(spec.run)
    include, exclude = list(code.include), list(code.exclude)
    return {
        "name": spec.name,
        "on": spec.backend,
        "meshes": {mesh.name: mesh_data(mesh) for mesh in spec.meshes},
        **said(
            {
                "env": dict(spec.env),
                "code": said({"workdir": code.workdir, "include": include, "exclude": exclude}),
                "lifetime": said(
                    {
                        "idle_timeout": f"{lifetime.idle_timeout_s:.0f}s",
                        "time_limit": lifetime.time_limit_s,
                    }
                ),
                "run": shlex.join(words) if run_as_text and words else words,
                "on_change": on_change,
                "process": {**spec.options, **spec.client},
            }
        ),
    }


def dump(data: dict[str, Any]) -> str:
    """Block-style YAML, as people write it."""
    out = io.StringIO()
    writer = YAML()
    writer.dump(data, out)
    return out.getvalue()


@given(specs, on_changes, st.booleans())
def test_a_job_written_as_flow_yaml_means_the_same_job(
    spec: JobSpec, on_change: str | None, run_as_text: bool
) -> None:
    """Every job, written in JSON (which is YAML 1.2), is read back as the equal job."""
    text = json.dumps(job_data(spec, on_change, run_as_text=run_as_text), indent=1)
    found = parse(text)
    assert found.spec == spec
    assert found.spec.fingerprint() == spec.fingerprint()
    assert found.on_change == on_change


@given(specs, on_changes)
def test_a_job_written_as_block_yaml_means_the_same_job(
    spec: JobSpec, on_change: str | None
) -> None:
    """Every job, written by a YAML writer, is read back as the equal job."""
    text = dump(job_data(spec, on_change, run_as_text=False))
    assume(not set(text) & set("\x85\u2028\u2029"))  # the writer leaves these bare: line breaks
    found = parse(text)
    assert (found.spec, found.on_change) == (spec, on_change)


def check_only_job_file_errors(text: str) -> None:
    try:
        parse(text)
    except JobFileError as error:
        report = str(error)
        assert report.startswith("job.yaml:")
        report.encode()  # every terminal can be given it


@given(st.text())
@example("\ud800")
@example('a: "\\ud800"')
@example("%YAML 1.7\n---\na")
def test_any_text_gives_a_job_or_a_job_file_error(text: str) -> None:
    """No text at all makes the reader fail in any other way."""
    check_only_job_file_errors(text)


pieces = st.sampled_from(
    [*"[]{},&*!|>'\"%@`#?-:~\t\n\r", "\n  ", ": ", "- ", "? ", "&a ", "*a ", "!t ", "!!str ", "<<", "---\n", "...\n"]
    + ["%YAML 1.1\n", "%TAG ! x\n", "name", "on", "meshes", "process", "env", "run", "hosts", "'a b'", "1e999", ".nan"]
    + ["9" * 400, "0x", "\\U00110000", "\\x", "\u2028", "\x85", "\ufeff", "\0", "日"]
)  # fmt: skip


@given(st.lists(pieces, max_size=30).map("".join))
def test_pieces_of_yaml_give_a_job_or_a_job_file_error(text: str) -> None:
    """Text that looks like YAML never makes the reader fail in any other way."""
    check_only_job_file_errors(text)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
keys = st.sampled_from(
    ["name", "on", "meshes", "env", "code", "lifetime", "run", "on_change", "process", "local", "x"]
)


@given(st.dictionaries(keys, values))
def test_any_values_give_a_job_or_a_job_file_error(data: dict[str, Any]) -> None:
    """Known keys with arbitrary values never make the reader fail in any other way."""
    check_only_job_file_errors(json.dumps(data))


@given(specs, st.data())
def test_one_wrong_key_is_one_mistake(spec: JobSpec, data: st.DataObject) -> None:
    """A key that nobody knows, put anywhere, is the only mistake told, and it is told by its path."""
    job = job_data(spec, None, run_as_text=False)
    blocks = [job, job.setdefault("code", {}), job.setdefault("process", {})]
    data.draw(st.sampled_from(blocks))["no_such_key"] = 1
    try:
        parse(json.dumps(job))
    except JobFileError as error:
        assert str(error).count("job.yaml:") == 1
        assert "no_such_key: unknown key" in str(error)
    else:
        raise AssertionError("the unknown key was accepted")
