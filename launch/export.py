# SPDX-License-Identifier: Apache-2.0
"""Exports a checkpoint by hand, from a checkout. The program is `harness/workers/export_worker.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.workers.export_worker import main

if __name__ == "__main__":
    sys.exit(main())
