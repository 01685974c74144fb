# SPDX-License-Identifier: Apache-2.0
"""Safe fixes: the run that they render trains, fits and stores the same, over all examples and drawn configurations.

The text after all safe fixes is compared with the text before: every value that the run reads, the JSON that it
renders, and the plan of its memory. What DeepSpeed does with both is run in `tests/training/gates`.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import harness.gates
from harness.check.autofix import FixResult, apply_fixes
from harness.check.check_file import CheckedFile, check_file
from harness.facts.deepspeed_keys import block_keys
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.facts.key_effects import HARMLESS, find_effect, load_effects
from harness.findings import Fix
from harness.gates.context import Context
from harness.gates.dtypes import dtype_of
from harness.gates.fix_safety import UNREAD_IN, find_harm
from harness.gates.optimizer_facts import read_number
from harness.gates.registry import all_gates
from harness.plan.planner import make_plan
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.render.ds_config import render_ds_config
from harness.spec.deepspeed_mapping import spec_field_of
from harness.spec.parse.source import join_key
from harness.spec.run_spec import RunSpec
from tests.conformance.case import file_text
from tests.conformance.draw import draw
from tests.support.gate_examples import example_of, judge

GATES = all_gates()
TARGET = DeepSpeedTarget("0.19.8", "asked for")
MODEL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "vocab_size": 256}  # fmt: skip


def leaves(path: tuple[str, ...], value: Any):
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves((*path, str(name)), inner)
    elif value not in (None, {}) and (path[-1], value) != ("device", "none"):
        yield path, value


def context_of(checked: CheckedFile) -> Context:
    assert checked.run is not None
    assert checked.source is not None
    return Context(checked.run, checked.source, TARGET, checked.report.consumer)  # type: ignore[arg-type]


def deciding_values(ctx: Context, values: Any) -> dict[str, Any]:
    """Those of the values that this run reads and that decide training, memory or storage, in one form."""
    found = {}
    for path, value in values:
        key = join_key(path)
        effect = find_effect(key)
        is_idle = effect is not None and any(UNREAD_IN[run](ctx, key) for run in effect.unread_in)
        if is_idle or (effect is not None and effect.decides in HARMLESS) or value == "auto":
            continue
        single = value[0] if isinstance(value, list) and len(value) == 1 else value
        number = read_number(single) if isinstance(single, str) else None
        found[key] = dtype_of(single) or (single if number is None else number)
    return found


def read_values(checked: CheckedFile) -> dict[str, Any]:
    """The values of the file that decide something."""
    ctx = context_of(checked)
    values = ctx.run.spec.model_dump(mode="json", exclude_unset=True)
    if ctx.run.kind == "deepspeed-json":  # its optimizer has two forms in a run spec, with the same meaning
        values.pop("optimizer", None)
        values["deepspeed"] = {**values.get("deepspeed", {}), "optimizer": ctx.source.data.get("optimizer")}
    return deciding_values(ctx, leaves((), values))


def rendered_values(checked: CheckedFile) -> dict[str, Any]:
    """The values of the JSON that is rendered, tuned defaults included."""
    ctx = context_of(checked)
    rendered = leaves((), render_ds_config(with_tuned_defaults(ctx.run, None)).config)
    return deciding_values(ctx, [(spec_field_of(path) or ("deepspeed", *path), value) for path, value in rendered])


def planned_memory(checked: CheckedFile) -> Any:
    assert checked.run is not None
    plan = make_plan(checked.run, None, with_alternatives=False, with_search=False)
    return (plan.memory, plan.checkpoint_cost, plan.fit)


def assert_same(before: CheckedFile, fixed: FixResult, name: str) -> None:
    """What the text after the fixes trains, fits and stores is what it was."""
    after = fixed.checked
    assert after.run is not None, name
    assert read_values(before) == read_values(after), name
    if before.run is not None and before.run.kind == "spec":
        assert rendered_values(before) == rendered_values(after), name
    if not any(finding.is_error for finding in fixed.fixed_findings):  # what DeepSpeed refuses has no memory
        assert planned_memory(before) == planned_memory(after), name


def fix_safely(file: str, text: str, **options: Any):
    """The check of the text, and what came of all safe fixes."""

    def check(changed: str) -> CheckedFile:
        return check_file(file, text=changed, deepspeed=TARGET, **options)

    fixed = apply_fixes(file, text, check, unsafe=False)
    return check(text), fixed


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.id)
def test_no_gate_calls_a_fix_safe_that_is_not(gate, write, monkeypatch):
    """The registry's promise: the table allows every fix that a gate calls safe on its own example."""
    monkeypatch.setattr(harness.gates, "_honest_fix", lambda fix, _: fix)
    judged = judge(gate, "Example", write)
    ctx = Context(judged.run, judged.source, TARGET, getattr(judged.report, "consumer", None), "cuda")
    for finding in judged.report.findings:
        if finding.gate == gate.id and finding.fix is not None and finding.fix.safe:
            assert find_harm(finding.fix, ctx) is None


