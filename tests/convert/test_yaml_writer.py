# SPDX-License-Identifier: Apache-2.0
"""YAML that is written is read back as the same values, by our reader and by PyYAML."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.convert import yaml_writer
from harness.spec.parse import yaml_parser

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from(
        ["yes", "null", "1e5", "0x10", "~", "- a", "a: b", "# c", "1_0", ".5", "on", "NaN", "2026-01-01", "=", "a/b.c"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4), st.lists(TEXT, max_size=2))
def test_what_is_written_is_what_is_read(value, comments):
    text = yaml_writer.format_document(value, comments)
    assert text.isascii()
    assert yaml_parser.parse(text, "x.yaml").data == value
    assert yaml.safe_load(text) == value


def test_it_is_written_for_people():
    spec = {
        "train": {"max_steps": 10, "max_grad_norm": 1.0},
        "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8},
        "name": "x",
    }
    text = yaml_writer.format_document(spec, ["One.", ""], {"train.max_steps": "a remark"})
    assert text == (
        "# One.\n#\n\ntrain:\n  max_steps: 10  # a remark\n  max_grad_norm: 1.0\n\noptimizer:\n  betas: [0.9, 0.95]\n  eps: 1.0e-8\nname: x\n"
    )
