"""Job files: a job declared in YAML 1.2, read strictly, with every mistake shown at once and in its place."""

from __future__ import annotations

from .load import FILE_NAMES, JobFile, find_jobfile, load_jobfile, parse_jobfile
from .schema import make_schema

__all__ = [
    "FILE_NAMES",
    "JobFile",
    "find_jobfile",
    "load_jobfile",
    "make_schema",
    "parse_jobfile",
]
