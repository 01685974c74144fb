# SPDX-License-Identifier: Apache-2.0
"""`harness plan --format json` of a spec, as a user calls it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks.check import RanksFailed

ROOT = Path(__file__).resolve().parents[2]


def plan_spec(file: Path, spec: dict[str, Any], ranks: int, *options: str, seconds: float = 60) -> dict[str, Any]:
    """The plan of this spec, which is written to `file` first. Raises RanksFailed with the command's own words."""
    file.write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "harness", "plan", str(file), "--format", "json", "--world-size", str(ranks)]
    command += options
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=file.parent, capture_output=True, text=True, check=False, timeout=seconds, env=environment
    )
    if done.returncode not in (0, 1) or not done.stdout:
        raise RanksFailed(f"`harness plan` ended with {done.returncode}: {done.stderr[-500:]}")
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan
