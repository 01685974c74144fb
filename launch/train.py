"""What the `deepspeed` launcher starts on every node: one rank of the run in `--run DIR`. It decides nothing."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, metavar="DIR", help="the run directory")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="a checkpoint folder to go on from")
    parser.add_argument(
        "--allow-change", action="append", default=[], metavar="KEY", help="what may differ from the checkpoint's spec"
    )
    parser.add_argument("--attempt", type=int, default=1, help="which start of this run it is, counted from 1")
    parser.add_argument("--local_rank", type=int, default=0, help="given by the launcher; LOCAL_RANK is what is read")
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from harness.runtime.lean import import_deepspeed

    import_deepspeed()
    from harness.runtime.main import Start, run_rank

    start = Start(arguments.run, arguments.resume, tuple(arguments.allow_change), arguments.attempt)
    sys.exit(run_rank(start, int(os.environ.get("RANK", "0"))))
