# SPDX-License-Identifier: Apache-2.0
"""The loop stays one that is read at one go, and telemetry stays what it calls, not what it consists of."""

from __future__ import annotations

import ast
from pathlib import Path

LOOP = Path(__file__).resolve().parent.parent / "harness" / "runtime" / "train.py"
MAX_LINES = 130


def test_the_loop_is_short() -> None:
    assert len(LOOP.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_the_loop_knows_telemetry_by_one_name() -> None:
    names = [
        f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(LOOP.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    assert [name for name in names if "telemetry" in name] == ["harness.runtime.telemetry.run_telemetry.Telemetry"]
