"""Keeps a picture of the cluster true: one list, then every change, and again when that breaks off."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from ..errors import MilkweedError
from ..kube.api import Api, ApiError, Stream
from ..kube.resources import Resource
from .picture import Picture
from .reading import Object, items, number, text

STREAM_S = 60.0
"""How long one stream is asked for."""
RELIST_S = 600.0
"""After this time everything is listed anew, whatever the stream told."""
FIRST_PAUSE_S = 0.2
SLOWEST_PAUSE_S = 10.0
REST_S = 0.5
"""The least time from the beginning of one stream to that of the next, however they end."""
PAGE = "500"
GONE = 410


class Follower:
    """Follows the objects of one kind in one namespace, or in all, until it is told to stop."""

    def __init__(
        self,
        api: Api,
        resource: Resource,
        namespace: str,
        picture: Picture,
        *,
        labels: str = "",
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._picture = picture
        self._query = {"labelSelector": labels} if labels else {}
        self._clock = clock
        self._pause = pause
        self._log = log
        self._version = ""
        self._listed_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._over = False
        self._stream: Stream | None = None
        self.listed = False
        """Whether everything was seen once."""
        self.trouble: MilkweedError | None = None
        """What keeps us from seeing; None while we see."""

    def run(self) -> None:
        """Follow until `stop`."""
        while not self._over:
            began = self._clock()
            self.step()
            if not self._over:
                self._pause(max(began + REST_S - self._clock(), 0.0))

    def stop(self) -> None:
        """End, also a stream that says nothing."""
        self._over = True
        if (stream := self._stream) is not None:
            stream.end()

    def step(self) -> None:
        """List if need be, then follow one stream to its end; after an error, pause."""
        try:
            if not self._version or self._clock() >= self._listed_at + RELIST_S:
                self._list()
            self._follow()
        except ApiError as error:
            self._version = ""
            if error.status != GONE:
                self._stumble(error)
        except MilkweedError as error:
            self._stumble(error)

    def _stumble(self, error: MilkweedError) -> None:
        """Wait before the next try, each time longer and never all operators at once."""
        if self._over:
            return
        if str(error) != str(self.trouble or ""):
            self._log(f"{self._resource.plural}: {error}")
        self.trouble = error
        self._pause(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        self._pause_s = min(self._pause_s * 2, SLOWEST_PAUSE_S)

    def _list(self) -> None:
        """Read everything, page by page."""
        found: list[Object] = []
        query = {**self._query, "limit": PAGE}
        while True:
            page = self._api.get(self._resource, self._namespace, **query)
            found += items(page, "items")
            query["continue"] = text(page, "metadata", "continue")
            if not query["continue"]:
                break
        self._picture.load(found, self._namespace)
        self._version = text(page, "metadata", "resourceVersion")
        self._listed_at = self._clock()
        self.listed = True

    def _follow(self) -> None:
        query = {**self._query, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        watch = self._api.watch(self._resource, self._namespace, query, timeout_s=STREAM_S)
        with watch as self._stream:
            self.trouble = None
            self._pause_s = FIRST_PAUSE_S
            for event in self._stream:
                if self._over:
                    return
                self._take(text(event, "type"), event["object"])

    def _take(self, kind: str, found: Object) -> None:
        if kind == "ERROR":
            error = ApiError("the API server ended a watch", seen=text(found, "message"))
            error.status = number(found, "code")
            raise error
        if kind == "DELETED":
            self._picture.remove(found)
        elif kind != "BOOKMARK":
            self._picture.put(found)
        self._version = text(found, "metadata", "resourceVersion")
