# SPDX-License-Identifier: Apache-2.0
"""The look-ups of CONTRIBUTING.md: forty and more questions, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def test_every_lookup_names_files_that_exist() -> None:
    rows = ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in rows] == list(range(1, 1 + max(len(rows), 40)))
    paths = [(number, path) for number, _, cell in rows for path in re.findall(r"`([^`]+)`", cell)]
    assert {number for number, _ in paths} == {number for number, _, _ in rows}
    assert not [(number, path) for number, path in paths if not (ROOT / "harness" / path).exists()]
