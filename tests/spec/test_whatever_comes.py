# SPDX-License-Identifier: Apache-2.0
"""Whatever stands in a configuration: findings or a run spec, never a traceback."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.convert import trainer_config
from harness.convert.conversion import convert_file
from harness.errors import UserError
from harness.facts.deepspeed_keys import block_keys, block_paths
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec import accelerate_config
from harness.spec.spec_loader import load_spec

TARGET = DeepSpeedTarget("0.19.8", "requested")
ODD = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 1.5, 5e8, float("nan"), 10**30, "auto", "8", "", "cpu", "x", "\u00e9", "ds.json", "$X", [], [1], [[]], {}, {"a": 1}, {"device": "cpu"}, {"type": "Adam", "params": {"lr": "auto"}}]
)  # fmt: skip
KEYS = [(path, name) for path in block_paths() for name in block_keys(path) or ()]
DS = st.lists(st.tuples(st.sampled_from(KEYS), ODD), max_size=8)
FIELDS = st.sampled_from([*accelerate_config._FIELDS, *accelerate_config._OTHER_FIELDS, "zero_optimization", "foo"])
TOP = st.sampled_from([*accelerate_config._TOP, "foo"])
FLAT = st.sampled_from(
    [*trainer_config._AXOLOTL_KEYS, *trainer_config._TRAINER_KEYS, *trainer_config._SPECIAL_KEYS, "adapter", "foo"]
)


def nested(entries):
    config = {}
    for (path, name), value in entries:
        node = config
        for part in path.split(".") if path else ():
            node = node.setdefault(part, {}) if isinstance(node.get(part, {}), dict) else {}
        node[name] = deepcopy(value)  # entries share their values, and one may be put inside another
    return config


def both_ways(file):
    loaded = load_spec(file, (), TARGET)
    assert loaded.spec is not None or any(f.is_error for f in loaded.findings)
    assert all(f.place is not None and f.place.line >= 1 for f in loaded.findings)
    try:
        adopted = convert_file(file, TARGET)
    except UserError as refused:
        assert refused.findings  # noqa: PT017
    else:
        again = load_spec("spec.yaml", (), TARGET, text=adopted.text)
        assert not [f for f in again.findings if f.is_error]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("whatever")
    (path / "ds.json").write_text('{"train_batch_size": "auto", "zero_optimization": {"stage": 3}, // c\n}')
    return path


@settings(max_examples=150, deadline=None)
@given(DS)
@example([(("", "fp16"), "auto")])
def test_a_deepspeed_json(folder, entries):
    (folder / "a.json").write_text(json.dumps(nested(entries)))
    both_ways(str(folder / "a.json"))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(TOP, ODD, max_size=6), st.dictionaries(FIELDS, ODD, max_size=6))
def test_an_accelerate_yaml(folder, top, section):
    (folder / "a.yaml").write_text(
        yaml.safe_dump({"distributed_type": "DEEPSPEED", "deepspeed_config": section, **top})
    )
    both_ways(str(folder / "a.yaml"))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["base_model", "model_name_or_path"]), st.dictionaries(FLAT, ODD, max_size=10))
def test_a_trainers_yaml(folder, name, values):
    text = yaml.safe_dump({"bf16": True, "micro_batch_size": 1, "learning_rate": 1.0, **values, name: "m"})
    (folder / "t.yaml").write_text(text)
    both_ways(str(folder / "t.yaml"))


@settings(max_examples=150, deadline=None)
@given(st.text("{}[]\",:\n#/ 'ax1.-$\t", max_size=40))
def test_any_text_as_json(folder, text):
    (folder / "b.json").write_text(text)
    both_ways(str(folder / "b.json"))
