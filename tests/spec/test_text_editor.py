# SPDX-License-Identifier: Apache-2.0
"""Fixes in the text of a file: only the one value changes. Needs nothing; a few seconds."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.findings import Fix
from harness.spec.spec_loader import load_spec
from harness.spec.text_editor import EditError, apply_edits, edits_of_fix

SPEC = """\
# what we train
model: {name_or_path: x}   # the model

train:
  max_steps: 10  # short
  per_device_train_batch_size: 2
zero:
  stage: 2   # shards gradients
  offload_param:
    device: cpu
    # the last comment
"""


@pytest.mark.parametrize(
    ("sets", "old", "new"),
    [
        ({("zero", "stage"): 3}, "stage: 2 ", "stage: 3 "),
        ({("model", "name_or_path"): "a: b"}, "path: x", 'path: "a: b"'),
        ({("model", "revision"): "main"}, "path: x}", "path: x, revision: main}"),
        ({("train", "seed"): 7}, "size: 2\n", "size: 2\n  seed: 7\n"),
        ({("train", "max_steps"): None}, "  max_steps: 10  # short\n", ""),
        ({("zero", "offload_param", "device"): None}, "  offload_param:\n    device: cpu\n", ""),
        ({("model", "name_or_path"): None}, "model: {name_or_path: x}   # the model\n", ""),
        ({("zero", "offload_param", "pin_memory"): True}, "device: cpu\n", "device: cpu\n    pin_memory: true\n"),
        ({("train", "max_steps"): None, ("train", "num_train_epochs"): 10}, "max_steps:", "num_train_epochs:"),
        ({("zero", "offload_optimizer", "device"): "cpu"}, "cpu\n", "cpu\n  offload_optimizer:\n    device: cpu\n"),
        ({("precision", "bf16"): True}, "device: cpu\n", "device: cpu\n\nprecision:\n  bf16: true\n"),
        ({("optimizer", "learning_rate"): 1e-5}, "cpu\n", "cpu\n\noptimizer:\n  learning_rate: 1e-5\n"),
        ({("optimizer", "betas"): [0.9, 0.95]}, "cpu\n", "cpu\n\noptimizer:\n  betas: [0.9, 0.95]\n"),
    ],
)
def test_yaml_changes_at_one_place_alone(sets: dict[Any, Any], old: str, new: str) -> None:
    assert SPEC.count(old) == 1
    assert apply_edits(SPEC, "a.yaml", sets) == SPEC.replace(old, new)


JSON = """\
{
\t"train_batch_size": 8,
\t"zero_optimization": {
\t\t"stage": 2,
\t\t"offload_param": {"device": "cpu", "pin_memory": true}
\t},
\t"empty": {},
\t"betas": [1,
\t\t2]
}
"""


@pytest.mark.parametrize(
    ("sets", "old", "new"),
    [
        ({("zero_optimization", "stage"): 3}, '"stage": 2', '"stage": 3'),
        ({("zero_optimization", "stage"): None}, '"stage": 2,\n\t\t', ""),
        (
            {("zero_optimization", "offload_param"): None},
            ',\n\t\t"offload_param": {"device": "cpu", "pin_memory": true}',
            "",
        ),
        ({("zero_optimization", "offload_param", "device"): None}, '"device": "cpu", ', ""),
        ({("zero_optimization", "offload_param", "pin_memory"): None}, ', "pin_memory": true', ""),
        ({("zero_optimization", "offload_param", "device"): "none"}, '"cpu"', '"none"'),
        ({("zero_optimization", "offload_param", "x"): "y"}, "true}", 'true, "x": "y"}'),
        ({("zero_optimization", "overlap_comm"): True}, "true}\n", 'true},\n\t\t"overlap_comm": true\n'),
        ({("empty", "a"): 1}, "{}", '{"a": 1}'),
        ({("bf16", "enabled"): True}, "2]\n", '2],\n\t"bf16": {\n\t\t"enabled": true\n\t}\n'),
        ({("betas",): [1, 3]}, "[1,\n\t\t2]", "[1, 3]"),
        ({("betas", 0): 5}, "[1,", "[5,"),
        ({("train_batch_size",): None, ("train_batch",): 8}, '"train_batch_size"', '"train_batch"'),
    ],
)
def test_json_changes_at_one_place_alone(sets: dict[Any, Any], old: str, new: str) -> None:
    assert JSON.count(old) == 1
    assert apply_edits(JSON, "a.json", sets) == JSON.replace(old, new)


@pytest.mark.parametrize(
    ("text", "sets", "expected"),
    [
        ("a: &x {b: 1}\nc: *x\n", {("c", "b"): 2}, None),
        ("a: &x 1\nc: *x\n", {("a",): 2}, None),
        ("a: &x 1\nc: *x\n", {("c",): 2}, None),
        ("a: |\n  long\n  text\nb: 1\n", {("a",): "x"}, None),
        ("a: |\n  long\n  text\nb: 1\n", {("a",): None}, "b: 1\n"),
        ("a: |\n  long\n", {("b",): 1}, "a: |\n  long\nb: 1\n"),
        ("a:\n- b: 1\n  c: 2\n", {("a", 0, "b"): None}, None),
        ("a:\n- b: 1\n  c: 2\n", {("a", 0, "c"): None}, "a:\n- b: 1\n"),
        ("a:\n- b: 1\n", {("a", 0, "c"): 2}, "a:\n- b: 1\n  c: 2\n"),
        ("zero:   # none yet\nb: 1\n", {("zero", "stage"): 1}, "zero:   # none yet\n  stage: 1\nb: 1\n"),
        ("zero:   # none yet\nb: 1\n", {("zero",): 1}, "zero: 1   # none yet\nb: 1\n"),
        ("a: 1", {("b", "c"): 1}, "a: 1\nb:\n  c: 1"),
        ("a: 'it'\n", {("a",): "it's"}, "a: 'it''s'\n"),
        ("a: yes\n", {("a",): "no"}, 'a: "no"\n'),
        ("a: {\n  b: 1,  # one\n  c: 2  # two\n}\n", {("a", "d"): 3}, "a: {\n  b: 1,  # one\n  c: 2,  # two\n  d: 3\n}\n"),
        ("a: {\n  b: 1,  # one\n  c: 2  # two\n}\n", {("a", "c"): None}, None),
        ("'quoted key': 1\n", {("quoted key",): 2}, "'quoted key': 2\n"),
        ("---\na: 1\n...\n", {("b",): 2}, "---\na: 1\nb: 2\n...\n"),
        ("a: 1\n", {("a",): None}, None),
        ("a: 1\n", {("b",): None}, None),
        ("a: 1\n", {("a", "b"): 2}, None),
        ("? a\n: 1\n", {("b",): 2}, None),
        ("a: 1 # \u2028 odd\nb: 2\n", {("b",): 3}, None),
        ("\u00e9: 1\n\u4e2d: {b: 2}\n", {("\u4e2d", "b"): 3}, "\u00e9: 1\n\u4e2d: {b: 3}\n"),
    ],
)  # fmt: skip
def test_odd_layouts_are_edited_rightly_or_not_at_all(text: str, sets: dict[Any, Any], expected: str | None) -> None:
    if expected is None:
        with pytest.raises(EditError):
            apply_edits(text, "a.yaml", sets)
    else:
        assert apply_edits(text, "a.yaml", sets) == expected


HJSON = """\
{
  // first
  zero_optimization: {stage: 2, "offload_param": {"device": cpu
  }},  # why
  "train_batch_size": 8, // eight
}
"""


@pytest.mark.parametrize(
    ("sets", "old", "new"),
    [
        ({("zero_optimization", "stage"): 3}, "stage: 2", "stage: 3"),
        ({("train_batch_size",): 16}, "8,", "16,"),
        ({("gradient_clipping",): 1.0}, "// eight", '// eight\n  "gradient_clipping": 1.0,'),
        ({("zero_optimization", "stage"): None}, 'stage: 2, "off', '"off'),
        ({("zero_optimization",): None}, "", None),
        ({("train_batch_size",): None}, "", None),
    ],
)
def test_what_only_hjson_reads_is_changed_at_one_place_too(sets: dict[Any, Any], old: str, new: str | None) -> None:
    if new is None:
        with pytest.raises(EditError):
            apply_edits(HJSON, "a.json", sets)
    else:
        assert apply_edits(HJSON, "a.json", sets) == HJSON.replace(old, new)


KEYS = st.text("abcxyz_", min_size=1, max_size=4)
VALUES = st.one_of(st.integers(-9, 9), st.booleans(), st.text("ab: #'\"{}", max_size=5), st.floats(0.001, 9))
DATA = st.recursive(
    VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(VALUES, max_size=3), max_leaves=12
)


@settings(max_examples=150, deadline=None)
@given(
    data=st.dictionaries(KEYS, DATA, min_size=1, max_size=5),
    path=st.lists(KEYS, min_size=1, max_size=3),
    value=st.none() | VALUES,
    kind=st.sampled_from(["block", "flow", "json", "indented"]),
)
def test_whatever_is_set_is_set_and_nothing_else(data, path, value, kind) -> None:
    name = "a.json" if kind in ("json", "indented") else "a.yaml"
    if name == "a.json":
        text = json.dumps(data, indent=3 if kind == "indented" else None)
    else:
        text = (
            "# first\n"
            + yaml.safe_dump(data, default_flow_style=kind == "flow", sort_keys=False, width=60)
            + "# last\n"
        )
    try:
        changed = apply_edits(text, name, {tuple(path): value})
    except EditError:
        return
    assert changed.startswith(text[:1])
    if name == "a.yaml":
        assert changed.startswith("# first\n")
        assert changed.endswith("# last\n")


def test_a_fix_is_written_at_the_users_own_keys(write) -> None:
    source = load_spec(write("a.json", '{"train_batch_size": 2, "zero_optimization": {"stage": 2}}')).source
    assert source is not None
    fix = Fix("", {"zero.stage": 3, "deepspeed.aio.block_size": 4, "optimizer.betas": (0.9, 0.95)})
    assert list(edits_of_fix(fix, source)) == [
        ("zero_optimization", "stage"),
        ("aio", "block_size"),
        ("optimizer", "betas"),
    ]


def test_what_the_command_line_sets_is_not_edited(write) -> None:
    source = load_spec(write("a.yaml", SPEC), ["zero.stage=1"]).source
    assert source is not None
    with pytest.raises(EditError, match="on the command line"):
        edits_of_fix(Fix("", {"zero.stage": 3}), source)
