"""What the operator has seen of the cluster: objects of one kind, found by their mesh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from .reading import Key, Object, items, key_of, mapping, text

Change = Callable[[Key, Object | None, Object | None], None]
"""Called with the mesh's key, the object as it was and as it is; None: it was or is not there."""


class Picture:
    """Objects of one kind as last seen, kept up to date by whoever follows them."""

    def __init__(
        self,
        mesh_of: Callable[[Object], Key],
        changed: Change,
        keep: Callable[[Object], Object] = lambda found: found,
    ) -> None:
        """`keep` cuts an object down to what is needed: thousands of pods are many megabytes."""
        self._mesh_of = mesh_of
        self._changed = changed
        self._keep = keep
        self._objects: dict[Key, Object] = {}
        self._by_mesh: dict[Key, dict[Key, Object]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._objects)

    # Looking

    def get(self, key: Key) -> Object | None:
        """One object by its namespace and name."""
        with self._lock:
            return self._objects.get(key)

    def of_mesh(self, key: Key) -> list[Object]:
        """All objects of a mesh, by name."""
        with self._lock:
            return [found for _key, found in sorted(self._by_mesh.get(key, {}).items())]

    def places(self) -> list[Key]:
        """Where there are objects."""
        with self._lock:
            return list(self._objects)

    def all(self) -> list[Object]:
        """Every object."""
        with self._lock:
            return list(self._objects.values())

    # Seeing

    def load(self, found: Iterable[Object], namespace: str = "") -> None:
        """Everything there is in a namespace, or in all: what was seen there and is not among it is gone."""
        listed = {key_of(one): one for one in found}
        for key in self.places():
            if key not in listed and namespace in {"", key[0]}:
                self._drop(key)
        for one in listed.values():
            self.put(one)

    def put(self, found: Object) -> None:
        """An object was seen; an older look at it is no news."""
        kept, key = self._keep(found), key_of(found)
        mesh = self._mesh_of(found)
        with self._lock:
            before = self._objects.get(key)
            if before is not None and _is_old(kept, before):
                return
            self._store(key, kept, mesh)
        if before is not None and self._mesh_of(before) != mesh:
            self._changed(self._mesh_of(before), before, None)
        self._changed(mesh, before, kept)

    def remove(self, found: Object) -> None:
        """An object is gone, unless there is another one of its name by now."""
        before = self.get(key_of(found))
        if before is not None and text(before, "metadata", "uid") == text(found, "metadata", "uid"):
            self._drop(key_of(found))

    def _store(self, key: Key, kept: Object, mesh: Key) -> None:
        before = self._objects.get(key)
        if before is not None:
            self._unlink(key, before)
        self._objects[key] = kept
        self._by_mesh.setdefault(mesh, {})[key] = kept

    def _unlink(self, key: Key, before: Object) -> None:
        mesh = self._mesh_of(before)
        siblings = self._by_mesh.get(mesh, {})
        siblings.pop(key, None)
        if not siblings:
            self._by_mesh.pop(mesh, None)

    def _drop(self, key: Key) -> None:
        with self._lock:
            before = self._objects.pop(key, None)
            if before is None:
                return
            self._unlink(key, before)
        self._changed(self._mesh_of(before), before, None)


def _is_old(found: Object, before: Object) -> bool:
    """Whether a look at an object is not newer than the one we have."""
    if text(found, "metadata", "uid") != text(before, "metadata", "uid"):
        return False
    new, old = (text(one, "metadata", "resourceVersion") for one in (found, before))
    return new == old or (new.isdigit() and old.isdigit() and int(new) < int(old))


def trim(found: Object) -> Object:
    """An object without the record of who wrote what."""
    metadata = {key: value for key, value in found["metadata"].items() if key != "managedFields"}
    return {**found, "metadata": metadata}


_POD_METADATA = (
    "name",
    "namespace",
    "uid",
    "labels",
    "ownerReferences",
    "resourceVersion",
    "deletionTimestamp",
)


def trim_pod(found: Object) -> Object:
    """A pod without what no condition tells of."""
    metadata = {key: found["metadata"][key] for key in _POD_METADATA if key in found["metadata"]}
    names = [{"name": text(one, "name")} for one in items(found, "spec", "containers")]
    spec = {"nodeName": text(found, "spec", "nodeName"), "containers": names}
    return {"metadata": metadata, "spec": spec, "status": mapping(found, "status")}
