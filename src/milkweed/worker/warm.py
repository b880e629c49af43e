"""Importing what the engine will need, but not the engine: its bindings start threads, and threads do not fork."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os

# What `import monarch.actor` pulls in besides monarch itself and what is deferred. A name that a version no longer
# needs or lacks costs nothing; a missing one only costs time in every fork.
MODULES = """
    __future__ abc array ast asyncio bdb bz2 cmd code codeop collections collections.abc
    concurrent.futures contextlib contextvars copy copyreg ctypes dataclasses dis enum fnmatch
    functools glob heapq importlib.abc importlib.machinery importlib.util inspect ipaddress
    itertools json linecache locale logging lzma math multiprocessing multiprocessing.reduction ntpath
    operator pathlib pdb pickle platform pprint re runpy select selectors shutil signal socket ssl
    string struct subprocess textwrap threading token tokenize traceback types typing urllib.parse
    uuid warnings weakref zlib
    cloudpickle opentelemetry.metrics opentelemetry.trace opentelemetry.trace.propagation
    typing_extensions
"""


def warm_up() -> None:
    """Import them, and set the memory aside so that forks share it: nothing that imports make is garbage."""
    gc.disable()
    for name in MODULES.split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _preload_library()
    if not _torch_is_rocm():
        # The engine looks up torch's version at every import; the answer is known here.
        os.environ.setdefault("MONARCH_SKIP_TRITON_DEEPBIND", "1")
    gc.freeze()
    gc.enable()


def _preload_library() -> None:
    """Map and relocate the engine's shared library once; loading it runs none of its code."""
    import ctypes

    package = importlib.util.find_spec("monarch")
    for folder in (package and package.submodule_search_locations) or ():
        for entry in os.scandir(folder):
            if entry.name.startswith("_rust_bindings.") and entry.name.endswith(".so"):
                with contextlib.suppress(OSError):
                    ctypes.PyDLL(entry.path, mode=os.RTLD_NOW)


def _torch_is_rocm() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False  # looking for its metadata takes longer
    from importlib import metadata

    try:
        return "rocm" in metadata.version("torch").lower()
    except metadata.PackageNotFoundError:
        return False
