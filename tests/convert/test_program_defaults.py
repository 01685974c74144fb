# SPDX-License-Identifier: Apache-2.0
"""Defaults of the programs: a key that their file leaves out has their value in the spec, where a run spec's differs."""

from __future__ import annotations

import re

import pytest

from harness.convert.conversion import convert_file
from harness.convert.trainer_config import PROGRAMS
from harness.convert.trainer_file import is_valid_in, parse_release
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.spec.section_fields import list_spec_keys

TARGET = DeepSpeedTarget("0.19.8", "asked for")
FACTORY = "model_name_or_path: a/b\nstage: sft\nfinetuning_type: {method}\nbf16: true\n"
SWIFT = "model: a/b\ndataset: [d.jsonl]\nper_device_train_batch_size: 2\n"
AXOLOTL = "base_model: a/b\ndatasets: [{path: d.jsonl, type: chat_template}]\nlearning_rate: 0.001\n"
ARCTIC = "type: sft\nmodel: {name_or_path: a/b}\ndata: {sources: [a/c], max_length: 4096}\n"
TRL = "model_name_or_path: a/b\ndataset_name: a/c\nmax_length: 512\n"
TRAINER = "model_name_or_path: a/b\ntrain_file: a.txt\ndo_train: true\nlearning_rate: 0.001\n"


def converted(write, text, name="t.yaml", release=None):
    return convert_file(write(name, text), TARGET, release=release)


def values(result, *keys):
    return {key: result.draft.get(key) for key in keys}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FACTORY.format(method="lora") + "lora_rank: 8\n", {"model.lora.lora_alpha": 16, "model.lora.target_modules": "all-linear", "train.gradient_checkpointing": True, "scheduler.type": "linear"}),
        (FACTORY.format(method="lora") + "lora_rank: 32\n", {"model.lora.r": 32, "model.lora.lora_alpha": 64}),
        (FACTORY.format(method="full"), {"data.max_length": 2048, "optimizer.learning_rate": 5e-5, "train.num_train_epochs": 3.0, "train.per_device_train_batch_size": 8, "data.eval_fraction": 0.0, "data.group_by_length": False, "checkpoint.save_steps": 500, "model.lora": None}),
        (FACTORY.format(method="full") + "disable_gradient_checkpointing: true\n", {"train.gradient_checkpointing": False}),
        (FACTORY.format(method="full") + "save_strategy: 'no'\n", {"checkpoint.save_steps": None}),
        (FACTORY.format(method="full") + "max_steps: 10\n", {"train.max_steps": 10, "train.num_train_epochs": None}),
        (AXOLOTL, {"data.max_length": 512, "data.excess_length_strategy": "drop", "train.num_train_epochs": 1.0, "scheduler.warmup_ratio": 0.03, "data.group_by_length": False, "precision.bf16": True, "checkpoint.save_total_limit": None, "data.eval_fraction": 0.0}),
        (AXOLOTL, {"data.assistant_only_loss": "to-eos"}),
        (AXOLOTL + "train_on_inputs: true\n", {"data.assistant_only_loss": False}),
        (AXOLOTL.replace("chat_template", "alpaca"), {"data.assistant_only_loss": None}),
        (AXOLOTL + "save_steps: 9\n", {"checkpoint.save_steps": 9, "checkpoint.save_total_limit": 4}),
        (AXOLOTL + "max_steps: 1000\n", {"scheduler.warmup_steps": 30, "scheduler.warmup_ratio": None}),
        (AXOLOTL + "max_steps: 10000\n", {"scheduler.warmup_steps": 100}),
        (AXOLOTL + "lr_scheduler: linear\nwarmup_steps: 7\nfp16: true\n", {"scheduler.type": "linear", "scheduler.warmup_steps": 7, "precision.bf16": None, "precision.fp16": True}),
        (SWIFT, {"model.lora.r": 8, "model.lora.lora_alpha": 32, "model.lora.lora_dropout": 0.05, "optimizer.learning_rate": 1e-4, "optimizer.weight_decay": 0.1, "optimizer.betas": [0.9, 0.95], "train.gradient_checkpointing": True, "data.excess_length_strategy": "drop", "train.global_batch_size": 16}),
        (SWIFT + "split_dataset_ratio: 0.1\nsave_steps: 70\n", {"data.eval_fraction": 0.1, "eval.eval_steps": 70}),
        (SWIFT + "split_dataset_ratio: 0.1\neval_strategy: no\n", {"data.eval_fraction": 0.0, "eval.eval_steps": None}),
        (SWIFT + "split_dataset_ratio: 0.1\nsave_strategy: epoch\n", {"data.eval_fraction": 0.1, "eval.eval_steps": None}),
        (SWIFT + "save_steps: 70\n", {"checkpoint.save_steps": 70, "eval.eval_steps": None}),
        (SWIFT + "tuner_type: full\nadam_beta1: 0.8\n", {"optimizer.learning_rate": None, "model.lora": None, "optimizer.betas": [0.8, 0.95]}),
        (ARCTIC, {"optimizer.learning_rate": 5e-4, "optimizer.weight_decay": 0.1, "scheduler.type": "linear", "scheduler.warmup_ratio": 0.1, "train.num_train_epochs": 1, "train.gradient_checkpointing": True, "zero.stage": 2, "precision.bf16": True, "data.group_by_length": False, "model.attn_implementation": "sdpa"}),
        (ARCTIC + "scheduler: {name: constant, warmup_ratio: 0.2}\n", {"scheduler.type": "constant", "scheduler.warmup_ratio": None}),
        (ARCTIC + "train_iters: 50\nepochs: 3\n", {"train.max_steps": 50, "train.num_train_epochs": None}),
        (TRL, {"optimizer.learning_rate": 2e-5, "train.gradient_checkpointing": True, "precision.bf16": True, "data.assistant_only_loss": False, "scheduler.type": "linear", "train.num_train_epochs": 3.0}),
        (TRL + "fp16: true\nassistant_only_loss: true\n", {"precision.bf16": None, "precision.fp16": True, "data.assistant_only_loss": True}),
        (TRAINER, {"optimizer.learning_rate": 0.001, "train.gradient_checkpointing": None, "precision.bf16": None, "data.assistant_only_loss": None}),
    ],
)  # fmt: skip
def test_a_key_that_the_file_leaves_out_has_the_programs_value(text, expected, write):
    result = converted(write, text)
    written = {key: value for key, value in values(result, *expected).items() if value is not None}
    assert written == {key: value for key, value in expected.items() if value is not None}
    for key, value in expected.items():
        if value is None:  # the run spec's own default is the same, or there is none
            assert result.draft.get(key) in (None, {}), key


