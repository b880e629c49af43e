"""`python -m milkweed.worker RUN_FOLDER`: keep the hosts that the folder's start.json describes."""

from __future__ import annotations

import os
import sys

from .keeper import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(
        code
    )  # everything is ended and written: taking the interpreter apart would only take time
