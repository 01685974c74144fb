# SPDX-License-Identifier: Apache-2.0
"""The rows of a text file, and what its readers make of marks that they do not know."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.facts import deepspeed_keys
from harness.facts.data_rows import read_rows


def test_a_row_has_the_depth_of_its_indent(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("# a comment\n\nblock\n    inner block\n        key int\n    other\nlast\n")
    rows = [*read_rows(str(tmp_path / "rows.txt"))]
    assert rows == [(0, "block"), (1, "inner block"), (2, "key int"), (1, "other"), (0, "last")]


def test_a_mark_that_no_reader_knows_is_refused() -> None:
    (key,) = deepspeed_keys._parse_row("stage int =0 ge:0 le:3@0.19.6")
    assert [(bound.op, bound.limit, bound.since) for bound in key.bounds] == [("ge", 0, None), ("le", 3, (0, 19, 6))]
    with pytest.raises(ValueError, match="exactly"):
        next(deepspeed_keys._parse_row("stage int =0 exactly"))
