# SPDX-License-Identifier: Apache-2.0
"""JSON with the liberties that DeepSpeed's reader takes: values, places, and what is noted."""

from __future__ import annotations

import pytest

from harness.errors import UserError
from harness.spec.parse.source_parser import parse_lenient


def read(text):
    reading = parse_lenient(text, "x.json")
    return reading.source.data, [item.kind for item in reading.nonstandard_syntax]


@pytest.mark.parametrize(
    ("text", "value", "kinds"),
    [
        ('{"a": 1}', {"a": 1}, []),
        ('{# c\n"a": 1 // d\n/* e\n*/ }', {"a": 1}, ["a comment"] * 3),
        ('{"a": [1, 2,], }', {"a": [1, 2]}, ["a comma before the closing bracket"] * 2),
        ('{"a": 1\n"b": 2}', {"a": 1, "b": 2}, ["a missing comma"]),
        ("{'a': 'it\\'s'}", {"a": "it's"}, ["single quotes"] * 2),
        ("{a: 1, b : 2}", {"a": 1, "b": 2}, ["a key without quotes"] * 2),
        ('"a": 1\nb: {}', {"a": 1, "b": {}}, ["no outer braces", "a missing comma", "a key without quotes"]),
        ('{"a": True\n}', {"a": "True"}, ["unquoted text"]),
        ('{"a": False,\n"b": 1}', {"a": "False,", "b": 1}, ["unquoted text", "a missing comma"]),
        ('{"a": .001\n}', {"a": ".001"}, ["unquoted text"]),
        ('{"a": info # c\n}', {"a": "info # c"}, ["unquoted text"]),
        ('{"a": -1.5e3 , "b": null # c\n}', {"a": -1500.0, "b": None}, ["a comment"]),
        ("{\n  a: '''\n    one\n    two\n    '''\n}", {"a": "one\ntwo"}, ["a key without quotes", "a text of several lines"]),
        ('{"a": "\\u0041\\/\\n"\n b: 1}', {"a": "A/\n", "b": 1}, ["a missing comma", "a key without quotes"]),
        ('{"a": "\\ud83d\\ude00" "b": 1}', {"a": "\U0001f600", "b": 1}, ["a missing comma"]),
    ],
)  # fmt: skip
def test_what_deepspeed_reads_is_read_and_noted(text, value, kinds):
    data, noted = read(text)
    assert data == value
    assert sorted(noted) == sorted(kinds)


def test_places_are_those_of_the_file():
    reading = parse_lenient("{\n  # one\n  train_batch_size: 8\n  bf16: {enabled: true,}\n}", "x.json")
    place = reading.source.place("train_batch_size")
    assert (place.line, place.column, place.length) == (3, 21, 1)
    place = reading.source.place("bf16.enabled")
    assert (place.line, place.column) == (4, 19)
    noted = [(item.kind, item.place.line, item.place.column) for item in reading.nonstandard_syntax]
    assert ("a comment", 2, 3) in noted
    assert ("a key without quotes", 3, 3) in noted
    assert ("a comma before the closing bracket", 4, 23) in noted


def test_a_key_written_twice_is_a_finding_and_the_last_one_counts():
    reading = parse_lenient('{"a": 1, "a": 2}', "x.json")
    assert reading.source.data == {"a": 2}
    assert [f.gate for f in reading.duplicate_keys] == ["SP004"]
    loose = parse_lenient("{a: 1, a: 2}", "x.json")
    assert loose.source.data == {"a": 2}
    assert [f.gate for f in loose.duplicate_keys] == ["SP004"]


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ('{"a": True}', 1, 7, "`true` is"),  # the rest of the line is swallowed, to hjson as well
        ('{"a": 1,,}', 1, 9, "a key"),
        ('{"a": [1 2', 1, 10, "`,` or `]`"),
        ('{// c\n"a": 1,\n"b" 2}', 3, 5, "`:` belongs"),
        ('{"a": "x\ny"}', 1, 9, "control character"),
        ("{a b: 1}", 1, 2, "a key"),
        ('{/* "a": 1}', 1, 2, "without end"),
        ("{'a': 'x}", 1, 7, "without end"),
        ('{"a": 1} x', 1, 10, "something follows"),
        ("nothing at all", 1, 1, "a key"),
    ],
)
def test_what_nobody_reads_is_refused_where_it_breaks(text, line, column, said):
    with pytest.raises(UserError) as refused:
        parse_lenient(text, "x.json")
    finding = refused.value.findings[0]
    assert finding.gate == "SP002"
    assert (finding.place.line, finding.place.column, said in finding.message) == (line, column, True), finding.message


@pytest.mark.parametrize(
    "text", ["[" * 3000, "{a:" * 3000, "{" * 5000, "#" * 100_000 + "{", "{a: " + "9" * 500 + "\n}"]
)
def test_nothing_runs_away(text):
    with pytest.raises(UserError):
        parse_lenient(text, "x.json")
