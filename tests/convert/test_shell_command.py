# SPDX-License-Identifier: Apache-2.0
"""Training commands in shell scripts: options, variables, ranks and places."""

from __future__ import annotations

import pytest

from harness.convert.conversion import convert_file
from harness.convert.shell_command import find_training_command
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.views.adopt import render_conversion_notes

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
    assert convert_file(write("train.sh", script), TARGET).draft.get("train.gradient_checkpointing") == {
        "recompute_every": 2
    }


def test_ranks_decide_the_accumulation_of_ms_swift(write):
    text = "NPROC_PER_NODE=4 swift sft --model a/b --dataset d.jsonl --per_device_train_batch_size 3 --max_length 9\n"
    assert convert_file(write("a.sh", text), TARGET).draft.get("train.gradient_accumulation_steps") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swift rlhf --rlhf_type grpo --model a/b --dataset d\n", "trains by another loss"),
        ("swift rlhf --rlhf_type simpo --model a/b --dataset d\n", "trains by another loss"),
        ("trl grpo --model_name_or_path a/b --reward_funcs r\n", "trains by another loss"),
        ("megatron sft --model a/b\n", "trains with Megatron"),
        ("deepspeed train.py --deepspeed ds.json\n", "none of the supported commands"),
        ("swift sft nothing.yaml\n", "is not on this machine"),
        ("swift sft --model a/b --dataset d --quant_bits 8 --quant_method bnb\n", "quantised weights"),
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


TRL_OPTIONS = "--model_name_or_path a/b --dataset_name c/d --learning_rate 1e-4 --use_peft --lora_r 32"
ZERO_3 = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 3}\nnum_processes: 8\n"


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (f"trl sft {TRL_OPTIONS} --num_processes 4", {"launch.num_gpus": 4, "zero.stage": None}),
        (f"trl sft {TRL_OPTIONS} --accelerate_config zero3", {"zero.stage": 3}),
        (f"accelerate launch --config_file z3.yaml examples/scripts/sft_own.py {TRL_OPTIONS}", {"zero.stage": 3, "launch.num_gpus": 8}),
        (f"accelerate launch --config_file z3.yaml --num_processes 2 sft.py {TRL_OPTIONS}", {"zero.stage": 3, "launch.num_gpus": 2}),
        (f"accelerate launch --use_deepspeed --zero_stage 3 --mixed_precision=fp16 --offload_optimizer_device cpu t.py {TRL_OPTIONS}",
         {"zero.stage": 3, "zero.offload_optimizer.device": "cpu", "precision.fp16": True}),
        (f"accelerate-launch --use_deepspeed --zero_stage 3 t.py {TRL_OPTIONS}", {"zero.stage": 3}),
        (f"python3 -m accelerate.commands.launch --use_deepspeed --zero_stage 3 --num_processes 2 t.py {TRL_OPTIONS}", {"zero.stage": 3, "launch.num_gpus": 2}),
        (f".venv/bin/accelerate launch --use_deepspeed --zero_stage 3 t.py {TRL_OPTIONS}", {"zero.stage": 3}),
        (f"accelerate launch --multi_gpu --main_process_port 29511 --num_processes 2 sft.py {TRL_OPTIONS}", {"launch.master_port": 29511, "launch.num_gpus": 2}),
        (f"accelerate launch --num_processes 16 --num_machines 2 train.py {TRL_OPTIONS}", {"cluster.num_nodes": 2, "cluster.gpus_per_node": 8}),
        (f"deepspeed --num_gpus 4 train.py {TRL_OPTIONS} --deepspeed z2.json", {"zero.stage": 2, "launch.num_gpus": 4}),
        (f"torchrun --nproc_per_node=2 run_clm.py {TRL_OPTIONS} --deepspeed z2.json", {"zero.stage": 2, "launch.num_gpus": 2}),
        (f"python3 train_it.py {TRL_OPTIONS}", {"launch.num_gpus": None}),
    ],
)  # fmt: skip
def test_launchers_of_ones_own_script(command, values, write):
    write("z3.yaml", ZERO_3)
    write("z2.json", '{"zero_optimization": {"stage": 2}}')
    draft = convert_file(write("train.sh", command + "\n"), TARGET).draft
    expected = {"model.name_or_path": "a/b", "data.train": "c/d", "model.lora.r": 32, "optimizer.learning_rate": 1e-4}
    assert {key: draft.get(key) for key in (*expected, *values)} == {**expected, **values}


