# SPDX-License-Identifier: Apache-2.0
"""The help of a key that a run spec or a DeepSpeed JSON does not have."""

from __future__ import annotations

import json
import re

import pytest

from harness.check.check_file import check_file
from harness.spec.parse.source import split_key
from harness.spec.section_fields import section_fields
from harness.spec.spec_loader import load_spec
from harness.spec.suggestions import Suggestions
from harness.spec.trainer_names import ADVICE, SPEC_KEYS


def help_of(tmp_path, text, key):
    file = tmp_path / "a.yaml"
    file.write_text(text, encoding="utf-8")
    finding = next(f for f in load_spec(str(file)).findings if f.key == key)
    assert finding.is_error
    return finding.fix.title


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # the names of the Trainer, wherever they are written
        ("lora", "did you mean `model.lora`?"),
        ("train.save_steps", "`save_steps` belongs in `checkpoint`"),
        ("torch_dtype", "write `precision.bf16: true`"),
        ("model.torch_dtype", "write `precision.bf16: true`"),
        ("train.eval_strategy", "did you mean `eval.eval_steps`?"),
        ("evaluation_strategy", "did you mean `eval.eval_steps`?"),
        ("report_to", "did you mean `telemetry.trackers`?"),
        ("data.validation_split", "did you mean `data.eval_fraction`?"),
        ("train.dataloader_num_workers", "remove it: a rank prepares the next batch"),
        ("model.lora.rank", "did you mean `model.lora.r`?"),
        ("per_device_eval_batch_size", "`per_device_eval_batch_size` belongs in `eval`"),
        ("train.per_device_eval_batch_size", "`per_device_eval_batch_size` belongs in `eval`"),
        ("num_train_epochs", "`num_train_epochs` belongs in `train`"),
        ("gradient_accumulation_steps", "`gradient_accumulation_steps` belongs in `train`"),
        ("bf16", "`bf16` belongs in `precision`"),
        ("train.fp16", "`fp16` belongs in `precision`"),
        ("model.optim", "did you mean `optimizer.type`?"),
        ("fsdp", "use `zero.stage: 3`"),
        ("push_to_hub", "remove it: `harness export` writes the folder"),
        ("load_best_model_at_end", "did you mean `checkpoint.keep_best`?"),
        # one name in one section
        ("eval.steps", "did you mean `eval.eval_steps`?"),
        ("train.steps", "did you mean `train.max_steps`?"),
        ("eval.batch_size", "did you mean `eval.per_device_eval_batch_size`?"),
        # other spellings
        ("learning-rate", "did you mean `optimizer.learning_rate`?"),
        ("train.maxSteps", "did you mean `train.max_steps`?"),
        ("train.savee_steps", "did you mean `checkpoint.save_steps`?"),
        ("train.evaluation_stratgy", "did you mean `eval.eval_steps`?"),
        # what is elsewhere
        ("train.name", "`name` belongs at the top level"),
        ("train.optimizer", "`optimizer` belongs at the top level"),
        ("train.type", "`type` belongs in `optimizer` or in `scheduler`"),
        ("aio", "`aio` belongs in `deepspeed`"),
        ("train.quark", "known here: `max_steps`"),
    ],
)
def test_the_key_that_was_meant(tmp_path, key, expected):
    *sections, name = key.split(".")
    text = "".join(f"{'  ' * depth}{section}:\n" for depth, section in enumerate(sections))
    title = help_of(tmp_path, f"{text}{'  ' * len(sections)}{name}: 1\n", key)
    assert title.startswith(expected)


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("optimizer: adamw\n", "optimizer", "such as `optimizer.type`"),
        ("zero: 3\n", "zero", "such as `zero.stage`"),
        ("precision: bf16\n", "precision", "such as `precision.bf16`"),
        ("model:\n  lora: true\n", "model.lora", "such as `model.lora.r`"),
        ("deepspeed: ds_config.json\n", "deepspeed", "`harness adopt FILE` converts a DeepSpeed JSON"),
        ("export: yes\n", "export", "write a map of keys"),
    ],
)
def test_a_value_in_the_place_of_a_section_names_the_key(tmp_path, text, key, expected):
    assert help_of(tmp_path, text, key).endswith(expected)


