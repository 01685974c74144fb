# SPDX-License-Identifier: Apache-2.0
"""Starts one rank by hand, from a checkout. The program is `harness/workers/train_worker.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.workers.train_worker import main

if __name__ == "__main__":
    sys.exit(main())
