"""Stands for torch where the lab has none for its images: what examples ask of it, and what the engine does."""

import contextlib
import traceback

__version__ = "0"
STACK = traceback.format_stack()  # the real one looks at it, too


class cuda:
    """No GPUs."""

    @staticmethod
    def is_available() -> bool:
        """Whether there are any."""
        return False


class storage:
    """What the engine writes in its own way; nobody has any of it."""

    class UntypedStorage:
        """Bytes."""

    class TypedStorage:
        """Numbers."""


class utils:
    """What the engine reads messages with."""

    class _python_dispatch:
        _disable_current_modes = contextlib.nullcontext
