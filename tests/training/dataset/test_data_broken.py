# SPDX-License-Identifier: Apache-2.0
"""Broken records: each is told with file and line, ends the run or is counted and listed, by policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import UserError
from harness.findings import Fix
from harness.runtime.tokenizer import byte_tokenizer
from tests.support.training.data_helpers import chat, lines, only, prepared

GOOD = [chat("q", "a"), chat("q2", "a2")]
TEXT = [{"text": "one"}, {"text": "two"}]
PAIR = [{"prompt": "p", "completion": "c"}] * 2


def turns(*messages: Any) -> bytes:
    return json.dumps({"messages": list(messages)}).encode()


USER, ANSWER = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}

CASES: dict[str, tuple[list[Any], bytes, str, str, str]] = {
    # name: (good records, the broken line, kind, finding, a part of the message)
    "cut off": (TEXT, b'{"text": "abc', "bad-json", "MD120", "JSON: unterminated string at column 10"),
    "a line break": (TEXT, b'{"text": "a\rb"}', "bad-json", "MD120", "JSON: invalid control character at column 12"),
    "two on a line": (TEXT, b'{"text": "a"} {"text": "b"}', "bad-json", "MD120", "extra data"),
    "a list": (TEXT, b'["text"]', "wrong-type", "MD112", "a list, should be an object"),
    "bad UTF-8": (TEXT, b'{"text": "ab\xff"}', "bad-utf-8", "MD113", "byte 12"),
    "no key": (TEXT, b'{"body": "x"}', "missing-key", "MD112", "has no `text`, it has `body`"),
    "a number": (TEXT, b'{"text": 5}', "wrong-type", "MD112", "`text` is a number"),
    "null": (TEXT, b'{"text": null}', "wrong-type", "MD112", "`text` is null"),
    "empty": (TEXT, b'{"text": ""}', "empty", "MD121", "`text` is empty"),
    "no completion": (PAIR, b'{"prompt": "p"}', "missing-key", "MD112", "has no `completion`"),
    "empty completion": (PAIR, b'{"prompt": "p", "completion": ""}', "empty", "MD121", "`completion` is empty"),
    "no turns": (GOOD, turns(), "missing-turn", "MD123", "`messages` is empty"),
    "turns as text": (GOOD, b'{"messages": "hello"}', "wrong-type", "MD112", "a text, should be a list of turns"),
    "a turn as text": (GOOD, turns("hello"), "wrong-type", "MD112", "`messages[0]` is a text"),
    "no role": (GOOD, turns({"content": "q"}, ANSWER), "missing-key", "MD112", "`messages[0]` has no `role`"),
    "no content": (GOOD, turns(USER, {"role": "assistant"}), "missing-key", "MD112", "`messages[1]` has no `content`"),
    "content a number": (GOOD, turns(USER, {**ANSWER, "content": 3}), "wrong-type", "MD112", "is a number"),
    "no assistant": (GOOD, turns(USER), "missing-turn", "MD123", "no assistant turn"),
    "empty answer": (GOOD, turns(USER, {**ANSWER, "content": ""}), "empty", "MD121", "`messages[1].content`"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_line_is_told_or_left_out_and_listed(tmp_path: Path, case: str) -> None:
    good, broken, kind, gate, words = CASES[case]
    rows = [json.dumps(record).encode() for record in good]
    file = tmp_path / "x.jsonl"
    file.write_bytes(b"\n".join([rows[0], b"", broken, rows[1]]) + b"\n")
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=str(file))
    finding = only(refused)
    assert finding.gate == gate
    assert f"`{file}`, line 3: " in finding.message
    assert words in finding.message
    assert finding.fix is not None
    found, place = prepared(tmp_path, train=str(file), on_bad_record="skip")
    assert found.skipped == {kind: 1}
    assert found.train_documents == 2
    (listed,) = [json.loads(line) for line in (place / "skipped.jsonl").read_text().splitlines()]
    assert (listed["source"], listed["line"], listed["kind"]) == (str(file), 3, kind)
    clean, _ = prepared(tmp_path, train=lines(tmp_path / "clean.jsonl", good))
    assert clean.sha256 == found.sha256


def test_all_bad_records_of_a_run_that_stops_are_in_one_error(tmp_path: Path) -> None:
    rows = [json.dumps(record) for record in TEXT]
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text("\n".join([rows[0], "{", rows[1], '{"text": ""}', "[}", ""]))
    two.write_text("\n".join([*["{"] * 11, rows[0], ""]))
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=[str(one), str(two)])
    broken, empty = refused.value.findings
    assert (broken.gate, empty.gate) == ("MD120", "MD121")
    assert broken.message.startswith(f"`{one}`, line 2: is not JSON")
    assert broken.notes[0].startswith(f"`{one}`, line 5: is not JSON")
    assert broken.notes[1] == f"`{two}`, lines 1, 2, 3, 4, 5, 6, 7, 8: the same"
    assert broken.notes[2] == "13 records like these, of which 10 are named here"
    assert empty.message == f"`{one}`, line 4: `text` is empty"


def test_after_the_first_bad_record_a_huge_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.runtime.dataset.bad_records._MAX_RECORDS_AFTER_FIRST", 2000)
    file = tmp_path / "x.jsonl"
    file.write_text("{\n" + '{"text": "one"}\n' * 5000 + "{\n")
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=str(file))
    (finding,) = refused.value.findings
    assert "line 1:" in finding.message
    assert finding.notes[-1] == "the 2,000 records after the first of them were read, not the rest"


@pytest.mark.parametrize("assistant_only", [True, False])
def test_roles_of_sharegpt_in_messages_are_named(tmp_path: Path, assistant_only: bool) -> None:
    turns = [{"role": "human", "content": "q"}, {"role": "gpt", "content": "a"}, USER, ANSWER]
    file = lines(tmp_path / "a.jsonl", [{"messages": turns}])
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=file, assistant_only_loss=assistant_only)
    assert only(refused).gate == "MD123"
    roles = "has ShareGPT's roles `human` and `gpt`, where the chat template expects `user` and `assistant`"
    assert roles in only(refused).message
    assert only(refused).fix == Fix(
        "rename the roles, or use ShareGPT's format: `conversations` with `from` and `value`"
    )
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{# human, gpt #}\n{% endfor %}"
    assert prepared(tmp_path, tokenizer, train=file, assistant_only_loss=False)[0].train_documents == 1


def test_what_the_template_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}\n{% endfor %}"
    )
    file = lines(tmp_path / "a.jsonl", [chat("q", "a"), {"messages": [USER, USER, ANSWER]}])
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, tokenizer, train=file)
    assert only(refused).gate == "MD123"
    assert "line 2" in only(refused).message
    assert "roles must alternate" in only(refused).message


PARTS = [{"type": "text", "text": "q"}]


@pytest.mark.parametrize("body", ["m.role + ': ' + m.content", "m.content"])
def test_a_list_of_parts_is_named_where_the_template_takes_texts(tmp_path: Path, body: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ " + body + " }}\n{% endfor %}"
    file = lines(tmp_path / "a.jsonl", [chat("q", "a"), {"messages": [{"role": "user", "content": PARTS}, ANSWER]}])
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, tokenizer, train=file)
    assert only(refused).gate == "MD123"
    assert "line 2: `messages[0].content` is a list of parts; the chat template expects a text" in only(refused).message
    assert "write each `content` as one text" in only(refused).fix.title


def test_a_list_of_parts_is_taken_where_the_template_reads_it(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ p.text }}{% endfor %}{% endif %}\n{% endfor %}"
    )
    as_text, as_parts = ({"messages": [{"role": "user", "content": content}, ANSWER]} for content in ("q", PARTS))
    one, _ = prepared(tmp_path, tokenizer, train=lines(tmp_path / "a.jsonl", [as_text]))
    two, _ = prepared(tmp_path, tokenizer, train=lines(tmp_path / "b.jsonl", [as_parts]))
    assert one.sha256 == two.sha256


def test_a_role_that_is_not_known_is_named_with_those_that_are(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "narrator", "value": "{}"}, {"from": "gpt", "value": "a"}]
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=lines(tmp_path / "a.jsonl", [{"conversations": turns}]))
    assert "`conversations[1].from` is `narrator`; the accepted roles are `assistant`," in only(refused).message
    assert "rename the role" in only(refused).fix.title
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}"
        "{% endif %}{{ m.content }}\n{% endfor %}"
    )
    call = {"role": "function_call", "content": "{}"}
    file = lines(tmp_path / "b.jsonl", [{"messages": [USER, call, ANSWER]}])
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, tokenizer, train=file)
    assert "`messages[1].role` is `function_call`; the usual roles are `assistant`," in only(refused).message


@pytest.mark.parametrize("strategy", ["raise", "drop"])
def test_too_long_records_can_be_broken_or_just_left_out(tmp_path: Path, strategy: str) -> None:
    file = lines(tmp_path / "a.jsonl", [chat("q", "a"), chat("q", "a" * 99)])
    data: dict[str, Any] = {"train": file, "max_length": 40, "excess_length_strategy": strategy}
    if strategy == "raise":
        with pytest.raises(UserError) as refused:
            prepared(tmp_path, **data)
        assert only(refused).gate == "MD122"
        assert "`data.max_length` is 40" in only(refused).message
        data["on_bad_record"] = "skip"
    assert prepared(tmp_path, **data)[0].skipped == {"too-long": 1}


def test_too_many_broken_records_end_the_run_after_all(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"text": "ok"}\n' + "{\n" * 3 + '{"text": ""}\n' * 2)
    assert prepared(tmp_path, train=str(file), on_bad_record="skip", max_bad_records=5)[0].skipped == {
        "bad-json": 3,
        "empty": 2,
    }
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=str(file), on_bad_record="skip", max_bad_records=4)
    assert only(refused).gate == "MD125"
    assert "3 bad-json, 2 empty" in only(refused).notes[0]


def test_rows_of_tables_are_named_too(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b'text,n\n"one\ntwo",1\nthree\nb\xff,2\n,3\nok,4\n')
    found, place = prepared(tmp_path, train=str(tmp_path / "x.csv"), on_bad_record="skip")
    listed = [json.loads(line) for line in (place / "skipped.jsonl").read_text().splitlines()]
    assert [(line["line"], line["kind"]) for line in listed] == [(4, "bad-row"), (5, "bad-utf-8"), (6, "empty")]
    assert found.train_documents == 2
    (tmp_path / "x.json").write_text('[{"text": "a"}, 7, {"text": 8}, {"text": "b"}]')
    found, place = prepared(tmp_path, train=str(tmp_path / "x.json"), on_bad_record="skip")
    listed = [json.loads(line) for line in (place / "skipped.jsonl").read_text().splitlines()]
    assert [line["record"] for line in listed] == [2, 3]


@pytest.mark.parametrize("body", ['[{"text": "a"}, {"te', '[{"text": "a"} {"text": "b"}]', "[", '[{"text": "a"},'])
def test_a_json_list_that_breaks_off_is_refused_whatever_the_policy(tmp_path: Path, body: str) -> None:
    (tmp_path / "x.json").write_text(body)
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=str(tmp_path / "x.json"), on_bad_record="skip")
    assert only(refused).gate in {"MD120", "MD114"}
    assert "x.json" in only(refused).message


def test_a_long_json_list_is_read_piece_by_piece(tmp_path: Path) -> None:
    records = [{"text": f"{i} \u20ac " + "x" * 3000} for i in range(3000)]
    (tmp_path / "x.json").write_text(json.dumps(records, ensure_ascii=False))
    one, _ = prepared(tmp_path, train=str(tmp_path / "x.json"))
    two, _ = prepared(tmp_path, train=lines(tmp_path / "x.jsonl", records))
    assert one.train_documents == 3000
    assert one.sha256 == two.sha256


def test_a_text_that_is_not_utf_8_is_named_with_the_byte(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"ok\n\xff\xfe")
    with pytest.raises(UserError) as refused:
        prepared(tmp_path, train=str(tmp_path / "x.txt"))
    assert only(refused).gate == "MD113"
    assert "byte 3" in only(refused).message