@pytest.mark.parametrize("gate", [gate for gate in GATES if "hosts" not in gate.needs], ids=lambda gate: gate.id)
def test_what_the_safe_fixes_of_an_example_render_is_the_same(gate):
    example = example_of(gate, "Example")
    needed = {"model": {"config": MODEL, "tokenizer": "bytes"}, "data": {"train": "a.txt"},
              "train": {"max_steps": 1, "per_device_train_batch_size": 2}}  # fmt: skip
    text = example.text
    if example.kind == "yaml":
        text += "".join(f"{name}: {json.dumps(value)}\n" for name, value in needed.items() if f"{name}:" not in text)
    before, fixed = fix_safely(f"a.{example.kind}", text, world_size=4)
    if before.run is not None:
        assert_same(before, fixed, gate.id)


def unread_keys(rng: random.Random, config: dict[str, Any]) -> None:
    """Add keys that may be idle, old names, and numbers as texts: what safe fixes are about."""
    zero = config.setdefault("zero_optimization", {})
    zero = zero if isinstance(zero, dict) else {}
    offload = zero.get("offload_optimizer")
    chances = {
        "sub_group_size": 1_000_000, "stage3_prefetch_bucket_size": 4_000_000, "round_robin_gradients": True,
        "stage3_gather_fp16_weights_on_model_save": True, "allgather_partitions": False, "overlap_comm": True,
        "allgather_bucket_size": 300_000_000, "ignore_unused_parameters": False, "contiguous_gradients": False,
        "zero_quantized_weights": True, "zero_hpz_partition_size": 2,
    }  # fmt: skip
    for name in rng.sample(sorted(chances), 3):
        zero.setdefault(name, chances[name])
    if isinstance(offload, dict) and rng.random() < 0.5:
        offload.setdefault("cpuadam_cores_perc", 0.5)
        offload.setdefault("buffer_count", 8)
    blocks = {
        "aio": {"thread_count": 2, "queue_depth": 8}, "compile": {"offload_parameters": True},
        "pipeline": {"stages": 2}, "tensor_parallel": {"preset_model": "llama"}, "steps_per_print": 0,
        "disable_allgather": True, "scheduler": {"params": {"warmup_num_steps": 10}}, "fp16": {"loss_scale_window": 500},
        "bf16": {"enabled": True, "immediate_grad_update": True}, "communication_data_type": "float32",
        "hybrid_engine": {"enabled": False}, "checkpoint": {"parallel_write": {"pipeline_stage": True}},
    }  # fmt: skip
    for name in rng.sample(sorted(blocks), 4):
        config.setdefault(name, blocks[name])
    if isinstance(zero.get("stage"), int) and rng.random() < 0.3:
        zero["stage"] = str(zero["stage"])


def test_what_the_safe_fixes_of_drawn_configurations_render_is_the_same():
    fixes = 0
    for number in range(160):
        case = draw(3, number)
        rng = random.Random(number)  # noqa: S311
        suffix, text = file_text(case)
        options: dict[str, Any] = {"world_size": case.world}
        if suffix == ".json" and number % 2:
            config = json.loads(json.dumps(case.config))
            unread_keys(rng, config)
            text = json.dumps(config, indent=1)
            options["overrides"] = [f"model.config={json.dumps(MODEL)}"]
            options["consumer"] = rng.choice(("deepspeed", "hf", "accelerate"))
        before, fixed = fix_safely(f"case{suffix}", text, **options)
        has_old_names = suffix == ".yaml" and any(f.gate == "SP014" for f in fixed.fixed_findings)
        if before.run is None or has_old_names:  # below `deepspeed`, an old name has no field to compare it with
            continue
        fixes += len(fixed.fixed_findings)
        assert_same(before, fixed, f"{case.id}: {[(f.gate, dict(f.fix.sets)) for f in fixed.fixed_findings if f.fix]}")
    assert fixes > 100


def test_the_table_knows_each_run_that_it_names_and_each_key_exists():
    for key, effect in load_effects().items():
        assert effect.unread_in == () or effect.decides not in HARMLESS, key
        assert {*effect.unread_in} <= {*UNREAD_IN}, key
        path = key.removesuffix(".*").replace("tensor_parallel.tensor_parallel", "tensor_parallel.tp").split(".")
        if path[0] == "deepspeed":
            *block, name = path[1:]
            known = block_keys(".".join(block)) or {}
            assert name in known or block_keys(".".join(path[1:])) is not None or block[-1:] == ["params"], key
        else:
            model: Any = RunSpec
            for name in path:
                assert model is None or name in model.model_fields or path[:2] == ["launch", "env"], key
                field = model.model_fields.get(name) if model is not None else None
                model = (
                    next((t for t in _types(field.annotation) if hasattr(t, "model_fields")), None) if field else None
                )
    used = {run for effect in load_effects().values() for run in effect.unread_in}
    assert used == {*UNREAD_IN}


