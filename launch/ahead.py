"""Imports DeepSpeed while the orders for its launcher are still being written, and then is the `deepspeed` command.

One line of JSON on stdin says what to do: {"argv": [program, word...], "environment": {...}, "folder": DIR}. Without
one it ends and has done nothing.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Import, wait, become."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from harness.runtime.patches.no_mlflow import import_deepspeed

    import_deepspeed()  # but not its launcher, which reads the environment (DS_ENV_FILE) while it is imported
    del sys.path[0]
    line = sys.stdin.readline()
    if not line:
        return
    order = json.loads(line)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    program = order["argv"][0]
    sys.argv, sys.path[0] = order["argv"], str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
