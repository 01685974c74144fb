# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.errors import UserError
from harness.runtime.dataset.data_plan import build_data_plan
from harness.runtime.dataset.data_sources import DOCSTRING_CHATS, open_builtin
from tests.support.training.data_helpers import TOKENIZER, prepared, run_of


def read(folder: Path, names: Any, column: str = "text") -> list[str]:
    """The texts, as their tokens say."""
    import numpy as np

    _, place = prepared(folder, train=names, text_column=column)
    text = TOKENIZER.decode(np.load(place / "train.npy").tolist())
    return text.split("<|endoftext|>")[:-1]


def test_the_python_reference_is_one_document_a_topic_in_order(tmp_path: Path) -> None:
    assert read(tmp_path, "builtin:python-docs") == [topics[k] for k in sorted(topics)]


def test_plain_files_and_globs_are_sorted_documents(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "c.rst"):
        (tmp_path / name).write_text(name)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "d.txt").write_text("deep")
    assert read(tmp_path, [str(tmp_path / "*.txt"), str(tmp_path / "a.md"), str(tmp_path / "c.rst")]) == [
        "b.txt",
        "a.md",
        "c.rst",
    ]
    assert read(tmp_path, str(tmp_path / "**" / "*.txt")) == ["b.txt", "deep"]


def test_tables_are_read_by_column(tmp_path: Path) -> None:
    rows = [{"body": "one", "n": 1}, {"body": "two\nlines", "n": 2}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "t.json").write_text(json.dumps(rows))
    (tmp_path / "t.csv").write_text('body,n\none,1\n"two\nlines",2\n')
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for ending in ("jsonl", "json", "csv", "parquet"):
        assert read(tmp_path, str(tmp_path / f"t.{ending}"), "body") == ["one", "two\nlines"], ending
    assert len(read(tmp_path, str(tmp_path / "t.*"), "body")) == 8


def bad(tmp_path: Path, case: str) -> tuple[str, str, str]:
    """(what data.train says, the gate, what the message must name)"""
    file = tmp_path / {
        "binary": "x.txt",
        "column": "x.jsonl",
        "number": "x.jsonl",
        "junk": "x.json",
        "suffix": "x.pdf",
    }.get(case, "x.csv")
    contents = {
        "binary": b"ok\n\xff\xfe",
        "column": b'{"a": "b"}\n',
        "number": b'{"text": 3}\n',
        "junk": b"{[",
        "suffix": b"%PDF",
        "empty": b"",
    }
    if case in contents:
        file.write_bytes(contents[case])
    return {
        "missing": (str(tmp_path / "no.txt"), "MD111", "no.txt"),
        "glob": (str(tmp_path / "*.md"), "MD111", "*.md"),
        "folder": (str(tmp_path), "MD111", "is a directory"),
        "binary": (str(file), "MD113", "byte 3"),
        "column": (str(file), "MD112", "`text`, it has `a`"),
        "number": (str(file), "MD112", "line 1"),
        "junk": (str(file), "MD120", "x.json"),
        "suffix": (str(file), "MD118", "x.pdf"),
        "empty": (str(file), "MD114", "x.csv"),
        "builtin": ("builtin:python-doc", "MD118", "builtin:python-doc"),
    }[case]


CASES = ["missing", "glob", "folder", "binary", "column", "number", "junk", "suffix", "empty", "builtin"]


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_read_is_refused_by_name(tmp_path: Path, case: str) -> None:
    train, gate, named = bad(tmp_path, case)
    with pytest.raises(UserError) as refused:
        read(tmp_path, train)
    (finding,) = refused.value.findings
    assert finding.gate == gate
    assert named in finding.message
    assert finding.key.startswith("data.")


def test_docstring_chats_are_chats_of_the_standard_library() -> None:
    records = open_builtin(DOCSTRING_CHATS, "data.train").read(lambda _: None)
    for _ in range(20):
        value: Any = next(records).value
        assert [turn["role"] for turn in value["messages"]] in (["user", "assistant"], ["user", "assistant"] * 2)
        assert all(turn["content"] for turn in value["messages"])


def test_planning_reads_one_record_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n' * 5)
    run = run_of(tmp_path, train=[{"path": str(tmp_path / "x.jsonl"), "weight": 2}, str(tmp_path / "x.jsonl")])
    plan = build_data_plan(run.spec.data, TOKENIZER, lambda path: path.name)
    assert [(group.weight, group.stream) for group in plan.groups] == [(2.0, True), (None, True)]
