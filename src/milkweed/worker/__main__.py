"""`python -m milkweed.worker RUN_FOLDER`: keep the hosts that the folder's start.json describes."""

from __future__ import annotations

import sys

from .keeper import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
