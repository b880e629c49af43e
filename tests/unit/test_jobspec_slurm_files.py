"""Files in a script: any name, any bytes, and nothing of them is read by the shell."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from milkweed.errors import SpecError
from milkweed.jobspec.transformers.slurm_files import (
    BODY_BYTES,
    Carried,
    is_small,
    make_end,
    pack,
    pack_for,
    render_file,
    render_packed,
)

HOSTILE = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=100).map(str.encode),
    st.sampled_from(
        [b"EOF\n", b"$(id)\n`id`\n", b"\r\n", b"a\0b", b"no newline", b"", b"#SBATCH -n 9\n"]
    ),
)
FOLDER_SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def run_lines(lines: list[str], folder: Path) -> None:
    """Let a shell do what the lines say, in a folder of its own."""
    script = "\n".join(["mw_fail() { exit 9; }", f"mw_folder='{folder}'", *lines]) + "\n"
    assert "\r\n" not in script  # sbatch refuses a script with such a line
    done = subprocess.run(["sh"], input=script.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@FOLDER_SETTINGS
@given(content=HOSTILE, executable=st.booleans())
def test_any_bytes_arrive(content: bytes, executable: bool, tmp_path: Path) -> None:
    """What the shell writes is what was given to it."""
    file = Carried(target="files.bin", content=content, executable=executable)
    run_lines(render_file(file), tmp_path)
    path = tmp_path / "files.bin"
    assert path.read_bytes() == content
    assert bool(path.stat().st_mode & 0o100) is executable
    path.unlink()


def test_text_is_readable() -> None:
    """A script can be read by people as it is."""
    lines = render_file(Carried(target="files/a.sh", content=b"echo 1\n", executable=True))
    end = make_end("echo 1\n")
    assert lines == [
        f"cat <<'{end}' >\"$mw_folder\"/files/a.sh || mw_fail", "echo 1", end, 'chmod 700 "$mw_folder"/files/a.sh'
    ]  # fmt: skip


def test_a_text_that_knows_its_own_end() -> None:
    """A line that is the end of the text by accident is avoided."""
    text = "x\n"
    assert make_end(text) not in text.split("\n")
    known = f"{make_end(text)}\n"
    assert make_end(known) != make_end(text)


def test_other_bytes_are_base64() -> None:
    """Lines stay short."""
    content = os.urandom(1000)
    first, *lines, end = render_packed(content, ">x")
    assert first == f"base64 -d <<'{end}' >x || mw_fail"
    assert base64.b64decode("".join(lines)) == content
    assert max(map(len, lines)) == 76


def make_tree(folder: Path) -> Path:
    """A folder with odd names, a link and something to run."""
    tree = folder / "it's $(odd)\nname"
    (tree / "in side").mkdir(parents=True)
    (tree / "in side" / "; rm -rf *").write_bytes(bytes(range(256)))
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    (tree / "link").symlink_to("in side")
    return tree


def packed(path: Path) -> bytes:
    """A file or folder as an archive."""
    target = io.BytesIO()
    pack(path, target)
    return target.getvalue()


def test_a_folder_arrives(tmp_path: Path) -> None:
    """Names, bytes, modes and links are kept; whose files they were is not."""
    tree = make_tree(tmp_path)
    (tmp_path / "there").mkdir()
    run_lines(render_packed(packed(tree), f"| tar -xzf - -C '{tmp_path}/there'"), tmp_path)
    copy = tmp_path / "there" / tree.name
    assert (copy / "link" / "; rm -rf *").read_bytes() == bytes(range(256))
    assert os.access(copy / "run", os.X_OK)
    assert (copy / "link").is_symlink()
    with tarfile.open(fileobj=io.BytesIO(packed(tree))) as archive:
        assert {entry.uid for entry in archive} == {0}


def test_the_same_files_are_the_same_bytes(tmp_path: Path) -> None:
    """So that what is shown and what is run can be compared."""
    tree = make_tree(tmp_path)
    assert packed(tree) == packed(tree)


def test_a_link_is_followed_when_it_is_what_is_staged(tmp_path: Path) -> None:
    """The person named it; it gets its own name."""
    (tmp_path / "file").write_text("content")
    (tmp_path / "other").symlink_to("file")
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path / "other"))) as archive:
        [entry] = archive
        assert (entry.name, entry.isreg(), entry.size) == ("other", True, 7)


def test_what_cannot_be_sent(tmp_path: Path) -> None:
    """Pipes and devices are refused by name."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="pipe' is neither a file nor a folder"):
        packed(tmp_path)


def test_small_and_large(tmp_path: Path) -> None:
    """What does not fit into a script is known before it is packed, or after."""
    small, large, dense = (tmp_path / name for name in ("small", "large", "dense"))
    small.write_text("x" * 1000)
    large.write_bytes(b"x" * 20 * BODY_BYTES)
    dense.write_bytes(os.urandom(2 * BODY_BYTES))
    assert is_small(small)
    assert not is_small(large)
    assert not is_small(tmp_path)
    assert pack_for("run", str(small)) == packed(small)
    assert pack_for("run", str(large)) is None
    assert pack_for("run", str(dense)) is None


def test_one_look_for_all_jobs_of_a_plan(tmp_path: Path) -> None:
    """A file that changes while a plan is made is the same in all of it; the next plan sees the change."""
    path = tmp_path / "file"
    path.write_text("before")
    first = pack_for("one", str(path))
    path.write_text("after it")
    assert pack_for("one", str(path)) == first
    assert pack_for("two", str(path)) != first
