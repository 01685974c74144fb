# SPDX-License-Identifier: Apache-2.0
"""Imports DeepSpeed while the launch plan is still being made, and then becomes the `deepspeed` command.

Its argument is `launch.patches` of the run spec, as JSON. One line of JSON on stdin is the command: {"argv": [program,
word...], "environment": {...}, "folder": DIR}. Without it the process ends and has done nothing.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    """Import, wait for the command, run it in this process."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from harness.interpreter import freeze_imports
    from harness.patches.no_mlflow import import_deepspeed

    del sys.path[0]
    # Not its launcher, which reads the environment (DS_ENV_FILE) while it is imported.
    with freeze_imports():
        import_deepspeed(json.loads(sys.argv[1]))
    line = sys.stdin.readline()
    if not line:
        return
    command = json.loads(line)
    os.environ.clear()
    os.environ.update(command["environment"])
    os.chdir(command["folder"])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    program = command["argv"][0]
    sys.argv = command["argv"]
    if not os.environ.get("PYTHONSAFEPATH"):  # as Python does for a script
        sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