def test_a_default_says_whose_it_is_and_a_written_key_does_not(write):
    text = converted(write, FACTORY.format(method="lora") + "learning_rate: 0.5\n").text
    assert "lora_alpha: 16  # LLaMA-Factory's default" in text
    assert "learning_rate: 0.5\n" in text


@pytest.mark.parametrize(
    ("text", "release", "key", "value"),
    [
        (FACTORY.format(method="full"), "0.9.0", "data.max_length", None),  # 1024, as in a run spec
        (FACTORY.format(method="full"), "0.9.1", "data.max_length", 2048),
        (SWIFT, "3.5.3", "data.eval_fraction", 0.01),
        (SWIFT, "3.6.0", "data.eval_fraction", 0.0),
        (ARCTIC, "0.7.0", "data.packing", True),
        (ARCTIC, "0.7.1", "data.packing", None),
        (TRL, "0.21.0", "train.gradient_checkpointing", None),
        (TRL, "0.22.0", "train.gradient_checkpointing", True),
    ],
)
def test_defaults_are_those_of_a_release(text, release, key, value, write):
    assert converted(write, text, release=release).draft.get(key) == value


@pytest.mark.parametrize("release", ["0.1", "9.9", "one"])
def test_a_release_that_nobody_has_read_is_refused(release, write):
    with pytest.raises(UserError, match="are not known"):
        converted(write, FACTORY.format(method="full"), release=release)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_every_default_has_a_source_and_every_key_is_one_of_the_spec(program):
    first, last = program.releases
    assert parse_release(first) < parse_release(last)
    for default in program.defaults:
        assert re.fullmatch(r"[\w-]+: \S+\.py(: .+)?", default.source), default
        assert is_valid_in(default, last) or default.until
    manual = [key for key, _ in program.manual.values() if not key.startswith(("--", "deepspeed."))]
    named = {*program.keys.values(), *(default.key for default in program.defaults), *manual}
    assert named <= set(list_spec_keys())


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_no_key_is_in_two_lists(program):
    lists = [set(program.keys), set(program.harmless), set(program.lossy)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not lists[one] & lists[other]
