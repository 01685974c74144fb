# SPDX-License-Identifier: Apache-2.0
"""Settings that a program refuses together with DeepSpeed, in made-up commands and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.convert.conversion import convert_file
from harness.convert.program_clashes import find_clashes
from harness.convert.shell_command import find_training_command
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget

TARGET = DeepSpeedTarget("0.19.8", "asked for")
_SWIFT = "swift sft --model org/model --dataset d.jsonl --deepspeed zero2"
_CHAT = "deepspeed main.py --model_name_or_path org/neox --lora_dim 4 --only_optimize_lora --deepspeed"
_DPO = "dpo.py --model_name_or_path org/model --dataset_name org/pairs"
_FACTORY = "--stage sft --model_name_or_path org/model --dataset d --deepspeed ds.json"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("deepspeed --num_gpus 4 src/train.py recipes/sft.yaml", "FORCE_TORCHRUN=1"),
        ("/opt/bin/deepspeed --hostfile hosts src/train.py recipes/sft.yml", "FORCE_TORCHRUN=1"),
        ("torchrun --nproc_per_node 4 src/train.py recipes/sft.yaml", ""),
        ("llamafactory-cli train recipes/sft.yaml", ""),
        ("deepspeed --no_local_rank src/train.py recipes/sft.yaml", ""),
        (f"deepspeed src/train.py {_FACTORY}", ""),
        (f"CUDA_VISIBLE_DEVICES=4,5 {_SWIFT}", "`NPROC_PER_NODE=2`"),
        (f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{_SWIFT}", "`NPROC_PER_NODE=4`"),
        (f"CUDA_VISIBLE_DEVICES=4 {_SWIFT}", ""),
        (f"NPROC_PER_NODE=2 CUDA_VISIBLE_DEVICES=4,5 {_SWIFT}", ""),
        (f"CUDA_VISIBLE_DEVICES=4,5 NNODES=$HOSTS NPROC_PER_NODE=6 {_SWIFT}", ""),
        (f"CUDA_VISIBLE_DEVICES=4,5 {_SWIFT.partition(' --deepspeed')[0]}", ""),
        (f"deepspeed src/train.py {_FACTORY} --use_unsloth true", "`use_unsloth: false`"),
        (f"deepspeed src/train.py {_FACTORY} --use_unsloth false", ""),
        (f"deepspeed src/train.py {_FACTORY} --predict_with_generate", "`predict_with_generate`"),
        (f"deepspeed {_DPO} --deepspeed ds.json --predict_with_generate", ""),
        (f"deepspeed {_DPO} --deepspeed ds.json --device_map auto", "`device_map`"),
        (f"NPROC_PER_NODE=2 \\\nCUDA_VISIBLE_DEVICES=4,5 \\\n\n{_SWIFT}", "with no empty line"),
        (f"NPROC_PER_NODE=2 \\\nCUDA_VISIBLE_DEVICES=4,5 \\\n{_SWIFT}", ""),
        (f"accelerate launch --config_file z3.yaml {_DPO} --precompute_ref_log_probs", "partitioned"),
        (f"accelerate launch --config_file z3.yaml {_DPO}", ""),
        (_CHAT, "`lora_module_name`"),
        (f"{_CHAT} --lora_module_name layers.", ""),
    ],
)
def test_what_the_program_itself_refuses_is_said(script: str, said: str) -> None:
    command = find_training_command("job.sh", script)
    assert command is not None
    found = list(find_clashes(command.source, command))
    assert len(found) == bool(said), found
    assert said in "".join(found)


def test_a_lower_stage_takes_what_stage_3_refuses() -> None:
    command = find_training_command("job.sh", f"deepspeed src/train.py {_FACTORY} --use_unsloth true")
    assert command is not None
    assert [bool(list(find_clashes(command.source, command, stage))) for stage in (2, 3)] == [False, True]


@pytest.mark.parametrize(
    ("stage", "more", "count"), [(1, "", 0), (2, "", 1), (3, "", 1), (3, "--no-pipeline-parallel", 0)]
)
def test_a_pipeline_of_megatron_has_no_stage_above_1(stage: int, more: str, count: int) -> None:
    script = f"deepspeed pretrain_gpt.py --pipeline-model-parallel-size 1 --deepspeed --deepspeed_config ds.json {more}"
    command = find_training_command("job.sh", script)
    assert command is not None
    assert len(list(find_clashes(command.source, command, stage))) == count


@pytest.mark.parametrize(
    ("flag", "enabled", "count"), [("", True, 1), ("--bf16", True, 0), ("", '"auto"', 0), ("", False, 0)]
)
def test_a_precision_of_the_json_alone_is_refused_by_the_trainer(
    flag: str, enabled: object, count: int, tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(
        f'{{"bf16": {{"enabled": {str(enabled).lower()}}}, "zero_optimization": {{"stage": 2}}}}'
    )
    script = tmp_path / "job.sh"
    script.write_text(
        f"deepspeed my.py --model_name_or_path org/model --deepspeed ds.json --learning_rate 1e-5 {flag}\n"
    )
    notes = [
        note.message
        for note in convert_file(str(script), TARGET).notes
        if "the Trainer refuses the pair" in note.message
    ]
    assert len(notes) == count


def test_a_refused_file_says_it_too(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("deepspeed src/train.py absent.yaml\n")
    with pytest.raises(UserError) as absent:
        convert_file(str(script), TARGET)
    assert "FORCE_TORCHRUN" in absent.value.findings[0].notes[0]
    script.write_text(f"CUDA_VISIBLE_DEVICES=0,1 {_SWIFT} --freeze_vit true\n")
    with pytest.raises(UserError) as images:
        convert_file(str(script), TARGET)
    assert "NPROC_PER_NODE" in str([note for each in images.value.findings for note in each.notes])


def test_a_converted_file_says_it(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"accelerate launch --config_file z3.yaml {_DPO} --precompute_ref_log_probs\n")
    notes = convert_file(str(script), TARGET).notes_of("manual")
    assert any("for its own program: `precompute_ref_log_probs`" in note.message for note in notes)


@pytest.mark.parametrize(
    ("section", "options", "is_said"),
    [
        ("zero_stage: 2", "--max_grad_norm 0.7", True),
        ("zero_stage: 3", "--model_path org/other --max_grad_norm 0.2", True),
        ("zero_stage: 2, gradient_clipping: 0.7", "--max_grad_norm 0.7", False),
        ("zero_stage: 2", "", False),
        ("deepspeed_config_file: ds.json", "--max_grad_norm 0.7", False),
    ],
)
def test_a_limit_that_an_old_accelerate_does_not_pass_on(section: str, options: str, is_said: bool, write) -> None:
    """A script of one's own is known by an option of TrainingArguments, whatever its model's option is called."""
    write("ds.json", '{"zero_optimization": {"stage": 2}, "gradient_clipping": "auto", "train_batch_size": "auto"}')
    write("two.yaml", f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {{{section}}}\n")
    command = f"accelerate launch --config_file two.yaml tools/fit.py --per_device_train_batch_size 1 {options}\n"
    notes = convert_file(write("go.sh", command), TARGET).draft.notes
    assert any("before 0.30" in str(note) for note in notes) is is_said
