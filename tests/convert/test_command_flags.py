# SPDX-License-Identifier: Apache-2.0
"""Commands whose settings are flags alone (OpenRLHF, Megatron-DeepSpeed), and axolotl's."""

from __future__ import annotations

import pytest

from harness.convert.conversion import convert_file
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
JSON = '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}}'
OPENRLHF = "deepspeed --num_gpus 4 --module openrlhf.cli.train_sft --pretrain a/b --dataset c/d --bf16"
MEGATRON = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 32 "
    "--num-layers 2 --lr 1e-4 --train-iters 7 --deepspeed --deepspeed_config ds.json"
)


def test_openrlhf_makes_its_json_of_flags(write):
    text = f"{OPENRLHF} --zero_stage 3 --adam_offload --zpg 2 --micro_train_batch_size 2 --max_len 512 --lora_rank 8\n"
    get = convert_file(write("a.sh", text), TARGET).draft.get
    for key, value in {
        "model.name_or_path": "a/b", "data.train": "c/d", "zero.stage": 3, "zero.offload_optimizer.device": "cpu",
        "train.global_batch_size": 128, "train.per_device_train_batch_size": 2, "data.max_length": 512, "launch.num_gpus": 4,
        "deepspeed.zero_optimization.zero_hpz_partition_size": 2, "precision.bf16": True, "model.lora.r": 8,
        "train.num_train_epochs": 2, "checkpoint.save_steps": None,
    }.items():  # fmt: skip
        assert get(key) == value, key


@pytest.mark.parametrize(("verb", "objective"), [("dpo", "dpo"), ("rm", "reward"), ("sft", None)])
def test_openrlhf_trains_by_the_loss_of_its_script(verb, objective, write):
    text = OPENRLHF.replace("openrlhf.cli.train_sft", f"openrlhf/cli/train_{verb}.py")
    assert convert_file(write("a.sh", f"{text}\n"), TARGET).draft.get("objective") == objective


def test_openrlhf_by_reinforcement_is_refused_by_name(write):
    with pytest.raises(UserError) as refused:
        convert_file(write("a.sh", f"{OPENRLHF.replace('train_sft', 'train_ppo_ray')}\n"), TARGET)
    assert refused.value.findings[0].message.startswith("`openrlhf ppo_ray` trains by another loss")


@pytest.mark.parametrize(
    "text",
    [
        f"deepspeed --num_gpus 8 x/pretrain_gpt.py {MEGATRON}\n",
        f'F=" \\\n  {MEGATRON}"\nrun="deepspeed --num_gpus 8 x/pretrain_gpt.py ${{F}} | tee log"\neval $run\n',
    ],
    ids=["plain", "by eval"],
)
def test_megatron_deepspeed_passes_on_a_json(text, write):
    write("ds.json", JSON)
    get = convert_file(write("a.sh", text), TARGET).draft.get
    for key, value in {
        "zero.stage": 1, "parallel.tensor_parallel_size": 2, "parallel.pipeline_parallel_size": 2, "launch.num_gpus": 8,
        "train.global_batch_size": 32, "train.per_device_train_batch_size": 4, "train.max_steps": 7,
        "optimizer.learning_rate": 1e-4,
    }.items():  # fmt: skip
        assert get(key) == value, key


def test_megatron_without_deepspeed_has_nothing_to_convert(write):
    with pytest.raises(UserError) as refused:
        convert_file(write("a.sh", "torchrun pretrain_gpt.py --num-layers 2 --lr 1e-4\n"), TARGET)
    assert "trains with Megatron, without DeepSpeed" in refused.value.findings[0].message


@pytest.mark.parametrize(
    "command",
    ["accelerate launch --num_processes 4 -m axolotl.cli.train a.yaml --learning_rate 2e-3",
     "axolotl train a.yaml --learning-rate 2e-3"],
)  # fmt: skip
def test_axolotls_command_names_its_file(command, write):
    write("ds.json", JSON)
    write("a.yaml", "base_model: a/b\ndatasets: [{path: d.jsonl}]\nmicro_batch_size: 4\ndeepspeed: ds.json\n")
    get = convert_file(write("a.sh", f"{command}\n"), TARGET).draft.get
    assert (get("model.name_or_path"), get("zero.stage"), get("optimizer.learning_rate")) == ("a/b", 1, 2e-3)


@pytest.mark.parametrize(("flag", "kernel"), [("", "eager"), (" --flash_attn", "auto")])
def test_openrlhf_attends_by_eager_without_its_flag(flag, kernel, write):
    get = convert_file(write("a.sh", f"{OPENRLHF}{flag}\n"), TARGET).draft.get
    assert get("model.attn_implementation") == kernel
