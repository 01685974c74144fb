# SPDX-License-Identifier: Apache-2.0
"""Data files that declare more than they are, and records that no tokenizer takes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.errors import UserError
from harness.runtime.dataset import file_readers, json_readers
from harness.runtime.dataset.record import BadRecord, RawRecord
from harness.runtime.dataset.record_formats import RecordColumns
from harness.runtime.dataset.tokenization import RecordTokenizer
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.sections.data_spec import DataSpec
from tests.security.attempts import Attempt, attempt_param
from tests.security.command_runner import MEMORY_BYTES, SECONDS

pytestmark = pytest.mark.training

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
COLUMNS = RecordColumns("text", "text", "prompt", "completion", "messages")


def write_arrow(path: Path, array: Any, compression: str | None = "zstd") -> None:
    batch = pa.record_batch([array], names=["text"])
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema, options=options) as writer:
        writer.write(batch)


def write_arrow_file(path: Path, array: Any) -> None:
    batch = pa.record_batch([array], names=["text"])
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema, options=options) as writer:
        writer.write(batch)


def write_parquet(path: Path, array: Any, **options: Any) -> None:
    pq.write_table(pa.table({"text": array}), path, compression="zstd", write_statistics=False, **options)


def long_text() -> str:
    return "a" * (100 << 20)


def zeros(count: int) -> Any:
    return pa.array(np.zeros(count, np.int32))


def chats(content: str, count: int) -> Any:
    turns = pa.StructArray.from_arrays([pa.array([content] * count)], names=["content"])
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), turns)


def read(path: Path) -> int:
    """The rows of a columnar file, in bounded memory and time."""
    before, started = _peak(), time.process_time()
    rows = 0
    try:
        for _ in file_readers.columnar_reader(path, "data.train")(lambda _: None):
            rows += 1
    finally:
        assert _peak() - before < MEMORY_BYTES
        assert time.process_time() - started < SECONDS
    return rows


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("name", "write"),
    [
        attempt_param(
            Attempt("I110", "an Arrow file of 33 kB whose text unpacks to 1 GiB", "2.1 GB", "MD116 before Arrow unpacks"),
            "x.arrow",
            lambda path: write_arrow(path, pa.array([long_text()])),
        ),
        attempt_param(
            Attempt("I111", "an Arrow file, in the format with a footer, whose lz4 buffers unpack to 1 GiB", "2.1 GB",
                    "MD116 before Arrow unpacks"),
            "x.arrow",
            lambda path: write_arrow_file(path, pa.array(["a" * (200 << 20)])),
        ),
        attempt_param(
            Attempt("I112", "an Arrow file of 1.4 kB whose 250 rows are one text of 16 MiB in a dictionary", "4.1 GB",
                    "MD116 once its rows take a hundred times its size and 64 MiB"),
            "x.arrow",
            lambda path: write_arrow(path, pa.DictionaryArray.from_arrays(zeros(250), pa.array(["a" * (4 << 20)]))),
        ),
        attempt_param(
            Attempt("I113", "an Arrow file of 400 bytes with two billion rows that are null", "a loop of half an hour",
                    "MD116 after 700,000 of them"),
            "x.arrow",
            lambda path: write_arrow(path, pa.nulls(2**31 - 1)),
        ),
        attempt_param(
            Attempt("I114", "an Arrow file of 2 kB with 200 million equal rows, run-end encoded", "each was a record",
                    "MD116: the type is not read"),
            "x.arrow",
            lambda path: write_arrow(path, pa.RunEndEncodedArray.from_arrays(pa.array([2**27], pa.int32()), ["a"])),
        ),
        attempt_param(
            Attempt("I115", "a list view whose 256 rows share 100,000 values", "1 GB for 100 kB",
                    "MD116: the type is not read"),
            "x.arrow",
            lambda path: write_arrow(
                path,
                pa.ListViewArray.from_arrays(
                    zeros(256), pa.array([100_000] * 256, pa.int32()), pa.array(range(100_000))
                ),
            ),
        ),
        attempt_param(
            Attempt("I116", "a Parquet file of 2 kB with a page of 1 GiB", "3.2 GB", "MD116 by the page's own header"),
            "x.parquet",
            lambda path: write_parquet(path, pa.array([long_text()]), use_dictionary=False),
        ),
        attempt_param(
            Attempt("I117", "a Parquet file of 1 kB whose 1,000 rows are one text of 16 MiB in a dictionary", "4.3 GB",
                    "a few rows at a time, and MD116"),
            "x.parquet",
            lambda path: write_parquet(
                path, pa.DictionaryArray.from_arrays(zeros(1000), pa.array(["a" * (4 << 20)]))
            ),
        ),
        attempt_param(
            Attempt("I118", "a Parquet file of 600 bytes whose row is a list of 50 million numbers", "1.2 GB",
                    "MD116 by the number of values in the pages"),
            "x.parquet",
            lambda path: write_parquet(
                path,
                pa.ListArray.from_arrays(pa.array([0, 10_000_000], pa.int32()), pa.array(np.zeros(10_000_000, np.int8))),
            ),
        ),
        attempt_param(
            Attempt("I119", "a Parquet file of 1.4 kB whose chat has 120 turns of one text of 16 MiB", "4.1 GB",
                    "the texts stay in their dictionary, and MD116"),
            "x.parquet",
            lambda path: write_parquet(path, chats("a" * (1 << 20), 120), dictionary_pagesize_limit=1 << 30),
        ),
        attempt_param(
            Attempt("I121", "the same with texts that repeat the beginning of the one before", "3.8 GB", "MD116"),
            "x.parquet",
            lambda path: write_parquet(
                path, chats("a" * (1 << 20), 80), use_dictionary=False,
                column_encoding={"text.list.element.content": "DELTA_BYTE_ARRAY"},
            ),
        ),
    ],
)  # fmt: skip
def test_bombs(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path / name)
    assert (tmp_path / name).stat().st_size < 3_000_000
    with pytest.raises(UserError) as refused:
        read(tmp_path / name)
    assert refused.value.findings[0].gate == "MD116"


def test_honest_files_are_read(tmp_path: Path) -> None:
    """Repeated texts, all types of columns, chats in a dictionary that is larger than they are."""
    write_parquet(tmp_path / "a.parquet", pa.array(["the same text of a test"] * 100_000))
    assert read(tmp_path / "a.parquet") == 100_000
    write_parquet(tmp_path / "b.parquet", chats("word " * 50, 2000))
    assert read(tmp_path / "b.parquet") == 1
    values = [
        pa.MapArray.from_arrays([0, 2], pa.array(["a", "b"]), pa.array(["c", "d"])), pa.array(["x"], pa.string_view()),
        pa.array([[1, 2]], pa.list_(pa.int8(), 2)), pa.array([[["y"]]], pa.large_list(pa.list_(pa.string()))),
        pa.array(["a"]).dictionary_encode(), pa.array([{"a": {"b": "c"}}]), pa.array([b"abcd"], pa.binary(4)),
        pa.array([1.5]), pa.array([True]), pa.array([None], pa.timestamp("us")), pa.array(["x"], pa.large_string()),
    ]  # fmt: skip
    for number, value in enumerate(values):
        write_arrow(tmp_path / f"{number}.arrow", value)
        assert read(tmp_path / f"{number}.arrow") == 1


@Attempt(
    "I122",
    "a Parquet file with a page header, a footer or a column's name of any bytes",
    "a traceback: UnicodeDecodeError",
    "MD116, or the rows",
)
def test_damaged_parquet(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", chats("abc", 5))
    content = (tmp_path / "x.parquet").read_bytes()
    for at in range(4, len(content), 7):
        for byte in (0xFF, 0x80):
            (tmp_path / "x.parquet").write_bytes(content[:at] + bytes([byte]) + content[at + 1 :])
            try:
                read(tmp_path / "x.parquet")
            except UserError as refused:
                assert refused.findings[0].gate == "MD116"  # noqa: PT017


@pytest.mark.parametrize(
    ("name", "text"),
    [
        attempt_param(
            Attempt("I123", "a number of 5,000 digits in a record of JSON Lines", "a traceback: ValueError", "MD120"),
            "x.jsonl",
            '{"text": "a", "n": ' + "1" * 5000 + "}",
        ),
        attempt_param(
            Attempt("I124", "a number of 5,000 digits in a JSON list", "a traceback: ValueError", "MD120"),
            "x.json",
            '[{"text": "a", "n": ' + "1" * 5000 + "}]",
        ),
        attempt_param(
            Attempt("I125", "a JSON list with a value nested 700 deep", "a traceback: RecursionError", "MD120"),
            "x.json",
            '[{"text": "a", "n": ' + "[" * 700 + "]" * 700 + "}]",
        ),
        attempt_param(
            Attempt("I126", "turns as a text of 100,000 brackets", "a traceback: RecursionError", "MD120"),
            "x.jsonl",
            '{"messages": "' + "[" * 100_000 + '"}',
        ),
        attempt_param(
            Attempt("I127", "half of a surrogate pair in a text", "a traceback: TypeError", "MD113"),
            "x.jsonl",
            '{"text": "\\ud800"}',
        ),
    ],
)
def test_bad_records(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    make = json_readers.json_lines_reader if name.endswith("l") else json_readers.json_reader
    columns = RecordColumns("messages" if "messages" in text else "text", "text", "prompt", "completion", "messages")
    tokenize = RecordTokenizer(byte_tokenizer(), DataSpec(), columns, rows=False)
    try:
        records = list(make(tmp_path / name, "data.train")(lambda _: None))
    except UserError as refused:
        assert refused.findings[0].gate == "MD120"  # noqa: PT017
        return
    ((_, bad),) = tokenize(records).bad_records
    assert isinstance(bad, BadRecord)
    assert bad.kind in ("bad-json", "bad-utf-8")


@Attempt(
    "I128",
    "a text of 4 MB, or 64 of them in 33 kB of Parquet, before the tokenizer",
    "850 MB for 4 MB, 13 GB for 64 MB",
    "parts of one million characters, one after the other",
)
def test_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, sizes = byte_tokenizer(), []
    tokenize = RecordTokenizer(tokenizer, DataSpec(), COLUMNS, rows=False)
    whole = type(tokenizer).__call__

    def count(self: Any, texts: list[str], **options: Any) -> Any:
        sizes.append(sum(map(len, texts)))
        return whole(self, [text[:2] for text in texts], **options)

    monkeypatch.setattr(type(tokenizer), "__call__", count)
    text = "a word " * 600_000
    batch = tokenize([RawRecord(1, {"text": text}), *(RawRecord(i, {"text": text[: 1 << 19]}) for i in range(8))])
    assert sum(sizes) == len(text) + 8 * (1 << 19)
    assert max(sizes) < 2 << 20
    assert (batch.lengths < 0).sum() == len(text) >> 20  # parts of one document
    chat = RecordColumns("prompt-completion", "text", "prompt", "completion", "messages")
    pairs = RecordTokenizer(tokenizer, DataSpec(), chat, rows=True)
    ((_, bad),) = pairs([RawRecord(1, {"prompt": text, "completion": "a"})]).bad_records
    assert bad.kind == "too-long"


@Attempt(
    "I129",
    "a text file of 1 TB without a line's end, which is a hole on disk",
    "a piece of 256 MiB, copied at each MiB, for a tokenizer that takes 200 bytes for each",
    "pieces of 4 MiB, between characters",
)
def test_long_line(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes("ä€".encode() * 2_000_000)
    os.truncate(tmp_path / "x.txt", 1 << 40)
    pieces = file_readers.text_reader(tmp_path / "x.txt", "data.train")(lambda _: None)
    for piece in (next(pieces), next(pieces)):
        assert isinstance(piece.value, str)
        assert (3 << 20) < len(piece.value.encode()) <= (5 << 20)


@Attempt(
    "I133",
    "a CSV file of 1 TB without a line's end, which is a hole on disk",
    "the line is read whole, until no memory is left (read, not run)",
    "rows of 32 million characters at most, the others are bad records",
)
def test_long_row_of_csv(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\n", encoding="utf-8")
    os.truncate(tmp_path / "x.csv", 1 << 40)
    before = _peak()
    rows = file_readers.csv_reader(tmp_path / "x.csv", "data.train")(lambda _: None)
    assert isinstance(next(rows).value, BadRecord)
    assert _peak() - before < MEMORY_BYTES
