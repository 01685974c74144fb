# SPDX-License-Identifier: Apache-2.0
"""Data of an object store: copied once, again when it changes, and read as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import UserError
from harness.runtime.dataset.data_sources import open_source
from harness.runtime.dataset.stored_sources import with_local_copies
from harness.spec.sections.data_spec import DataSpec
from tests.support.object_store import StoreServer, error, needs_store

pytestmark = [pytest.mark.training, needs_store]


def names(data: DataSpec) -> list[str]:
    assert data.train is not None
    return [
        Path(part.name).name
        for source in data.train
        for part in open_source(source, "data.train", streaming=False, hash_file=lambda path: path.name)
    ]


@pytest.fixture
def texts(s3: StoreServer) -> StoreServer:
    for name in ("b.jsonl", "a.jsonl", "sub/c.jsonl", "notes.md"):
        s3.client.put_object(Bucket="bucket", Key=f"texts/{name}", Body=b'{"text": "one"}\n')
    return s3


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/texts/a.jsonl", ["a.jsonl"]),
        ("s3://bucket/texts/*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("s3://bucket/texts/**/*.jsonl", ["a.jsonl", "b.jsonl", "c.jsonl"]),
        ("s3://bucket/texts", ["a.jsonl", "b.jsonl", "notes.md", "c.jsonl"]),
    ],
)
def test_a_key_a_glob_or_a_folder(texts: StoreServer, tmp_path: Path, url: str, expected: list[str]) -> None:
    assert names(with_local_copies(DataSpec(train=url), tmp_path)) == expected


def test_copies_are_made_once_and_again_after_a_change(texts: StoreServer, tmp_path: Path) -> None:
    data = DataSpec(train=["s3://bucket/texts/*.jsonl", "local.jsonl"])
    first = with_local_copies(data, tmp_path)
    texts.faults.requests.clear()
    assert with_local_copies(data, tmp_path) == first
    assert not any(request.startswith("GET /bucket/texts/") for request in texts.faults.requests)
    texts.client.put_object(Bucket="bucket", Key="texts/a.jsonl", Body=b'{"text": "two"}\n')
    second = with_local_copies(data, tmp_path)
    assert second != first
    assert second.train is not None
    assert second.train[1].path == "local.jsonl"


def test_faults_that_pass_are_outlived_and_others_are_findings(texts: StoreServer, tmp_path: Path) -> None:
    texts.client.put_object(Bucket="bucket", Key="texts/long.txt", Body=b"x" * 100_000)
    texts.faults.cut_reads = 2
    assert names(with_local_copies(DataSpec(train="s3://bucket/texts/long.txt"), tmp_path)) == ["long.txt"]
    texts.faults.fail(10**6, error(403, "AccessDenied"))
    with pytest.raises(UserError) as raised:
        with_local_copies(DataSpec(train="s3://bucket/texts/a.jsonl"), tmp_path)
    assert [f.gate for f in raised.value.findings] == ["ST102"]
    texts.faults.answer = None
    with pytest.raises(UserError) as raised:
        with_local_copies(DataSpec(train="s3://bucket/other/*.jsonl"), tmp_path)
    assert [f.gate for f in raised.value.findings] == ["ST109"]
    assert not list(tmp_path.glob(".*.tmp"))
