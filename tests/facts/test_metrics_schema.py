# SPDX-License-Identifier: Apache-2.0
"""The schema of metrics.jsonl: its page is up to date, and lines are judged by it."""

from __future__ import annotations

from pathlib import Path

from harness.facts.metrics_schema import COMMON, LINES
from harness.views.metrics_page import to_markdown
from tests.support.metrics_lines import validate_line

EVAL = {"type": "eval", "step": 4, "loss": 2.0, "perplexity": 7.4, "tokens": 10, "time": 1.0}


def test_the_page_is_up_to_date() -> None:
    assert (Path(__file__).parents[2] / "docs/metrics-fields.md").read_text(encoding="utf-8") == to_markdown()


def test_every_field_is_told_and_named_once() -> None:
    for line in LINES.values():
        names = [field.name for field in (*COMMON, *line.fields)]
        assert len(set(names)) == len(names)
        assert all(field.meaning and field.name.isidentifier() for field in line.fields)
        assert line.meaning.endswith(".")


def test_lines_are_judged() -> None:
    assert validate_line(EVAL) == []
    assert validate_line({**EVAL, "of_a_later_version": [1]}) == []
    assert validate_line({**EVAL, "loss": None}) == []
    assert validate_line({"type": "evaluation"}) != []
    assert validate_line({k: v for k, v in EVAL.items() if k != "tokens"}) == ["`tokens` is missing"]
    assert validate_line({**EVAL, "tokens": None}) == ["`tokens` is null"]
    assert validate_line({**EVAL, "tokens": True}) == ["`tokens` is bool, should be a count"]
    assert validate_line({**EVAL, "perplexity": "high"}) == ["`perplexity` is str, should be a number"]


def test_lines_of_version_1_have_all_that_must_be_there() -> None:
    """As the first version wrote them: what it did not write is nowhere a must."""
    step = {
        "type": "step",
        "step": 1,
        "loss": 5.0,
        "learning_rate": 1e-3,
        "tokens": 10,
        "samples": 2,
        "tokens_per_second": 9.0,
        "seconds": 1.0,
        "memory_host_bytes": 5,
        "skipped": 0,
    }
    assert validate_line(step) == []
