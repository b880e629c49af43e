"""A folder of installed packages, with a transformer whose jobs are over at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PLUGIN = """\
import milkweed.jobspec.steps as steps
from milkweed.errors import SpecError
from milkweed.jobspec import TransformerBase
from milkweed.jobspec.progress import ended


class Transformer(TransformerBase):
    name = "site"
    description = "jobs that are over at once"
    honours = frozenset({"cwd", "environment", "duration_s", "exclusive"})

    def __init__(self, **settings):
        super().__init__(**settings)
        if set(settings) - {"code"}:
            raise SpecError("unknown setting", hint="there is code")


class submit(steps.PlainStep):
    name = "submit"

    def run(self, stage):
        with open(self.record.folder / "ran", "a") as file:
            print(self.action.id, self.options["argv"], file=file)
        self.transformer.tail.add(str(self.record.folder / "ran"), self.action.id)
        return ended(int(self.record.plan.settings.get("code", 0)))

    def poll(self, handle):
        raise AssertionError("it was done at once")


Transformer.register_step(steps.WriterStep)
Transformer.register_step(submit)
Transformer.register_step(steps.EmptyStep, name="stage")
Transformer.register_step(steps.EmptyStep, name="group")
"""


def use_site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder a place of packages, for one test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith(("jobspec_", "declared_plugin")):
            del sys.modules[name]
