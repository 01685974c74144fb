# SPDX-License-Identifier: Apache-2.0
"""A few cases of `benchmarks/fuzz_readers.py`, always the same ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_fixed_cases(tmp_path: Path) -> None:
    names = ("run spec", "DeepSpeed JSON", "accelerate YAML", "other programs", "hostfile", "Slurm node list", "log")
    options = [word for name in names for word in ("--reader", name)]
    command = [sys.executable, ROOT / "benchmarks/fuzz_readers.py", "--cases", "3", "--seed", "tests", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    rows = [
        line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| ") and "Reader" not in line
    ]
    assert [row[0].strip() for row in rows if not row[0].strip().startswith("-")] == list(names), done.stderr
    assert [row for row in rows if row[1].strip() == "3" and (row[2].strip(), row[4].strip()) != ("0", "0")] == []
    slowest = max(float(row[5]) for row in rows if row[1].strip() == "3")
    assert slowest < 30, "hangs are judged on a quiet machine, by the benchmark"
