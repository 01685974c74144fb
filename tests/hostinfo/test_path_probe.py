# SPDX-License-Identifier: Apache-2.0
"""Questions about paths end within their limit, and near names are found. Seconds."""

from __future__ import annotations

import time
from threading import Event

import pytest

from harness.hostinfo.path_probe import (
    ANSWER_SECONDS,
    answer_all_in_time,
    answer_in_time,
    find_similar_path,
    is_near_name,
)


def test_a_look_that_hangs_ends_after_a_second_and_is_not_repeated(tmp_path):
    started = time.monotonic()
    answers = answer_all_in_time(
        [(tmp_path / "a", Event().wait), (tmp_path / "b", Event().wait), (tmp_path / "c", lambda: 3)]
    )
    assert answers == [None, None, (3,)]
    assert ANSWER_SECONDS <= time.monotonic() - started < 2 * ANSWER_SECONDS, "all of them share one limit"
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="did not answer within 1 s"):
        answer_in_time(tmp_path / "a", lambda: 1)
    assert time.monotonic() - started < ANSWER_SECONDS / 2


def test_what_a_look_raises_is_raised(tmp_path):
    def fail() -> int:
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        answer_in_time(tmp_path / "d", fail)
    assert answer_in_time(tmp_path / "e", lambda: None) is None


@pytest.mark.parametrize(
    ("name", "other", "near"),
    [
        ("tiny-lama", "tiny-llama", True),
        ("chats.jsonl", "chat.jsonl", True),
        ("chats.json", "chats.jsonl", True),
        ("Data", "data", True),
        ("trian.jsonl", "train.jsonl", True),
        ("modle", "model", True),
        ("set.txt", "ste.txt", False),
        ("train.jsonl", "eval.jsonl", False),
        ("texts.jsonl", "test.jsonl", False),
        ("part-00001.jsonl", "part-00002.jsonl", False),
        ("llama-8b", "llama-70b", False),
        ("train.jsonl", "train.csv", False),
    ],
)
def test_near_names_are_misspelt_ones_and_no_other_shards(name, other, near):
    assert is_near_name(name, other) is near
    assert is_near_name(other, name) is near


def test_the_similar_path_replaces_the_name_that_is_wrong(tmp_path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "sub" / "chats.jsonl").touch()

    def find(text: str) -> str | None:
        return find_similar_path(str(tmp_path), text, lambda path: (tmp_path / path).is_file())

    assert find("dta/sub/chats.jsonl") == "data/sub/chats.jsonl"
    assert find("./data/subs/chats.jsonl") == "./data/sub/chats.jsonl"
    assert find("data/sub/chat.jsonl") == "data/sub/chats.jsonl"
    assert find("data/sub/other.jsonl") is None
    assert (
        find_similar_path("", f"{tmp_path}/dta/sub", lambda path: path == f"{tmp_path}/data/sub")
        == f"{tmp_path}/data/sub"
    )
