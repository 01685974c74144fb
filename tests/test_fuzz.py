# SPDX-License-Identifier: Apache-2.0
"""Some seconds of `tests/fuzz.py`; `python -m tests.fuzz --minutes 10` is the long run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_file_makes_a_traceback_or_a_hang():
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "0.2", "--seed", "7"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout.split()[0]) > 5, result.stdout
