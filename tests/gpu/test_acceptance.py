# SPDX-License-Identifier: Apache-2.0
"""The three parts of the acceptance on this machine's GPU, nine minutes each at most."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", [1, 2, 3])
def test_part_passes(part: int, tmp_path: Path) -> None:
    program = str(ROOT / "benchmarks" / "gpu_acceptance.py")
    command = [sys.executable, program, "--part", str(part), "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    file = tmp_path / f"part-{part}.txt"
    table = file.read_text() if file.is_file() else "no check was run"
    assert done.returncode == 0, f"{table}\n{done.stderr[-3000:]}"
    lines = [json.loads(line) for line in (tmp_path / f"part-{part}.jsonl").read_text().splitlines()]
    skipped = [line["check"] for line in lines if line["state"] == "SKIP"]
    assert not skipped, table
