"""What a job class says of its job: the declaration, and what to do when the allocation differs from it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ..backends.base import Backend
from ..errors import SpecError, UnsupportedError
from ..plan import ON_CHANGE
from ..spec import JobSpec, suggest
from ..worker.wire import STATE_ENV
from . import hooks, lifecycle
from .command import class_path
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

    def _make_wish(
        self, backend: Backend, *, keep: bool, client_script: Sequence[str]
    ) -> lifecycle.Wish:
        """What is wanted of a backend; refused, where it is wrong whatever there is now."""
        spec = self.spec
        inside = STATE_ENV in os.environ
        self._refuse_missing_services(spec.services)
        lifecycle.check(backend, spec)
        if client_script and not backend.capabilities.batch:
            raise UnsupportedError(f"{backend.name} cannot run the client inside its allocation")
        return lifecycle.Wish(
            spec=spec,
            backend=backend,
            on_change="ask" if inside and self._on_change != "repair" else self._on_change,
            inside=inside,
            keep=keep,
            client_script=client_script,
            job_class=class_path(type(self)),
        )