@pytest.mark.parametrize(
    ("script", "words"),
    [("examples/scripts/sft_vlm.py", "trains on images"), ("grpo_own.py", "by another loss"), ("rloo.py", "by another loss")],
)  # fmt: skip
def test_scripts_that_train_otherwise_by_their_name(script, words, write):
    with pytest.raises(UserError) as refused:
        convert_file(write("train.sh", f"accelerate launch {script} {TRL_OPTIONS}\n"), TARGET)
    assert [finding.gate for finding in refused.value.findings] == ["SP040"]
    assert words in refused.value.findings[0].message


def test_a_configuration_of_accelerate_that_is_not_here_is_said(write):
    result = convert_file(write("train.sh", f"accelerate launch --config_file no.yaml sft.py {TRL_OPTIONS}\n"), TARGET)
    assert any("config_file" in note.message and "set `zero`" in note.message for note in result.notes_of("manual"))


def test_an_empty_word_is_no_script():
    command = find_training_command("a.sh", "swift sft --model a/b --system '' --dataset d.jsonl\n")
    assert command is not None
    assert command.source.data == {"model": "a/b", "system": "", "dataset": "d.jsonl"}


def test_a_value_that_is_the_name_of_a_program_is_no_program() -> None:
    text = "trl sft --model_name_or_path q --learning_rate 3e-5 --dataset_train_split train --max_length 99\n"
    command = find_training_command("a.sh", text)
    assert command is not None
    assert {"model_name_or_path", "learning_rate", "max_length"} <= command.source.data.keys()


def test_a_launch_without_deepspeed_says_the_precision(write):
    """The Trainer reads what `accelerate launch` says where it has no flag of its own; TRL has one."""
    own = "own.py --model_name_or_path a/b --learning_rate 1e-5"
    write("mg.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 4\n")
    result = convert_file(write("a.sh", f"accelerate launch --config_file mg.yaml {own}\n"), TARGET)
    assert result.draft.get("precision.bf16") is True
    assert result.draft.get("launch.num_gpus") == 4
    over = convert_file(write("b.sh", f"accelerate launch --config_file mg.yaml --mixed_precision no {own}\n"), TARGET)
    assert over.draft.get("precision.bf16") is None
    named = convert_file(write("c.sh", f"accelerate launch --zero_stage 2 --gpu_ids 0,1 {own}\n"), TARGET)
    notes = " ".join(note.message for note in named.notes_of("harmless"))
    assert "`--zero_stage`: `accelerate launch` reads it with `--use_deepspeed` alone" in notes
    assert "`--gpu_ids` is for `accelerate launch`" in notes
    assert named.draft.get("zero.stage") is None


def test_a_switch_that_is_on_by_default_is_turned_off_by_its_no():
    command = find_training_command(
        "a.sh", "trl dpo --model_name_or_path q \\\n  --no_remove_unused_columns --no-bf16\n"
    )
    assert command is not None
    assert command.source.data == {"model_name_or_path": "q", "remove_unused_columns": False, "bf16": False}
    assert command.source.place(("bf16",)).line == 2


def test_a_model_that_is_not_here_is_not_known_to_train_on_text(write):
    """Such as a speech model of ms-swift, which only its config.json tells from a text model."""
    adopted = convert_file(
        write("a.sh", "swift sft --model Nobody/Speech --model_type qwen3_tts --dataset d.jsonl\n"), TARGET
    )
    assert (
        "name_or_path: Nobody/Speech  # not on this machine: whether it trains on text is not known\n" in adopted.text
    )
    assert "model.name_or_path" not in adopted.placeholders
    assert "`Nobody/Speech` is not on this machine: whether it trains on text is not known;" in render_conversion_notes(
        adopted, "a.sh"
    )