def test_every_entry_names_a_key_that_exists():
    assert not set(SPEC_KEYS) & set(ADVICE)
    mentioned = re.findall(r"`([a-z0-9_]+\.[a-z0-9_.]+)(?::[^`]*)?`", " ".join(ADVICE.values()))
    assert len(mentioned) > 15
    for key in [*SPEC_KEYS.values(), *(m for m in mentioned if m not in ("metrics.jsonl", "torch.compile"))]:
        *section, name = split_key(key)
        assert name in section_fields(tuple(section)), key


def test_no_entry_hides_a_key_of_its_own_section():
    for name in (*SPEC_KEYS, *ADVICE):
        *section, last = name.split(".")
        assert not section or last not in section_fields(tuple(section)), name
        assert name not in section_fields(()), name


@pytest.mark.parametrize(
    ("name", "value", "expected", "never"),
    [
        ("gradient_accumulation_dtype", "fp32", "`data_types.grad_accum_dtype`", "gradient_accumulation_steps"),
        ("pipe-parallel-size", 1, "remove it", "data_parallel_size"),
        ("model-parallel-size", 1, "remove it", "data_parallel_size"),
        ("zero3_init_flag", True, "accelerate's own file", "did you mean"),
        ("zero_stage", 3, "`zero_optimization.stage`", "sparse"),
        ("offload_optimizer_device", "cpu", "`zero_optimization.offload_optimizer.device`", "remove it"),
        ("report_to", "none", "the script, the trainer or the launcher", "did you mean"),
        ("cpu_offload", True, "belongs in `zero_optimization`", "remove it"),
        ("steps_per_prin", 5, "did you mean `steps_per_print`?", "remove it"),
    ],
)
def test_a_deepspeed_json_gets_no_wrong_name(tmp_path, name, value, expected, never):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8, name: value}), encoding="utf-8")
    finding = next(f for f in check_file(str(file)).report.findings if f.gate == "SP005")
    shown = " ".join([finding.message, *finding.notes, finding.fix.title])
    assert expected in shown
    assert never not in shown


@pytest.mark.parametrize(
    ("name", "other", "is_one"),
    [
        ("gradient_accumulation_dtype", "gradient_accumulation_steps", False),
        ("pipe_parallel_size", "data_parallel_size", False),
        ("save_steps", "max_steps", False),
        ("offload_optimiser", "offload_optimizer", True),
        ("overlap_communication", "overlap_comm", True),
        ("stage3_param_persitance_threshold", "stage3_param_persistence_threshold", True),
        ("allgather_bucket", "allgather_bucket_size", True),
        ("grad_clipping", "gradient_clipping", True),
        ("trainbatchsize", "train_batch_size", True),
    ],
)
def test_names_with_words_of_their_own_are_no_misspellings(name, other, is_one):
    assert (Suggestions().nearest_name(name, [other]) == other) is is_one


ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.0}}}


@pytest.mark.parametrize(
    ("config", "key", "help_"),
    [
        ({"tensor-parallel": {"autotp_size": 2}}, "tensor-parallel", "did you mean `tensor_parallel`?"),
        ({"zero-optimization": {"stage": 2}}, "zero-optimization", "did you mean `zero_optimization`?"),
        ({"Zero_Optimization": {}, "zero_optimization": {}}, "Zero_Optimization", "remove it, since `zero_optimization`"),
        ({"zero_optimization": {"overlap-comm": True}}, "zero_optimization.overlap-comm", "did you mean `overlap_comm`?"),
        ({"weight_decay": 0.1, **ADAMW}, "weight_decay", "remove it, since `optimizer.params.weight_decay` is there"),
        ({"adam_w_mode": True, **ADAMW}, "adam_w_mode", "`adam_w_mode` belongs in `optimizer.params`"),
        ({"nesterov": True}, "nesterov", "remove it: `optimizer` is left to the script"),
        ({"warmup_num_steps": 9}, "warmup_num_steps", "remove it: `scheduler` is left to the script"),
        ({"enabled": True}, "enabled", "write it into the block whose `enabled` it is"),
    ],
)  # fmt: skip
def test_a_key_of_deepspeed_in_another_spelling_or_place_is_an_error(config, key, help_):
    report = check_file("a.json", text=json.dumps({"train_batch_size": 8, **config}), consumer="deepspeed").report
    finding = next(finding for finding in report.findings if finding.key == key)
    assert (finding.gate, finding.severity) == ("SP005", "error")
    assert finding.fix is not None
    assert finding.fix.title.startswith(help_)
