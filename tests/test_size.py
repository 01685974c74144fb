# SPDX-License-Identifier: Apache-2.0
"""The package grows only by a line here that says for what. Needs nothing; a second."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {
    "2026-11-29": (
        135_000,
        "counting began at 125,900; then came objectives (dpo, kto, reward, classification), imports of checkpoints, the"
        " one-pass Adam, scripts of one's own, the table of ways to train, the pages of plans and runs, containers and arrays of Slurm,"
        " patches of pods, pushes to the Hub and samples of evaluations; chat templates asked of installed programs, causes inferred by"
        " rule, rows of custom datasets, adapters beside fused experts, clashes that a file's own program refuses, logs as people quote them,"
        " commands of OpenRLHF and Megatron-DeepSpeed, TRL's own softmax of a token's loss",
    ),
    "2026-12-01": (
        135_122,
        "roles of kinds of lines: a gigabyte of log is read with the CPU time of the tree of 2026-11-25 again; imports without"
        " garbage collections: a rank starts with 2 s of CPU less; lines of a log are cut where whole logs are searched",
    ),
}
"""Lines of Python in `harness/` by day, and what needs them. `make size` shows rooms and their change."""


def test_the_package_is_no_larger_than_its_last_limit() -> None:
    limit, reason = LIMITS[max(LIMITS)]
    shown = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "size")], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    found = re.search(r"^harness, all +([\d,]+)", shown, re.MULTILINE)
    assert found is not None, shown
    lines = int(found[1].replace(",", ""))
    assert lines <= limit, f"{lines:,} lines: delete as many, or add a line to LIMITS that says for what"
    assert lines > limit - 1_000, f"{lines:,} lines: lower the limit, so that what was won stays"
    assert reason
