# SPDX-License-Identifier: Apache-2.0
"""Candidates of a tuning, and the keys that make them. Needs nothing, seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.check.check_file import check_file
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import Alternative
from harness.plan.search.settings_search import HEADROOM, search_settings
from harness.plan.search.spec_changes import describe_changes, minimal_changes
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.tuning.candidates import MEMORY_TOLERANCE, order_alternatives
from harness.tuning.tuned_spec import apply_changes

SPEC = """\
model: {name_or_path: llama-3.1-8b, attn_implementation: sdpa}
data: {train: "data/*.jsonl", max_length: 4096}
train: {max_steps: 100, BATCH, gradient_checkpointing: true}
optimizer: {learning_rate: 1.0e-5}
precision: {bf16: true}
zero: ZERO
cluster: {num_nodes: 1, gpus_per_node: 8, gpu: H100-80GB, host_memory: 1TB}
"""
GLOBAL = "per_device_train_batch_size: 2, global_batch_size: 128"
ACCUMULATED = "per_device_train_batch_size: 2, gradient_accumulation_steps: 8"
BOTH = f"{GLOBAL}, gradient_accumulation_steps: 8"
DERIVED = "global_batch_size: 128, gradient_accumulation_steps: 8"
CPU = "{stage: 3, offload_optimizer: {device: cpu, pin_memory: false}}"
NVME = "{stage: 3, offload_optimizer: {device: nvme, nvme_path: /nvme, buffer_count: 8, pin_memory: false}}"


def planned(batch: str = GLOBAL, zero: str = CPU) -> tuple[Plan, dict[str, Any]]:
    text = SPEC.replace("BATCH", batch).replace("ZERO", zero)
    checked = check_file("spec.yaml", text=text, world_size=8)
    assert checked.run is not None
    assert checked.report.ok, checked.report.findings
    return make_plan(checked.run, Path.cwd()), yaml.safe_load(text)


def choices(plan: Plan) -> tuple[Alternative, ...]:
    assert plan.model is not None
    assert plan.settings is not None
    return search_settings(plan.run, plan.model, plan.device, plan.capacity, plan.rates, vary_parallel_dims=False)


def ordered(plan: Plan, *, disks: bool = False) -> list[Alternative]:
    assert plan.model is not None
    assert plan.settings is not None
    return list(order_alternatives(choices(plan), plan.settings, plan.model, plan.rates, allow_nvme=disks))


@pytest.mark.parametrize("batch", [GLOBAL, ACCUMULATED, BOTH, DERIVED])
@pytest.mark.parametrize("zero", [CPU, NVME, "{stage: 0}"])
def test_the_keys_make_the_choice_and_keep_the_global_batch(batch: str, zero: str) -> None:
    plan, raw = planned(batch, zero)
    assert plan.model is not None
    assert plan.settings is not None
    num_candidates = 0
    for choice in choices(plan)[::5]:
        sets = minimal_changes(choice.settings, plan.settings, plan.model, raw)
        text = yaml.safe_dump(apply_changes(raw, sets))
        checked = check_file("spec.yaml", text=text, world_size=8)
        if checked.run is None or not checked.report.ok:
            continue
        settings = settings_of(checked.run)
        assert settings is not None
        assert checked.run.batch.global_batch == 128
        assert _decided(settings) == _decided(choice.settings), sets
        num_candidates += 1
    assert num_candidates >= 8


def _decided(s: PlanSettings) -> tuple[object, ...]:
    return (
        s.stage,
        s.optimizer_device,
        s.param_device,
        s.micro_batch,
        s.accumulation,
        s.checkpointing,
        s.data_parallel_size,
    )


def test_only_what_differs_is_changed() -> None:
    plan, raw = planned()
    assert plan.model is not None
    assert plan.settings is not None
    assert minimal_changes(plan.settings, plan.settings, plan.model, raw) == {}
    batch = next(r.settings for r in choices(plan) if _decided(r.settings)[:5] == (3, "cpu", "none", 4, 4))
    sets = minimal_changes(batch, plan.settings, plan.model, raw)
    expected: dict[tuple[str, ...], Any] = {("train", "per_device_train_batch_size"): 4}
    expected |= {} if batch.checkpointing else {("train", "gradient_checkpointing"): False}
    assert sets == expected


def test_a_section_keeps_what_still_applies_and_loses_what_is_of_nvme_alone() -> None:
    plan, raw = planned(zero=NVME)
    assert plan.model is not None
    assert plan.settings is not None
    cpu = next(r.settings for r in choices(plan) if _decided(r.settings)[:4] == (3, "cpu", "none", 2))
    changed = apply_changes(raw, minimal_changes(cpu, plan.settings, plan.model, raw))
    assert changed["zero"]["offload_optimizer"] == {"device": "cpu", "pin_memory": False}


def test_several_kinds_are_among_the_first_and_none_is_hopeless() -> None:
    plan, _ = planned()
    alternatives = ordered(plan)
    first = alternatives[:5]
    assert len({(r.settings.stage, r.settings.optimizer_device) for r in first}) >= 3
    assert all(r.settings != plan.settings for r in alternatives)
    assert all(r.fit.headroom is None or r.fit.headroom >= -MEMORY_TOLERANCE for r in alternatives)
    assert len(alternatives) < len(choices(plan)) - 1
    roomy = [r for r in alternatives if r.fit.fits and (r.fit.headroom or 0) >= HEADROOM]
    fastest = min(r.time.seconds for r in roomy if r.time)
    assert first[0].time is not None
    assert first[0].time.seconds == pytest.approx(fastest)


def test_of_alike_times_the_larger_micro_batch_comes_first() -> None:
    plan, _ = planned()
    alternatives = ordered(plan)
    alike = [r for r in alternatives if r.settings.stage == 3 and r.settings.optimizer_device == "none" and r.time]
    same = [r for r in alike if r.time == alike[0].time and (r.fit.headroom or 0) >= 0.05]
    assert [r.settings.micro_batch for r in same] == sorted((r.settings.micro_batch for r in same), reverse=True)


def test_nothing_goes_to_disks_that_the_spec_does_not_name() -> None:
    plan, _ = planned(zero=NVME)
    assert not any(r.nvme_bytes for r in ordered(plan))
    assert any(r.nvme_bytes for r in ordered(plan, disks=True))


def test_words_say_what_differs() -> None:
    plan, _ = planned()
    assert plan.settings is not None
    other = next(r.settings for r in choices(plan) if _decided(r.settings)[:6] == (2, "none", "none", 4, 4, False))
    assert describe_changes(other, plan.settings) == "ZeRO-2, micro-batch 4 x 4, no gradient checkpointing"
