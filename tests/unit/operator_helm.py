"""As much of Helm as the chart needs, so that it can be read where there is no Helm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milkweed.kube.login import parse_yaml
from programs import LABS

TAG = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.DOTALL)


def find_helm() -> str:
    """Helm itself, of this machine or of the labs; nothing where there is none."""
    return shutil.which("helm") or shutil.which("helm", path=LABS / "kubernetes" / "bin") or ""


def render_with_helm(chart: Path, namespace: str, *chosen: str) -> str:
    """What `helm template` prints of a chart, with some values chosen."""
    argv = [find_helm(), "template", "x", str(chart), "-n", namespace]
    argv += [word for each in chosen for word in ("--set", each)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Node:
    """A piece of a template: text, a value, or a block with an alternative."""

    kind: str
    words: str
    inner: list[Node] = field(default_factory=list)
    other: list[Node] = field(default_factory=list)


def cut(text: str) -> Iterator[tuple[str, str]]:
    """Text and tags in turn, white space gone where tags ask for it."""
    place, trim = 0, False
    for tag in TAG.finditer(text):
        before = text[place : tag.start()]
        before = before.lstrip() if trim else before
        yield "text", before.rstrip() if tag[1] else before
        yield "tag", tag[2]
        place, trim = tag.end(), bool(tag[3])
    rest = text[place:]
    yield "text", rest.lstrip() if trim else rest


def parse(text: str) -> list[Node]:
    root = Node("root", "")
    stack = [(root, root.inner)]
    for kind, words in cut(text):
        block, here = stack[-1]
        verb, _, rest = words.partition(" ")
        if kind == "text":
            here.append(Node("text", words))
        elif verb in {"if", "range", "define"}:
            made = Node(verb, rest)
            here.append(made)
            stack.append((made, made.inner))
        elif verb == "else":
            stack[-1] = (block, block.other)
        elif verb == "end":
            stack.pop()
        elif not words.startswith("/*"):
            here.append(Node("value", words))
    assert len(stack) == 1, "a block has no end"
    return root.inner


class Chart:
    """A chart, and what it renders to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.defined: dict[str, list[Node]] = {}
        self.files: dict[str, list[Node]] = {}
        for path in sorted((folder / "templates").iterdir()):
            nodes = parse(path.read_text("utf-8"))
            for node in nodes:
                if node.kind == "define":
                    self.defined[json.loads(node.words)] = node.inner
            if path.suffix == ".yaml":
                self.files[path.name] = nodes

    def values(self) -> dict[str, Any]:
        """What is chosen where nobody says otherwise."""
        return parse_yaml((self.folder / "values.yaml").read_text("utf-8"))

    def render(self, namespace: str, **chosen: Any) -> list[dict[str, Any]]:
        """Every object, as `helm template` prints them."""
        root = {"Values": self.values() | chosen, "Release": {"Namespace": namespace}}
        texts = ["".join(self._render(nodes, root, root)) for nodes in self.files.values()]
        documents = [part for text in texts for part in re.split(r"(?m)^---$", text)]
        return [parse_yaml(part) for part in documents if part.strip()]

    def _render(self, nodes: list[Node], dot: Any, root: Any) -> Iterator[str]:
        for node in nodes:
            if node.kind == "text":
                yield node.words
            elif node.kind == "value":
                yield str(self._evaluate(node.words, dot, root))
            elif node.kind == "if":
                branch = node.inner if self._evaluate(node.words, dot, root) else node.other
                yield from self._render(branch, dot, root)
            elif node.kind == "range":
                found = self._evaluate(node.words, dot, root)
                for item in found:
                    yield from self._render(node.inner, item, root)
                if not found:
                    yield from self._render(node.other, dot, root)

    def _evaluate(self, words: str, dot: Any, root: Any) -> Any:
        """One expression, through all its pipes."""
        first, *pipes = [part.strip() for part in words.split("|")]
        value = self._call(first, dot, root)
        for pipe in pipes:
            value = {"quote": json.dumps, "trim": str.strip}[pipe](value)
        return value

    def _call(self, words: str, dot: Any, root: Any) -> Any:
        verb, _, rest = words.partition(" ")
        if verb == "include":
            name = json.loads(rest.split()[0])
            return "".join(self._render(self.defined[name], root, root))
        if verb == "printf":
            form, argument = rest.rsplit(" ", 1)
            return json.loads(form) % self._call(argument, dot, root)
        base = root if words.startswith("$") else dot
        for word in filter(None, words.lstrip("$").split(".")):
            base = base[word]
        return base
