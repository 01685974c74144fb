# SPDX-License-Identifier: Apache-2.0
"""Our reader of loose JSON against the one that DeepSpeed uses: both accept the same, and read the same values."""

from __future__ import annotations

import hjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.errors import UserError
from harness.spec.parse.source_parser import parse_lenient

TOKENS = """{ } [ ] : , "a" 'b' c d\x20e 1 -2.5 1e3 5e8 .5 true True null NaN #\x20x\n //\x20y\n /*\x20z\x20*/ "x\\n" "q\\u0041" ''' f - """
PIECES = st.sampled_from([*TOKENS.split(" "), " ", "\n", "\t"])


def once(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key is written twice")
    return dict(pairs)


def theirs(text):
    try:
        value = hjson.loads(text, object_pairs_hook=once)
    except Exception:
        return None
    return value if isinstance(value, dict) else None


def ours(text):
    try:
        reading = parse_lenient(text, "x.json")
    except UserError:
        return None
    return None if reading.duplicate_keys else reading.source.data


@settings(max_examples=1500, deadline=None)
@given(st.lists(PIECES, max_size=16).map("".join))
@example("{\n a: '''\n  x\n  y'''\n}")
@example('{"a": 5e8, "b": 1.0}')
def test_any_text_is_read_as_hjson_reads_it(text):
    assert (theirs(text) or None) == (ours(text) or None)


SCALARS = st.sampled_from(
    ["1", "-0.5", "1e-3", "true", "null", '"x"', "'y'", "True", ".001", "word", "two words", "1_000"]
)
ENDS = st.sampled_from([",", "\n", ",\n", " # c\n", ", // c\n", " /* c */,"])
KEYS = st.sampled_from(["{}", '"{}"', "'{}'"])


@st.composite
def maps(draw, depth=2):
    text, count = "{" + draw(st.sampled_from(["", "\n", "# c\n"])), draw(st.integers(0, 4))
    for number in range(count):
        name = draw(KEYS).format(f"k{number}")
        value = draw(maps(depth - 1)) if depth and draw(st.booleans()) else draw(SCALARS)
        text += f"{name}: {value}{draw(ENDS)}"
    return text + "}"


@settings(max_examples=800, deadline=None)
@given(maps())
def test_configurations_with_liberties_are_read_as_hjson_reads_them(text):
    assert (theirs(text) or None) == (ours(text) or None)
