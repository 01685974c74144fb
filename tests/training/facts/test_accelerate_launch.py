# SPDX-License-Identifier: Apache-2.0
"""Launches of accelerate: the findings HF008 and HF104 to HF108 against the installed accelerate and DeepSpeed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import DeepSpeedPlugin, TorchDynamoPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env
from deepspeed.launcher.runner import (
    apply_num_nodes_and_gpus,
    fetch_hostfile,
    parse_inclusion_exclusion,
)
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

ARGS = SimpleNamespace(
    world_size=1, per_device_train_batch_size=1, gradient_accumulation_steps=2, max_grad_norm=0.3, learning_rate=1e-4, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-8, weight_decay=0.0,
    save_on_each_node=False, fp16=False, fp16_full_eval=False, bf16=False, bf16_full_eval=False, get_warmup_steps=lambda _: 0,
)  # fmt: skip
FIELDS = {"steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "clipping": "ACCELERATE_GRADIENT_CLIPPING"}


def launched(write, block, *options, machines=2, ranks=6):
    """accelerate's command line for a YAML, and its options for torchrun."""
    text = f"distributed_type: DEEPSPEED\nnum_machines: {machines}\nnum_processes: {ranks}\nmachine_rank: 1\n{block}"
    args = launch_command_parser().parse_args(
        ["--config_file", write("accelerate.yaml", text), "--main_process_port", "29411", *options, "train.py"]
    )
    args, defaults, _ = _validate_launch_command(args)
    args.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    command, _ = prepare_deepspeed_cmd_env(args)
    return command, args


def trained(monkeypatch, **fields):
    """The JSON of the plugin after the Trainer has seen it; `fields` are those of the YAML."""
    for name, value in fields.items():
        monkeypatch.setenv(FIELDS[name], value)
    filled = HfTrainerDeepSpeedConfig(DeepSpeedPlugin().deepspeed_config)
    filled.trainer_config_process(ARGS)
    filled.trainer_config_finalize(ARGS, None, 10)
    return filled.config


def test_the_trainer_compares_the_fields_of_the_yaml(monkeypatch):
    with pytest.raises(ValueError, match="gradient_accumulation_steps=4 vs hf gradient_accumulation_steps=2"):
        trained(monkeypatch, steps="4")
    monkeypatch.delenv(FIELDS["steps"])
    with pytest.raises(ValueError, match=r"gradient_clipping=0.5 vs hf max_grad_norm=0.3"):
        trained(monkeypatch, clipping="0.5")


def test_what_the_yaml_leaves_out_is_the_trainers(monkeypatch):
    config = trained(monkeypatch)
    assert (config["gradient_accumulation_steps"], config["gradient_clipping"]) == (2, 0.3)


def test_a_clipping_of_zero_is_left_out(monkeypatch):
    assert "gradient_clipping" not in trained(monkeypatch, clipping="0.0")


def test_without_a_hostfile_deepspeed_is_told_none(write):
    command, _ = launched(write, "main_process_ip: 10.0.0.1\ndeepspeed_config: {zero_stage: 2}\n")
    assert command[:3] == ["deepspeed", "--hostfile", "None"]
    assert command[command.index("--launcher") + 1] == "pdsh"
    assert fetch_hostfile("None") is None  # and then goes on with the devices of this machine


def test_torchrun_is_told_of_a_host_called_none(write):
    block = "deepspeed_config: {zero_stage: 2, deepspeed_multinode_launcher: standard}\n"
    command, args = launched(write, block)
    assert (command, args.rdzv_endpoint, args.nproc_per_node) == (None, "None:29411", "3")


def test_processes_are_counted_by_machine(write):
    hosts = write("hosts", "w0 slots=2\nw1 slots=8\nw2 slots=8\n")
    command, _ = launched(write, f"deepspeed_config: {{zero_stage: 2, deepspeed_hostfile: {hosts}}}\n", ranks=7)
    num_gpus = int(command[command.index("--num_gpus") + 1])
    resources = parse_inclusion_exclusion(fetch_hostfile(hosts), "", "")
    assert [len(slots) for slots in apply_num_nodes_and_gpus(resources, -1, num_gpus).values()] == [3, 3, 3]


def test_a_user_before_a_name_cannot_be_selected(write):
    resources = fetch_hostfile(write("hosts", "root@w0 slots=2\nroot@w1 slots=2\n"))
    assert list(resources) == ["root@w0", "root@w1"]
    with pytest.raises(ValueError, match="'root' not found"):
        parse_inclusion_exclusion(resources, "root@w1", "")


def test_the_back_end_of_the_yaml_reaches_torch_compile(write, monkeypatch):
    _, args = launched(write, "deepspeed_config: {zero_stage: 2}\ndynamo_config: {dynamo_backend: AOT_EAGER}\n")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", args.dynamo_backend)
    assert TorchDynamoPlugin().to_kwargs()["backend"] == "aot_eager"
