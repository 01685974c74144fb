# SPDX-License-Identifier: Apache-2.0
"""Syntax: values, places, and refusals that name line and column."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ExitCode, UserError
from harness.spec.parse import json_parser, yaml_parser
from harness.spec.parse.source import Source, read_text
from harness.spec.parse.source_parser import parse

REFUSED = {
    "empty.yaml": (b"", "SP003", 1, 1),
    "comment.yaml": (b"# nothing\n", "SP003", 1, 1),
    "list.yaml": (b"- a\n- b\n", "SP003", 1, 1),
    "text.yaml": (b"hello\n", "SP003", 1, 1),
    "tab.yaml": (b"a:\n\tb: 1\n", "SP002", 2, 1),
    "tab-inside.yaml": (b"a:\n  b: 1\n \tc: 2\n", "SP002", 3, 2),
    "open.yaml": (b"a: [1,\nb: 2\n", "SP002", 3, 1),
    "twice.yaml": (b"a: 1\nb: 2\na: 3\n", "SP004", 3, 1),
    "list-key.yaml": (b"? [a, b]\n: 1\n", "SP002", 1, 3),
    "two-documents.yaml": (b"a: 1\n---\nb: 2\n", "SP002", 2, 1),
    "junk.yaml": (b"\x7fELF\x02\x01", "SP001", 1, 1),
    "latin.yaml": (b"a: 1\nb: caf\xe9\n", "SP001", 2, 7),
    "nul.yaml": (b"a: 1\nb: x\x00y\n", "SP001", 2, 5),
    "digits.yaml": (b"a: " + b"1" * 5001, "SP002", 1, 4),
    "hex.yaml": (b"a: 0x_\n", "SP002", 1, 4),
    "tag.yaml": (b"a: !!int y\n", "SP002", 1, 4),
    "own-tag.yaml": (b"a: !foo {b: 1}\n", "SP002", 1, 4),
    "merge.yaml": (b"a: &x {b: 1}\nc: {<<: *x}\n", "SP002", 2, 5),
    "digits.json": (b'{"a": ' + b"1" * 5001 + b"}", "SP002", 1, 7),
    "surrogate.json": (rb'{"\ud800": 1}', "SP002", 1, 2),
    "empty.json": (b"", "SP003", 1, 1),
    "list.json": (b"[1]", "SP003", 1, 1),
    "comma.json": (b'{"a": 1,\n}', "SP002", 1, 8),
    "comment.json": (b'{\n  // no\n  "a": 1}', "SP002", 2, 3),
    "python.json": (b'{"a": True}', "SP002", 1, 7),
    "twice.json": (b'{"a": {"b": 1,\n "b": 2}}', "SP004", 2, 2),
    "open.json": (b'{"a": {', "SP002", 1, 8),
    "after.json": (b"{} {}", "SP002", 1, 4),
    "string.json": (b'{"a": "x\ny"}', "SP002", 1, 9),
}


def read_source(file: str) -> Source:
    return parse(read_text(file), file)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_its_place(name, write):
    content, gate, line, column = REFUSED[name]
    with pytest.raises(UserError) as refused:
        read_source(write(name, content))
    finding = refused.value.findings[0]
    assert (finding.gate, finding.place.line, finding.place.column) == (gate, line, column), finding.message
    assert finding.fix


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_is_none_is_wrong_usage(name, tmp_path):
    with pytest.raises(UserError) as refused:
        read_source(str(tmp_path / name))
    assert refused.value.code is ExitCode.USAGE
    assert refused.value.findings[0].gate == "SP001"


def test_numbers_are_those_of_yaml_1_2(write):
    source = read_source(
        write("n.yaml", "a: 1e-5\nb: 1:30\nc: 010\nd: 5e8\ne: .5\nf: 1_000\ng: 0x10\nh: '1'\ni: .inf\nj: -3\nk: 1.\n")
    )
    assert source.data == {
        "a": 1e-5, "b": "1:30", "c": 10, "d": 5e8, "e": 0.5, "f": 1000, "g": 16, "h": "1", "i": math.inf, "j": -3, "k": 1.0,
    }  # fmt: skip


def test_places_of_keys_and_values(write):
    source = read_source(write("p.yaml", "zero:\n  stage: 2  # two\ntrain: {max_steps: 10}\n"))
    assert str(source.place("zero.stage")).endswith("p.yaml:2:10")
    assert source.place("zero.stage").length == 1
    assert source.place("train.max_steps").column == 20
    assert source.place("zero.nothing").line == 1
    assert source.place("zero.nothing").length == len("zero")
    assert source.place("nothing.at.all").length == 0


def test_a_bomb_of_aliases_ends_early(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(UserError) as refused:
        read_source(write("bomb.yaml", "\n".join(lines)))
    assert refused.value.findings[0].gate == "SP002"


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, "- " * 3000, "a: " + "[" * 500 + "]" * 500])
def test_deep_nesting_is_refused(text, write):
    for name in ("deep.yaml", "deep.json"):
        with pytest.raises(UserError):
            read_source(write(name, text))


def test_a_yaml_alias_to_itself_is_refused(write):
    with pytest.raises(UserError):
        read_source(write("self.yaml", "a: &a [*a]\n"))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), VALUES, min_size=1, max_size=4), st.sampled_from([None, 1, "\t"]))
def test_json_means_what_the_standard_library_says(value, indent):
    text = json.dumps(value, indent=indent)
    source = json_parser.parse(text, "x.json")
    assert source.data == json.loads(text)


@given(st.text(max_size=60))
def test_json_is_accepted_exactly_when_the_standard_library_accepts_it(text):
    try:
        expected = json.loads(text, parse_constant=lambda _: 1 / 0)
    except (ValueError, ZeroDivisionError):
        expected = None
    try:
        got = json_parser.parse(text, "x.json").data
    except UserError:
        got = None
    assert got == (expected if isinstance(expected, dict) else None)


WORDS = st.text("xyz \u00e9:#-[]{}'\"\n", max_size=8)  # no digits: YAML 1.1 takes `0E0` for a text


@given(
    st.dictionaries(
        st.text("abc", min_size=1, max_size=3),
        st.integers() | st.booleans() | st.none() | WORDS | st.lists(WORDS),
        min_size=1,
    )
)
def test_yaml_means_what_pyyaml_says_where_both_speak_yaml_1_2(value):
    text = yaml.safe_dump(value)
    got = yaml_parser.parse(text, "x.yaml").data
    assert got == value


@given(st.binary(max_size=200))
def test_no_bytes_make_a_traceback(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    for name in ("x.yaml", "x.json", "x"):
        file = Path(folder, name)
        file.write_bytes(content)
        try:
            assert isinstance(read_source(str(file)).data, dict)
        except UserError as refused:
            assert refused.findings[0].place.line >= 1  # noqa: PT017
