# SPDX-License-Identifier: Apache-2.0
"""Compiles DeepSpeed ops by hand, from a checkout. The program is `harness/workers/op_builder.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.workers.op_builder import main

if __name__ == "__main__":
    sys.exit(main())
