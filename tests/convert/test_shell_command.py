# SPDX-License-Identifier: Apache-2.0
"""Training commands in shell scripts: options, variables, ranks and places."""

from __future__ import annotations

import pytest

from harness.convert.conversion import convert_file
from harness.convert.shell_command import find_training_command
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
SCRIPT = """#!/bin/bash
# swift rlhf is another script
nproc=4
export MODEL=a/b
NPROC_PER_NODE=$nproc \\
CUDA_VISIBLE_DEVICES=0,1,2,3 \\
swift sft \\
    --model $MODEL \\
    --tuner_type full \\
    --dataset 'x/one.jsonl' \\
              'x/two.jsonl' \\
    --gradient_accumulation_steps $(expr 32 / $nproc) \\
    --max_length=2048 \\
    --packing \\
    --learning_rate 1e-4 \\
    --gradient_checkpointing_kwargs '{"use_reentrant": false}' \\
    --deepspeed zero2 \\
    --output_dir ${OUT:-runs} | tee log.txt
"""


def test_the_options_of_a_script(write):
    command = find_training_command("a.sh", SCRIPT)
    assert (command.program, command.verb, command.ranks, command.others) == ("swift", "sft", 4, 0)
    assert command.source.data == {
        "model": "a/b", "tuner_type": "full", "dataset": ["x/one.jsonl", "x/two.jsonl"], "gradient_accumulation_steps": 8,
        "max_length": 2048, "packing": True, "learning_rate": 1e-4, "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "deepspeed": "zero2", "output_dir": "runs",
    }  # fmt: skip
    assert command.source.place(("learning_rate",)).line == 15


def test_a_script_becomes_a_spec(write):
    result = convert_file(write("train.sh", SCRIPT), TARGET)
    for key, value in {
        "model.name_or_path": "a/b", "data.train": ["x/one.jsonl", "x/two.jsonl"], "data.packing": True, "zero.stage": 2,
        "train.gradient_accumulation_steps": 8, "train.gradient_checkpointing_use_reentrant": False, "launch.output_dir": "runs",
    }.items():  # fmt: skip
        assert result.draft.get(key) == value, key


def test_every_nth_layer_of_transformers_is_that_of_a_spec(write):
    script = SCRIPT.replace('{"use_reentrant": false}', '{"every_n_layers": 2}').replace(
        "--packing", "--gradient_checkpointing true --packing"
    )
    assert convert_file(write("train.sh", script), TARGET).draft.get("train.gradient_checkpointing") == {"every": 2}


def test_ranks_decide_the_accumulation_of_ms_swift(write):
    text = "NPROC_PER_NODE=4 swift sft --model a/b --dataset d.jsonl --per_device_train_batch_size 3 --max_length 9\n"
    assert convert_file(write("a.sh", text), TARGET).draft.get("train.gradient_accumulation_steps") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swift rlhf --rlhf_type grpo --model a/b --dataset d\n", "trains by another loss"),
        ("swift rlhf --model a/b --dataset d\n", "trains by another loss"),
        ("megatron sft --model a/b\n", "trains with Megatron"),
        ("deepspeed train.py --deepspeed ds.json\n", "none of the supported commands"),
        ("swift sft nothing.yaml\n", "is not on this machine"),
        ("swift sft --model a/b --dataset d --quant_bits 4 --quant_method bnb\n", "quantised weights"),
        ("swift sft --model a/b --dataset d --tuner_type longlora\n", "other weights"),
    ],
)
def test_other_scripts_are_refused_with_a_reason(text, message, write):
    with pytest.raises(UserError) as refused:
        convert_file(write("a.sh", text), TARGET)
    assert message in refused.value.findings[0].message


def test_a_variable_that_the_script_does_not_set_is_left_to_the_user(write):
    result = convert_file(write("a.sh", "swift sft --model $MODEL --dataset d.jsonl --max_length 9\n"), TARGET)
    assert any(
        "`$MODEL` is not set in this file: set `model.name_or_path`" in n.message for n in result.notes_of("manual")
    )
    assert "path/to/a/model" in result.text


@pytest.mark.parametrize("verb", ["sft", "pt"])
def test_options_win_over_the_file_that_a_command_names(verb, write):
    write("sft.yaml", "model: a/b\ndataset: [d.jsonl]\nmax_length: 77\nlearning_rate: 1.0e-6\n")
    result = convert_file(
        write("a.sh", f"NPROC_PER_NODE=4 swift {verb} sft.yaml --learning_rate 1e-4 --neftune_noise_alpha 5\n"), TARGET
    )
    assert result.draft.get("model.name_or_path") == "a/b"
    assert result.draft.get("data.max_length") == 77
    assert result.draft.get("optimizer.learning_rate") == 1e-4
    assert result.draft.get("train.gradient_accumulation_steps") == 4
    assert result.draft.get("data.assistant_only_loss") == (False if verb == "pt" else None)
    (note,) = result.notes_of("lossy")
    assert (note.key, note.place.file.endswith("a.sh")) == ("neftune_noise_alpha", True)


def test_llama_factorys_keys_after_a_file_win(write):
    write("sft.yaml", "model_name_or_path: a/b\nstage: sft\nfinetuning_type: full\nlearning_rate: 1.0e-6\n")
    result = convert_file(write("a.sh", "llamafactory-cli train sft.yaml learning_rate=0.002 max_steps=5\n"), TARGET)
    assert result.draft.get("optimizer.learning_rate") == 0.002
    assert result.draft.get("train.max_steps") == 5


def test_llama_factorys_options(write):
    text = "llamafactory-cli train --stage sft --do_train --model_name_or_path a/b --finetuning_type lora --bf16 true\n"
    assert convert_file(write("a.sh", text), TARGET).draft.get("model.lora.lora_alpha") == 16


def test_pretraining_trains_on_every_token(write):
    result = convert_file(write("a.sh", "swift pt --model a/b --dataset d.jsonl --max_length 9\n"), TARGET)
    assert result.draft.get("data.assistant_only_loss") is False


TORCHRUN = """per_node=4
torchrun --nnodes 2 \\
    --nproc_per_node=$per_node \\
    swift/cli/sft.py --model a/b --tuner_type full --dataset d.jsonl --max_length 9 \\
    --gradient_accumulation_steps $(expr 32 / $per_node / 2) --deepspeed zero2
"""


def test_torchruns_options_count_the_ranks():
    command = find_training_command("a.sh", TORCHRUN)
    assert (command.ranks, command.source.data["gradient_accumulation_steps"]) == (8, 4)


def test_accumulation_that_only_a_shell_computes_is_left_to_the_user(write):
    text = TORCHRUN.replace("$(expr 32 / $per_node / 2)", "$(python steps.py)")
    result = convert_file(write("a.sh", text), TARGET)
    assert any("set `train.gradient_accumulation_steps`" in note.message for note in result.notes_of("manual"))
    assert result.draft.get("train.global_batch_size") is None
