# SPDX-License-Identifier: Apache-2.0
"""`harness adopt --verify`: the file's DeepSpeed JSON and the rendered one, key by key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from harness.check.config_comparison import compare_configs
from harness.convert.conversion import convert_file
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
AUTO = dict.fromkeys(
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping".split(), "auto"
)
JSON = {
    **AUTO,
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto", "stage3_max_live_parameters": 5e8},
}  # fmt: skip
FACTORY = """model_name_or_path: a/b
stage: sft
finetuning_type: full
bf16: true
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
max_grad_norm: 0.5
deepspeed: ds.json
"""


def compare(write, text=FACTORY, config=None, world_size=None):
    write("ds.json", json.dumps(config or JSON))
    return compare_configs(convert_file(write("t.yaml", text), TARGET), TARGET, world_size)


def test_every_key_is_the_same_or_has_a_reason(write):
    comparison = compare(write, world_size=4)
    rows = {item.key: item for item in comparison.keys}
    assert comparison.unexplained == ()
    assert (comparison.name, comparison.ranks) == ("ds.json", 4)
    for key, value in {
        "train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
        "bf16.enabled": True, "zero_optimization.stage": 3, "zero_optimization.overlap_comm": True,
        "zero_optimization.stage3_max_live_parameters": 5e8,
    }.items():  # fmt: skip
        assert (rows[key].relation, rows[key].there) == ("same", value), rows[key]
    assert rows["optimizer.type"].relation == "only here"
    assert "LLaMA-Factory creates the optimizer" in rows["optimizer.type"].why


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("stage: 3", "stage: 2", "zero_optimization.stage"),
        ("overlap_comm: true", "overlap_comm: false", "zero_optimization.overlap_comm"),
        ("per_device_train_batch_size: 2", "per_device_train_batch_size: 8", "train_micro_batch_size_per_gpu"),
        ("  bf16: true\n", "  bf16: false\n", "bf16.enabled"),
        ("zero:\n", "zero:\n  offload_optimizer: {device: cpu}\n", "zero_optimization.offload_optimizer.device"),
        ("zero:\n", "zero:\n  round_robin_gradients: true\n", "zero_optimization.round_robin_gradients"),
    ],
)
def test_a_wrong_conversion_has_no_reason(old, new, key, write):
    write("ds.json", json.dumps(JSON))
    converted = convert_file(write("t.yaml", FACTORY), TARGET)
    assert old in converted.text
    comparison = compare_configs(replace(converted, text=converted.text.replace(old, new, 1)), TARGET)
    assert key in {item.key for item in comparison.unexplained}


@pytest.mark.parametrize(
    "config",
    [
        {**JSON, "comms_config": {"enabled": True}},
        {**JSON, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}},
        {**JSON, "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}},
        {**JSON, "zero_optimization": {"stage": 2, "cpu_offload": True}},
        {**JSON, "zero_optimization": {"stage": 3, "offload_param": {"device": "none", "pin_memory": True}}},
        {**JSON, "gradient_accumulation_steps": 7},
        {**AUTO, "zero_optimization": {"stage": 1}},
    ],
)  # fmt: skip
def test_files_of_many_kinds_have_reasons(config, write):
    comparison = compare(write, config=config, world_size=2)
    assert comparison.unexplained == (), comparison.unexplained


def test_a_file_without_a_json_has_nothing_to_compare(write):
    assert compare(write, FACTORY.replace("deepspeed: ds.json\n", "")).name == ""


def test_arctic_training_has_its_own_defaults(write):
    text = "model: {name_or_path: a/b}\ndata: {sources: [a/c], max_length: 9}\nmicro_batch_size: 2\n"
    text += "deepspeed: {zero_optimization: {stage: 3}, gradient_clipping: 0.5}\nsequence_parallel_size: 2\n"
    text += "activation_checkpoint_cpu_offload: true\n"
    comparison = compare(write, text)
    assert comparison.ranks == 2
    assert comparison.unexplained == ()


@pytest.mark.parametrize(
    "config", [{"train_batch_size": 8, "fp16": {"enabled": True}}, {**AUTO, "bf16": {"enabled": True}}]
)
def test_a_deepspeed_json_alone(config, write):
    converted = convert_file(write("only.json", json.dumps(config)), TARGET)
    comparison = compare_configs(converted, TARGET, 2)
    assert comparison.name == "only.json"
    assert comparison.unexplained == (), comparison.unexplained


ULYSSES = """distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 4
deepspeed_config: {zero_stage: 3, seq_parallel_communication_data_type: bf16}
parallelism_config: {parallelism_config_sp_size: 2, parallelism_config_dp_shard_size: 2}
"""


def test_the_groups_of_accelerate_have_a_reason(write):
    converted = convert_file(write("ulysses.yaml", ULYSSES), TARGET)
    assert compare_configs(converted, TARGET).unexplained == ()
    (note,) = [note for note in converted.notes if "seq_parallel_communication_data_type" in note.key]
    assert note.message.endswith("accelerate does not read it")


@pytest.mark.parametrize(
    "more",
    [
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}},
        {"pipeline": {"schedule": "1F1B"}},
        {"zero_optimization": {"stage": 1}},
    ],
)  # fmt: skip
def test_a_json_alone_has_a_reason_for_each_difference(more, write):
    converted = convert_file(write("ds.json", json.dumps({**AUTO, **more})), TARGET)
    assert compare_configs(converted, TARGET).unexplained == ()


def test_an_accelerate_yaml_without_its_json_has_nothing_to_compare(write):
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: not-here.json}\nnum_processes: 1\n"
    converted = convert_file(write("accelerate.yaml", text), TARGET)
    assert compare_configs(converted, TARGET).name == ""
    assert converted.draft.get("zero") is None
    assert any("is not on this machine: set `zero.stage`" in note.message for note in converted.notes_of("manual"))


def test_an_accelerate_yaml_leaves_the_micro_batch_to_the_script(write):
    text = "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\nnum_processes: 1\n"
    write("ds.json", json.dumps({"zero_optimization": {"stage": 3}}))
    comparison = compare_configs(convert_file(write("accelerate.yaml", text), TARGET), TARGET)
    assert comparison.unexplained == ()
    assert {item.key: item.relation for item in comparison.keys}["zero_optimization.stage"] == "same"
