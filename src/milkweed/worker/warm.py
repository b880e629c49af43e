"""Importing what the engine will need, but not the engine: its bindings start threads, and threads do not fork."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import os

# What `import monarch.actor` pulls in besides monarch itself. A name that a version no longer needs or
# lacks costs nothing; a missing one only costs time in every fork.
MODULES = """
    __future__ argparse array ast asyncio asyncio.subprocess base64 bdb bisect bz2 calendar cmd
    code codeop collections concurrent.futures contextlib contextvars copy copyreg csv ctypes
    dataclasses datetime difflib dis email.message email.parser email.utils enum
    fnmatch functools gettext glob heapq html importlib.abc importlib.machinery
    importlib.metadata importlib.resources importlib.util inspect ipaddress itertools json
    linecache locale logging lzma math multiprocessing multiprocessing.reduction ntpath
    operator pathlib pdb pickle platform pprint random re
    runpy select selectors shutil signal socket ssl string struct subprocess tempfile textwrap
    threading token tokenize traceback types typing unittest urllib.parse uuid warnings weakref
    zipfile zlib
    cloudpickle mypy_extensions opentelemetry.metrics opentelemetry.trace
    opentelemetry.trace.propagation pyre_extensions tabulate typing_extensions typing_inspect
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
    try:
        return "rocm" in importlib.metadata.version("torch").lower()
    except importlib.metadata.PackageNotFoundError:
        return False
