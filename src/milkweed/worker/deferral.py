"""Modules of which the engine wants one function that hosts seldom call: they are imported when it is called."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator, Mapping
from types import ModuleType
from typing import Any

DEFERRED = {"tabulate": "tabulate", "pyre_extensions": "none_throws"}
"""Each brings a fifth of all that `import monarch.actor` brings from elsewhere: its own tests, an e-mail parser.

Of what a proc imports at its start, only the debugger calls them.
A name that a version no longer wants costs nothing.
"""


class _Deferred(ModuleType):
    """Stands for a module; gives its function at once, and is the module itself for any other name."""

    def __init__(self, name: str, function: str) -> None:
        super().__init__(name)
        setattr(self, function, _defer(name, function))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # what the import system asks every module for
        return getattr(_load(self.__name__), name)


def _defer(module: str, function: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(_load(module), function)(*args, **kwargs)

    return call


def _load(name: str) -> ModuleType:
    if isinstance(sys.modules.get(name), _Deferred):
        del sys.modules[name]
    return importlib.import_module(name)


@contextlib.contextmanager
def deferred(functions: Mapping[str, str] = DEFERRED) -> Generator[None]:
    """Whoever imports these modules meanwhile gets what stands for them; afterwards everybody gets themselves."""
    wanted = [name for name in functions if name not in sys.modules]
    for name in filter(importlib.util.find_spec, wanted):
        sys.modules[name] = _Deferred(name, functions[name])
    try:
        yield
    finally:
        for name in wanted:
            if isinstance(sys.modules.get(name), _Deferred):
                del sys.modules[name]