def _types(annotation: Any) -> list[Any]:
    from typing import get_args

    return [annotation, *(part for arg in get_args(annotation) for part in _types(arg))]


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("zero: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /x}}", {"zero.offload_optimizer.device": "cpu"}),
        ("zero: {stage: 3, offload_optimizer: {device: nvme, nvme_path: /x}}", {"zero.offload_optimizer": None}),
        ("zero: {stage: 3, sub_group_size: 10}", {"zero.sub_group_size": None}),
        ("zero: {stage: 3}", {"zero.stage": 2}),
        ("train: {max_steps: 1}", {"train.gradient_accumulation_steps": 2}),
        ("deepspeed: {scheduler: {type: WarmupLR, params: {warmup_num_steps: 5}}}", {"deepspeed.scheduler": None}),
        ("deepspeed: {some_new_key: 1}", {"deepspeed.some_new_key": None}),
        ("checkpoint: {save_steps: 5, save_total_limit: 2}", {"checkpoint.save_total_limit": None}),
        ("launch: {env: {NCCL_DEBUG: INFO}}", {"launch.env.NCCL_DEBUG": None}),
        ("deepspeed: {datastates_ckpt: {}}", {"deepspeed.datastates_ckpt": False}),
    ],
)  # fmt: skip
def test_a_fix_that_changes_the_run_is_never_safe(text, sets):
    rest = "".join(f"{name}: {{}}\n" for name in ("model", "data") if not text.startswith(name))
    checked = check_file("a.yaml", text=f"{text}\n{rest}", deepspeed=TARGET)
    assert find_harm(Fix("", sets, safe=True), context_of(checked)) is not None


UNREAD_OPTIMIZER = """
model: {config: %s, tokenizer: bytes}
data: {train: a.txt}
train: {max_steps: 1, per_device_train_batch_size: 1}
zero: {stage: 1}
optimizer: {weight_decay: 0.1}
deepspeed: {optimizer: {type: AdamW, params: {lr: 1.0e-3, weight_decay: 0.0}}}
"""


def test_the_plan_counts_the_groups_of_the_optimizer_that_trains():
    before, fixed = fix_safely("a.yaml", UNREAD_OPTIMIZER % json.dumps(MODEL), world_size=3)
    assert [finding.gate for finding in fixed.fixed_findings] == ["OP038"]
    assert_same(before, fixed, "OP038")


WARM_UP = {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-6, "warmup_max_lr": 3e-4, "warmup_num_steps": 10}}


@pytest.mark.parametrize(
    ("config", "effect"),
    [
        ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}, "the hidden first step decays the weights"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            "on the GPU trains",
        ),
        ({"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}, "as now"),
    ],
)
def test_the_rate_that_a_scheduler_replaces_is_never_set_unattended(config, effect):
    optimizer = {"type": "AdamW", "params": {"lr": 1e-5, "weight_decay": 0.1}}
    text = json.dumps({"train_batch_size": 8, **config, "optimizer": optimizer, "scheduler": WARM_UP})
    report = check_file("a.json", text=text, consumer="deepspeed", deepspeed=TARGET).report
    fix = next(finding.fix for finding in report.findings if finding.gate == "OP028")
    assert fix is not None
    assert not fix.safe
    assert effect in fix.effect


def test_a_scheduler_without_a_type_is_left_where_the_spec_has_one():
    """The harness makes the section's own scheduler only where the JSON has no block at all."""
    text = "model: {}\ndata: {}\nscheduler: {type: linear}\ndeepspeed: {scheduler: {params: {warmup_num_steps: 10}}}\n"
    report = check_file("a.yaml", text=text, deepspeed=TARGET).report
    fix = next(finding.fix for finding in report.findings if finding.gate == "OP022")
    assert fix is not None
    assert (fix.safe, fix.effect) == (False, "`scheduler.type: linear` sets the rate")


def test_a_scheduler_without_a_type_is_left_where_the_trainer_reads_it():
    """The Trainer builds a scheduler of its own where the file has no block: run with transformers 5.23."""
    text = (
        '{"train_batch_size": 8, "scheduler": {"params": {"warmup_num_steps": 10}}, "zero_optimization": {"stage": 1}}'
    )
    for consumer, is_safe in (("deepspeed", True), ("hf", False), ("accelerate", False)):
        report = check_file("a.json", text=text, consumer=consumer, deepspeed=TARGET).report
        fix = next(f.fix for f in report.findings if f.gate == "OP022")
        assert fix is not None
        assert fix.safe == is_safe, consumer
        assert is_safe or fix.effect
