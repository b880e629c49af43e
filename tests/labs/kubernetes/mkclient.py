#!/usr/bin/env python3
"""Installs milkweed from its source into the tree of an image, as pip would: the package, its entry points, its command.

usage: mkclient.py requirements [NAME ...]     prints what milkweed depends on, with versions; only these, or with - all but these
       mkclient.py install TREE                installs it below TREE
       mkclient.py digest                      a word that changes whenever what would be installed does
"""

import hashlib
import re
import shutil
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
PACKAGES = "usr/local/lib/python3.11/dist-packages"
COMMAND = """#!/usr/bin/python3
import sys
from {module} import {name}
sys.exit({name}())
"""


def project() -> dict:
    return tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]


def files() -> list[Path]:
    return sorted(path for path in (PROJECT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def requirements(*names: str) -> None:
    others = names[:1] == ("-",)
    for line in project()["dependencies"]:
        if not names or (re.match(r"[\w.-]+", line)[0] in names) != others:
            print(line)


def install(tree: str) -> None:
    packages = Path(tree) / PACKAGES
    shutil.copytree(PROJECT / "src", packages, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    text = (PROJECT / "src/milkweed/__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)[1]
    data = project()
    info = packages / f"milkweed-{version}.dist-info"
    info.mkdir(exist_ok=True)
    needs = "".join(f"Requires-Dist: {line}\n" for line in data["dependencies"])
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: milkweed\nVersion: {version}\n{needs}")
    (info / "INSTALLER").write_text("mkclient.py\n")
    points = {"console_scripts": data["scripts"], **data["entry-points"]}
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in names.items()) for group, names in points.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for script, target in data["scripts"].items():
        module, _, name = target.partition(":")
        path = Path(tree) / "usr/local/bin" / script
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(COMMAND.format(module=module, name=name))
        path.chmod(0o755)


def digest() -> None:
    total = hashlib.sha256(repr(project()).encode())
    for path in [Path(__file__), *files()]:
        total.update(f"{path.relative_to(PROJECT)}\0".encode() + path.read_bytes())
    print(total.hexdigest()[:16])


if __name__ == "__main__":
    try:
        {"requirements": requirements, "install": install, "digest": digest}[sys.argv[1]](*sys.argv[2:])
    except (IndexError, KeyError, TypeError):
        sys.exit(__doc__)
