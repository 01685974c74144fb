# SPDX-License-Identifier: Apache-2.0
"""The table of DeepSpeed's keys: its lines are well-formed, and releases are told apart."""

from __future__ import annotations

import pytest

from harness.facts.deepspeed_keys import MISSING, Key, block_keys, block_paths, is_typed_block
from harness.facts.deepspeed_values import interpret_value

TYPES = set("bool int number str list dict block blocks maps switch flag python any".split())
LATEST = (0, 19, 8)


@pytest.mark.parametrize("path", block_paths())
def test_every_line_is_well_formed(path):
    for key in block_keys(path).values():
        assert key.type in TYPES, key
        assert key.alias is None or key.alias in block_keys(path)
        assert not (key.since and key.gone and key.since >= key.gone), key
        if key.default not in (MISSING, None) and key.type not in ("any", "python"):
            reading = interpret_value(key, key.default, is_typed=is_typed_block(path, LATEST), version=LATEST)
            assert reading.outcome == "as written", f"{path}.{key.name}: its own default is {reading}"
        if key.type in ("block", "blocks", "maps"):
            assert block_keys(f"{path}.{key.alias or key.name}" if path else key.alias or key.name) is not None, key


def test_the_size_of_the_table():
    assert len(block_paths()) > 40
    assert sum(len(block_keys(path)) for path in block_paths()) > 400
    assert sum(is_typed_block(path, LATEST) for path in block_paths()) == 19


@pytest.mark.parametrize(
    ("path", "name", "before", "version"),
    [
        ("", "gradient_clipping", 0.0, (0, 19, 3)),
        ("", "steps_per_print", 10, (0, 15, 2)),
        ("bf16", "check_grad_overflow", False, (0, 19, 3)),
        ("zero_optimization.offload_optimizer", "pin_memory", False, (0, 19, 5)),
        ("zero_optimization.offload_param", "pin_memory", False, (0, 19, 5)),
    ],
)
def test_defaults_that_moved(path, name, before, version):
    key = block_keys(path)[name]
    assert key.default_at((0, 14, 5)) == before
    assert key.default_at(version) == key.default != before


def test_a_range_that_came_with_a_release():
    key = block_keys("zero_optimization")["reduce_bucket_size"]
    assert interpret_value(key, 0, is_typed=True, version=(0, 19, 5)).outcome == "as written"
    assert interpret_value(key, 0, is_typed=True, version=(0, 19, 6)).out_of_range


def test_blocks_that_were_read_by_hand_once():
    assert not is_typed_block("bf16", (0, 17, 0))
    assert is_typed_block("bf16", (0, 17, 1))
    assert is_typed_block("zero_optimization", (0, 14, 5))


@pytest.mark.parametrize(
    ("type_", "typed", "value", "how", "read"),
    [
        ("bool", True, "No", "converted", False),
        ("bool", True, 2, "refused", 2),
        ("switch", False, "false", "misread", True),
        ("switch", False, "true", "converted", True),
        ("switch", False, 0, "converted", False),
        ("flag", False, "true", "refused", "true"),
        ("int", True, "500_000", "converted", 500000),
        ("int", True, 5e8, "as written", 500000000),
        ("int", True, 1.5, "refused", 1.5),
        ("int", True, True, "converted", 1),
        ("int", False, True, "misread", 1),
        ("int", False, "5", "refused", "5"),
        ("number", True, "1e-3", "converted", 0.001),
        ("str", True, 1, "refused", 1),
        ("list", True, "a", "refused", "a"),
    ],
)
def test_what_becomes_of_a_value(type_, typed, value, how, read):
    reading = interpret_value(Key("name", type_), value, is_typed=typed, version=LATEST)
    assert (reading.outcome, reading.value) == (how, read)
