# SPDX-License-Identifier: Apache-2.0
"""Export each CHECKPOINT to the OUT that follows it, as `harness export --verify` does, in one process: its imports take
most of the time of an export. Run as export_all.py CHECKPOINT OUT [CHECKPOINT OUT ...]; the exit code is the worst.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

WORKER = Path(__file__).resolve().parents[2] / "harness" / "workers" / "export_worker.py"


def run_worker(checkpoint: str, out: str) -> int:
    sys.argv = [str(WORKER), "--checkpoint", checkpoint, "--out", out, "--verify"]
    try:
        runpy.run_path(str(WORKER), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(max(run_worker(checkpoint, out) for checkpoint, out in zip(words[::2], words[1::2], strict=True)))
