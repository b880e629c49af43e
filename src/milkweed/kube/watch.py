"""Objects of one kind as they are now: one list, then a watch that goes on where it ended.

The picture is true as of the last word from the API server, and whoever looks hears when there is none: a stream
that breaks is opened again at the place where it broke, and when that fails, or breaks too before a word has come,
nothing is known until the next list.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from ..errors import AccessError, BackendError, MilkweedError, UnreachableError
from .api import Api, ApiError, Stream
from .resources import Resource

STREAM_S = 300.0
"""How long one stream is asked for; proxies between cut longer ones."""
PAGE = 500
"""How many objects one answer has at most: a list of thousands is many megabytes."""
FIRST_PAUSE_S = 0.2
SLOWEST_PAUSE_S = 10.0
LOGIN_PAUSE_S = 60.0
"""The pause after a login that failed: it may have asked a person."""
UNKNOWN_USER, FORBIDDEN, GONE = 401, 403, 410

Object = Mapping[str, Any]


class Watch:
    """Keeps a picture of some objects; whoever looks sees it at once, and may wait for a change."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        namespace: str,
        *,
        labels: str = "",
        fields: str = "",
        keep: Callable[[Object], Object] = lambda found: found,
        heed: Callable[[Object | None, Object | None], object] = lambda _before, _after: None,
        pause: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keep` cuts an object down to what is needed: thousands of pods are many megabytes.

        `heed` is told what an object was and is; it must be quick.
        """
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._query = {
            key: value
            for key, value in (("labelSelector", labels), ("fieldSelector", fields))
            if value
        }
        self._keep = keep
        self._heed = heed
        self._objects: dict[str, Object] = {}
        self._version = ""
        self._trouble: MilkweedError | None = None
        self._needs_login = False
        self._listed = False
        self._over = threading.Event()
        self._pause = pause or self._over.wait
        self._clock = clock
        self._stream: Stream | None = None
        self._broken = False
        """Whether a stream has broken since the last word."""
        self.changed = threading.Condition()
        self.changes = 0
        """How often something changed, a trouble or its end included."""
        self._thread = threading.Thread(target=self._run, name="milkweed-watch", daemon=True)

    def start(self) -> Self:
        """Begin; the first list is there soon."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 2.0) -> None:
        """End, also a stream that says nothing."""
        with self.changed:
            self._over.set()
            if self._stream is not None:
                self._stream.end()
            self.changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Looking

    def objects(self) -> dict[str, Object]:
        """All objects by name, as they are now; raises what keeps us from knowing.

        Objects of all namespaces go by `namespace/name`. What this very program has just changed may come a
        moment later.
        """
        with self.changed:
            if self._trouble is not None:
                raise self._trouble
            if not self._listed:
                raise UnreachableError("the API server has not answered yet")
            return dict(self._objects)

    def wait_listed(self, timeout_s: float) -> bool:
        """Wait for the first list, or for the reason that there is none."""
        with self.changed:
            return self.changed.wait_for(
                lambda: self._listed or self._trouble is not None, timeout_s
            )

    def wait_change(self, timeout_s: float, since: int | None = None) -> bool:
        """Wait until something is different: from now on, or since `changes` was that number."""
        with self.changed:
            seen = self.changes if since is None else since
            self.changed.wait_for(lambda: self.changes != seen or self._over.is_set(), timeout_s)
            return self.changes != seen

    # Following

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        try:
            while not self._over.is_set():
                if self._try():
                    pause_s = FIRST_PAUSE_S
                slowest_s = LOGIN_PAUSE_S if self._needs_login else SLOWEST_PAUSE_S
                self._rest(pause_s)
                pause_s = min(pause_s * 2, slowest_s)
        finally:
            if not self._over.is_set():  # a mistake of ours; nobody shall take the picture for true
                self._stumble(BackendError("the watch on the API server has ended by mistake"))

    def _try(self) -> bool:
        """List where needed, and follow; True when that went well for a while."""
        try:
            if not self._version:
                self._list()
            return self._follow()
        except MilkweedError as error:
            self._stumble(error)
            return False

    def _stumble(self, error: MilkweedError) -> None:
        """What was seen so far is no longer known to be true, unless only the stream's place was lost."""
        with self.changed:
            self._version = ""
            self._needs_login = isinstance(error, AccessError)
            if not (isinstance(error, ApiError) and error.status == GONE):
                self._trouble = self._judge(error)
                self._tell()

    def _judge(self, error: MilkweedError) -> MilkweedError:
        """Who was let in once is not refused for good: that is silence, which may pass.

        A server that has just started knows nobody's rights for a moment, and a program that gives logins fails
        without a network.
        """
        status = error.status if isinstance(error, ApiError) else 0
        if self._listed and status == FORBIDDEN:
            what = "the API server forbids what it has allowed before"
            return UnreachableError(what, seen=error.seen, hint=error.hint)
        if self._listed and (status == UNKNOWN_USER or isinstance(error, AccessError)):
            seen = ": ".join(filter(None, (error.what, error.seen)))
            what = "a login that worked before does not work now"
            return UnreachableError(what, seen=seen, hint=error.hint)
        return error

    def _rest(self, pause_s: float) -> None:
        """Wait before the next try, and never all clients at once."""
        if not self._over.is_set():
            self._pause(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  no secret

    def _list(self) -> None:
        """Everything as it is, page by page; nobody sees half of it."""
        objects: dict[str, Object] = {}
        query = {**self._query, "limit": str(PAGE)}
        while True:
            found = self._api.get(self._resource, self._namespace, **query)
            with _Expect(found):
                objects |= {self._name(item): self._keep(item) for item in found["items"]}
                version = found["metadata"]["resourceVersion"]
                more = found["metadata"].get("continue")
            if not more:
                break
            query["continue"] = more
        with self.changed:
            before, self._objects, self._version = self._objects, objects, version
            for name in before.keys() | objects.keys():
                self._heed(before.get(name), objects.get(name))
            self._trouble, self._listed, self._broken = None, True, False
            self._tell()

    def _tell(self) -> None:
        """Something is different; called with the lock held."""
        self.changes += 1
        self.changed.notify_all()

    def _name(self, found: Object) -> str:
        name = str(found["metadata"]["name"])
        if self._namespace or not self._resource.namespaced:
            return name
        return f"{found['metadata']['namespace']}/{name}"

    def _follow(self) -> bool:
        """Take events until the stream ends; True when there were some, or it was open for a while."""
        query = {**self._query, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        began_s, events = self._clock(), 0
        with self._api.watch(self._resource, self._namespace, query, timeout_s=STREAM_S) as stream:
            try:
                self._hold(stream)
                for event in stream:
                    events += 1
                    self._take(event)
            except UnreachableError:
                # Once is what proxies do, and opening it again tells more; twice without a word is silence.
                if self._broken and not self._over.is_set():
                    raise
                self._broken = True
            finally:
                self._hold(None)
        return events > 0 or self._clock() - began_s > SLOWEST_PAUSE_S

    def _hold(self, stream: Stream | None) -> None:
        """Let `stop` reach the stream."""
        with self.changed:
            self._stream = stream
            if stream is not None and self._over.is_set():
                stream.end()

    def _take(self, event: Mapping[str, Any]) -> None:
        with _Expect(event):
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                raise _make_lost(found)
            version = found["metadata"]["resourceVersion"]
            name = "" if kind == "BOOKMARK" else self._name(found)
            kept = self._keep(found) if kind in {"ADDED", "MODIFIED"} else None
        with self.changed:
            self._version, self._broken = version, False
            if not name:
                return
            before = self._objects.pop(name, None)
            if kept is not None:
                self._objects[name] = kept
            self._heed(before, kept)
            self._tell()


class _Expect:
    """Around what reads an answer: one that is not what Kubernetes promises is an error with words."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, (KeyError, TypeError, AttributeError)):
            seen = str(self._answer)[:200]
            raise BackendError("the API server said something unexpected", seen=seen)


def _make_lost(status: Mapping[str, Any]) -> ApiError:
    """The error that a stream ended with: whatever it was, our place is lost, and a list tells the rest."""
    seen = str(status.get("message") or status)
    error = ApiError("the API server has lost our place in a watch", seen=seen)
    error.status, error.reason = GONE, str(status.get("reason") or "")
    return error
