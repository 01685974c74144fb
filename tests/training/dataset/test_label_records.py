# SPDX-License-Identifier: Apache-2.0
"""Texts with labels: which numbers are a regression, which column is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UserError
from harness.run.resolved_run import resolve_run
from harness.runtime.dataset.cache import prepare_or_reuse
from harness.runtime.dataset.token_dataset import open_token_dataset
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec

TURNS = [{"role": "user", "content": "hi"}]
BOTH = [{"text": "from the text", "messages": TURNS, "label": i % 2} for i in range(4)]


def prepare(file: Path, data: dict[str, Any], **settings: Any) -> tuple[list[str], list[float], tuple[str, ...]]:
    """(texts, labels, names of the labels) of the rows."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    values = {
        "objective": "classification",
        "classification": settings,
        "data": {"train": str(file), "eval_fraction": 0.0, "max_length": 64, "cache_dir": str(file.parent)} | data,
    }
    run = resolve_run(RunSpec.model_validate_json(json.dumps(values)), world_size=1)
    folder, prepared, _ = prepare_or_reuse(run, tokenizer, show_progress=False)
    rows = open_token_dataset(folder, prepared.train, 64, prepared.pad).sources[0]
    texts = [tokenizer.decode([int(t) for t in rows.row(i)[0] if t < 256]) for i in range(len(rows))]
    return texts, np.asarray(rows.values)[:, 0].tolist(), prepared.labels


def test_a_table_without_types_has_numbers_of_a_regression(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("text,label\nfirst,4.5\nsecond,-2\nthird,250000\n")
    texts, labels, names = prepare(file, {}, problem_type="regression")
    assert (texts, labels, names) == (["first", "second", "third"], [4.5, -2.0, 250_000.0], ("LABEL_0",))


@pytest.mark.parametrize("labels", [[250_000, 300_000], [250_000, 0.5]])
def test_large_whole_numbers_are_a_regression_where_it_is_named_or_shown(tmp_path: Path, labels: list[float]) -> None:
    file = tmp_path / "prices.jsonl"
    file.write_text("".join(json.dumps({"text": "house", "label": label}) + "\n" for label in labels))
    settings = {"problem_type": "regression"} if labels[1] == 300_000 else {}
    assert prepare(file, {}, **settings)[1:] == (labels, ("LABEL_0",))
    if settings:
        with pytest.raises(UserError, match="has the label 300,000"):
            prepare(file, {})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "from the text"),
        ({"format": "text"}, "from the text"),
        ({"messages_column": "messages"}, "<user>hi"),
        ({"format": "messages"}, "<user>hi"),
        ({"train": [{"path": "FILE", "format": "messages"}]}, "<user>hi"),
    ],
)
def test_a_chat_beside_a_text_is_read_where_it_is_named(tmp_path: Path, data: dict[str, Any], text: str) -> None:
    file = tmp_path / "both.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in BOTH))
    if "train" in data:
        data = {"train": [{**data["train"][0], "path": str(file)}]}
    assert prepare(file, data)[0] == [text] * len(BOTH)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"messages_column": "turns"}, "has no column `turns`"),
        ({"format": "alpaca"}, "is of the format `alpaca`"),
    ],
)
def test_what_is_named_and_not_there_is_refused(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    file = tmp_path / "both.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in BOTH))
    with pytest.raises(UserError, match=message):
        prepare(file, data)
