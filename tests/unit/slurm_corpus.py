"""What real clusters of each version have printed."""

from __future__ import annotations

from pathlib import Path

CORPUS = Path(__file__).parents[1] / "corpus" / "slurm"
VERSIONS = ["22.05", "24.11"]


def text_of(version: str, name: str) -> str:
    """One recording."""
    return (CORPUS / version / f"{name}.txt").read_text("utf-8")
