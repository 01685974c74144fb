# SPDX-License-Identifier: Apache-2.0
"""Imports a checkpoint of another program, or converts one of ours: `foreign_checkpoint_worker.py REQUEST.json`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Do what the request says; returns the exit code."""
    request: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from harness.interpreter import freeze_imports, remove_repeated_root

    remove_repeated_root()
    with freeze_imports():
        from harness.patches.no_mlflow import import_deepspeed

        import_deepspeed()
        from harness.errors import UserError
        from harness.runtime.export.checkpoint_requests import run_request
        from harness.runtime.user_errors import print_findings

    try:
        print(run_request(request, lambda text: print(text, file=sys.stderr, flush=True)))
    except UserError as error:
        print_findings(error.findings)
        return int(error.code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
