# SPDX-License-Identifier: Apache-2.0
"""The scripts and commands of docs/questions.md, on a checkpoint that the Trainer writes at ZeRO-3 without whole weights.

Needs the `train` extra, half a minute.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markdown_blocks import ROOT, command_lines, read_blocks, write_files
from tests.support.training.runtime_helpers import rank_environment

pytestmark = [pytest.mark.training, pytest.mark.nightly]

PAGE = "docs/questions.md"
COMMANDS = [
    line.replace("500", "2")
    for block in read_blocks(ROOT / PAGE)
    if block.mark == "check-only"
    for line in command_lines(block)
    if line.startswith(("python ", "cp checkpoint", "harness checkpoint inspect"))
]
CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}},
    "zero_optimization": {"stage": 3},
}
TRAIN = f"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

arguments = TrainingArguments(
    "new", max_steps=2, save_steps=2, per_device_train_batch_size=2, deepspeed={CONFIG!r}, bf16=True, use_cpu=True, report_to=[]
)
sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=64)
LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **sizes)).save_pretrained("model")
model = LlamaForCausalLM.from_pretrained("model")
parameter = next(model.parameters())
assert hasattr(parameter, "ds_id") and parameter.numel() == 0, "zero.Init is not active"
rows = [{{"input_ids": ids, "labels": ids}} for ids in torch.randint(0, 64, (8, 8))]
Trainer(model, arguments, train_dataset=rows).train()
"""


def run(command: str, folder: Path, code: int = 0) -> str:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    env = {**rank_environment(), **place, "DS_ACCELERATOR": "cpu"}
    words = [sys.executable, "-m", *command.split()] if command.startswith("harness ") else command.split()
    done = subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, check=False)
    assert done.returncode == code, f"{command}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


def test_the_commands_recover_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_files(PAGE, tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    run("python train.py", tmp_path)
    (tmp_path / "new" / "checkpoint-2").rename(tmp_path / "checkpoint-2")
    assert not list((tmp_path / "checkpoint-2").glob("*.safetensors")), "the case of a folder without weights"
    printed = {command: run(command, tmp_path) for command in COMMANDS}

    told = printed["harness checkpoint inspect checkpoint-2"]
    assert "a checkpoint of the transformers Trainer" in told
    assert {"step 2 of 2", "ZeRO stage 3", "data ranks 1", "whole: no file is missing or short"} <= {
        " ".join(line.split()) for line in told.splitlines()
    }
    assert printed["python check_weights.py weights"] == "missing [], of another shape [], unknown []\n"
    assert (tmp_path / "checkpoint-2" / "latest_universal").read_text() == "global_step2_universal"
    next((tmp_path / "checkpoint-2" / "global_step2").glob("*_model_states.pt")).unlink()
    assert "missing shards with the model's state" in run("harness checkpoint inspect checkpoint-2", tmp_path, 1)
    weights, recovered = (load_file(tmp_path / name / "model.safetensors") for name in ("weights", "recovered"))
    assert weights.keys() == recovered.keys()
    assert all((weights[name] == recovered[name]).all() for name in weights)
