"""What a job class says of its job: the declaration, and what to do when the allocation differs from it."""

from __future__ import annotations

from dataclasses import replace

from ..errors import SpecError
from ..plan import ON_CHANGE
from ..spec import JobSpec, suggest
from . import hooks
from .services import ServiceMethods


class Declared(ServiceMethods):
    """The declaration of a job, with the services that run beside its hosts."""

    # Class attributes, so that a subclass that never calls __init__ works too.
    _spec: JobSpec | None = None
    _on_change: str | None = None

    def _declare(self, spec: JobSpec, *, on_change: str | None) -> None:
        """Keep the declaration; called once, by the job class's constructor."""
        self._spec = spec
        self.on_change = on_change

    @property
    def spec(self) -> JobSpec:
        """The declaration as a value, with the services that were enabled."""
        if self._spec is None and not hooks.is_hooked(self):
            raise SpecError(
                f"{type(self).__name__} declares nothing", hint="call super().__init__()"
            )
        return replace(self._spec or hooks.make_spec(self), services=self._services)

    @property
    def on_change(self) -> str | None:
        """What to do when the allocation differs from the declaration; None: what the backend does."""
        return self._on_change

    @on_change.setter
    def on_change(self, word: str | None) -> None:
        if word is not None and word not in ON_CHANGE:
            raise SpecError(f"on_change: {word!r} is not known", hint=suggest(word, ON_CHANGE))
        self._on_change = word
