"""The engine's actors, so that a program needs one import root: `from milkweed.actor import Actor, endpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monarch.actor import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary] all of it


def __getattr__(name: str) -> Any:
    from . import engine

    try:
        return getattr(engine.actor_api(), name)
    except AttributeError:
        raise AttributeError(f"the engine's actor module has no {name!r}") from None


def __dir__() -> list[str]:
    from . import engine

    return list(engine.actor_api().__all__)
