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
SPECIAL = """deepspeed optimizer optim lr_scheduler lr_scheduler_type lr_scheduler_kwargs bf16 fp16 adam_beta1 adam_beta2
    datasets test_datasets dataset eval_dataset val_dataset dataset_dir val_size val_set_size split_dataset_ratio save_steps
    save_strategy eval_steps eval_strategy saves_per_epoch evals_per_epoch warmup_steps warmup_ratio max_steps report_to
    gradient_checkpointing_kwargs sample_packing packing neat_packing chat_template flash_attn torch_dtype loss_scale adapter
    finetuning_type tuner_type lora_r lora_rank lora_target lora_target_modules target_modules batch_size plugins checkpoint
    epochs train_iters foo""".split()
FLAT = st.sampled_from([*SPECIAL, *(key for program in trainer_config.PROGRAMS.values() for key in program.keys)])


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


MARKS = {
    "base_model": {"base_model": "m", "micro_batch_size": 1},
    "model_name_or_path": {"model_name_or_path": "m", "bf16": True},
    "finetuning_type": {"model_name_or_path": "m", "finetuning_type": "lora", "stage": "sft"},
    "model": {"model": "m", "dataset": "d.jsonl", "torch_dtype": "bfloat16"},
}


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(MARKS)), st.dictionaries(FLAT, ODD, max_size=10))
@example("base_model", {"datasets": True})
def test_a_trainers_yaml(folder, name, values):
    text = yaml.safe_dump({"learning_rate": 1.0, **values, **MARKS[name]})
    (folder / "t.yaml").write_text(text)
    both_ways(str(folder / "t.yaml"))


ARCTIC = st.sampled_from(
    [*trainer_config.ARCTIC_TRAINING.keys, *"data.sources data.eval_sources data.train_eval_split data.filter_samples model.dtype model.type model.peft_config optimizer.type scheduler.type scheduler.name wandb.enable checkpoint deepspeed epochs train_iters exit_iteration type".split()]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(ARCTIC, ODD, max_size=8))
def test_an_arctic_training_yaml(folder, values):
    data = {"model": {"name_or_path": "m"}, "data": {"sources": ["d"]}}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section:
            data.setdefault(section, {})[name] = value
        else:
            data[name] = value
    (folder / "arctic.yaml").write_text(yaml.safe_dump(data))
    both_ways(str(folder / "arctic.yaml"))


@settings(max_examples=150, deadline=None)
@given(st.text("{}[]\",:\n#/ 'ax1.-$\t\\", max_size=60))
def test_any_shell_script(folder, text):
    (folder / "c.sh").write_text(f"swift sft --model m {text}")
    try:
        convert_file(str(folder / "c.sh"), TARGET)
    except UserError as refused:
        assert refused.findings  # noqa: PT017


@settings(max_examples=150, deadline=None)
@given(st.text("{}[]\",:\n#/ 'ax1.-$\t", max_size=40))
def test_any_text_as_json(folder, text):
    (folder / "b.json").write_text(text)
    both_ways(str(folder / "b.json"))
