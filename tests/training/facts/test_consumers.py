# SPDX-License-Identifier: Apache-2.0
"""The lists of what the Trainer and accelerate fill in, against the installed transformers and accelerate."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DeepSpeedPlugin
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

from harness.convert import shell_command
from harness.spec.auto_values import (
    FILLED_BY_ACCELERATE,
    FILLED_BY_PLUGIN,
    FILLED_BY_TRAINER,
    FROM_TRAINING_ARGUMENTS,
    GATHER_16BIT_WEIGHTS,
    find_auto_values,
)
from harness.spec.parse.source import join_key

ARGS = SimpleNamespace(
    world_size=2, per_device_train_batch_size=4, gradient_accumulation_steps=1, max_grad_norm=1.0, learning_rate=1e-4, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, weight_decay=0.0,
    save_on_each_node=False, fp16=False, fp16_full_eval=False, bf16=True, bf16_full_eval=False, get_warmup_steps=lambda _: 0,
)  # fmt: skip
MODEL = SimpleNamespace(config=SimpleNamespace(hidden_size=8))
OTHERS = ["zero_optimization.overlap_comm", "fp16.loss_scale", "zero_optimization.sub_group_size", "prescale_gradients", "communication_data_type", "zero_optimization.zenflow.select_strategy"]  # fmt: skip


def config(paths, value="auto"):
    made = {"zero_optimization": {"stage": 3}}
    for path in paths:
        node = made
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
    return made


def finalized(made):
    filled = HfTrainerDeepSpeedConfig(made)
    filled.trainer_config_process(ARGS)
    filled.trainer_config_finalize(ARGS, MODEL, 100)
    return filled.config


def test_the_trainer_fills_in_its_list_and_nothing_else():
    others = (
        {tuple(key.split(".")) for key in OTHERS}
        | FILLED_BY_PLUGIN - {("zero_optimization", "stage")}
        | {GATHER_16BIT_WEIGHTS}
    )
    assert set(find_auto_values(finalized(config(FILLED_BY_TRAINER | others)))) == others


@pytest.mark.parametrize("path", sorted(FROM_TRAINING_ARGUMENTS, key=join_key), ids=join_key)
def test_the_trainer_compares_what_it_fills_in(path):
    with pytest.raises(ValueError, match="mismatch TrainingArguments"):
        finalized(config([path], value=0.123))


def prepared(made):
    """What `Accelerator.prepare` does to the file, with DummyOptim and DummyScheduler."""
    plugin = DeepSpeedPlugin(hf_ds_config=made)
    plugin.set_mixed_precision("bf16")
    kwargs = {join_key(path): 1 for path in FILLED_BY_ACCELERATE - FILLED_BY_PLUGIN if path[0] not in ("fp16", "bf16")}
    plugin.deepspeed_config_process(must_match=False, **kwargs)
    return plugin.deepspeed_config


def test_accelerate_fills_in_its_list():
    assert list(find_auto_values(prepared(config(FILLED_BY_ACCELERATE)))) == []


@pytest.mark.parametrize("key", [*OTHERS, "optimizer.params.betas", "optimizer.params.eps"])
def test_accelerate_refuses_any_other(key):
    with pytest.raises(ValueError, match="not found in kwargs"):
        prepared(config([tuple(key.split("."))]))


def test_what_is_left_to_the_plugin_becomes_its_default():
    made = prepared(config([*FILLED_BY_PLUGIN, GATHER_16BIT_WEIGHTS]))["zero_optimization"]
    assert (made["stage"], made["offload_optimizer"]["device"], made[GATHER_16BIT_WEIGHTS[1]]) == (2, "none", False)


def test_accelerate_wants_a_zero_block():
    with pytest.raises(ValueError, match="Please specify the ZeRO optimization config"):
        DeepSpeedPlugin(hf_ds_config={"train_batch_size": 1})


def test_flags_of_accelerate_are_those_of_its_parser():
    """An option without a value would take the next one, or the script, as its value."""
    flags = {option.lstrip("-").replace("-", "_") for action in launch_command_parser()._actions
             if action.nargs == 0 for option in action.option_strings}  # fmt: skip
    assert flags - {"h", "help"} == shell_command._FLAGS
