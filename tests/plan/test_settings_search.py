# SPDX-License-Identifier: Apache-2.0
"""The search for settings: its results, their order, and a result as a spec. Needs nothing; seconds."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from harness.plan.memory.memory_estimate import Fit
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import Alternative
from harness.plan.search.plan_request import (
    PlanRequest,
    min_gpus_for_states,
    spec_from_request,
    validate_request,
)
from harness.plan.search.settings_search import filter_fitting, rank_alternatives, search_settings
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.settings.plan_settings import settings_of
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.run.resolved_run import resolve_run
from harness.spec.run_spec import RunSpec
from tests.support.plan_inputs import TINY, offload, plan_of, run_of


def search_run(plan: Plan, **more: Any) -> tuple[Alternative, ...]:
    assert plan.model is not None
    assert plan.settings is not None
    return search_settings(plan.run, plan.model, plan.device, plan.capacity, plan.rates, **more)


def test_what_fits_comes_first_and_the_fastest_of_it_before() -> None:
    alternatives = search_run(plan_of(zero=offload("cpu")), vary_parallel_dims=False)
    fits = list(filter_fitting(alternatives))
    assert fits
    assert list(alternatives[: len(fits)]) == fits
    seconds = [alternative.time.seconds for alternative in fits if alternative.time and alternative.fit.verdict]
    assert seconds == sorted(seconds)


def row(seconds: float, headroom: float, micro_batch: int = 1, **changes: Any) -> Alternative:
    """A row of a search with this speed, and with so much of the fullest memory left."""
    first = search_run(plan_of("llama-3.1-8b"), vary_parallel_dims=False)[0]
    assert first.time is not None
    return replace(
        first,
        time=replace(first.time, seconds=seconds),
        fit=Fit(True, "GPU memory", headroom),
        settings=replace(first.settings, micro_batch=micro_batch, **changes),
    )


def test_what_certainly_fits_comes_before_what_is_faster() -> None:
    """8 x A100-40GB led with 36.9 GiB of 39.5, at most 46."""
    sure, faster = row(2.0, 0.3), row(1.0, 0.06)
    unsure = replace(faster, fit=replace(faster.fit, uncertain=(30 << 30, 46 << 30)))
    lacking = replace(row(0.5, -0.1), fit=Fit(False, "GPU memory", -0.1))
    assert rank_alternatives([lacking, unsure, sure]) == (sure, unsure, lacking)


def test_the_faster_one_is_first_however_full_it_is() -> None:
    slower, faster = row(1.02, 0.6), row(1.0, 0.06, 8)
    assert rank_alternatives([slower, faster]) == (faster, slower)


def test_of_equally_fast_ones_more_free_memory_then_fewer_offloads_then_speed() -> None:
    full, free = row(1.0, 0.06, 8), row(1.009, 0.13)
    assert rank_alternatives([full, free]) == (free, full)
    offloaded, plain = row(1.0, 0.69, optimizer_device="cpu"), row(1.009, 0.21)
    assert rank_alternatives([offloaded, plain]) == (plain, offloaded), "more than a fifth is no reason"
    half_empty, faster = row(1.009, 0.6), row(1.0, 0.25, 8)
    assert rank_alternatives([half_empty, faster]) == (faster, half_empty)
    offloaded, plain = row(1.0, 0.097, optimizer_device="cpu", param_device="cpu"), row(1.0, 0.089)
    assert rank_alternatives([offloaded, plain]) == (plain, offloaded), "a step of 5 %"
    small, large = row(1.0, 0.5, 1), row(1.0, 0.5, 8)
    assert rank_alternatives([small, large]) == (large, small)


def test_equally_fast_is_measured_from_the_fastest() -> None:
    """Rows 0.8 % apart do not make a chain that ends with a slow one."""
    rows = [row(1.0, 0.06), row(1.008, 0.06), row(1.016, 0.5)]
    assert [each.time.seconds for each in rank_alternatives(rows) if each.time] == [1.0, 1.008, 1.016]


def test_every_choice_keeps_the_global_batch_and_the_ranks() -> None:
    plan = plan_of("llama-3.1-8b")
    assert plan.settings is not None
    for alternative in search_run(plan):
        plan_settings = alternative.settings
        assert plan_settings.micro_batch * plan_settings.accumulation * plan_settings.data_parallel_size == 32
        assert plan_settings.world_size == 8


def test_degrees_are_those_that_deepspeed_trains_with() -> None:
    for alternative in search_run(plan_of("llama-3.1-8b")):
        plan_settings = alternative.settings
        assert plan_settings.stage <= (1 if plan_settings.pipeline_parallel_size > 1 else 3)
        assert 32 % (plan_settings.tensor_parallel_size * plan_settings.sequence_parallel_size) == 0


def test_the_run_itself_is_among_them_with_its_own_numbers() -> None:
    plan = plan_of(zero=offload("cpu"))
    assert plan.memory is not None
    current = [alternative for alternative in search_run(plan) if alternative.is_current]
    assert [(r.gpu_peak, r.host_peak, r.nvme_bytes) for r in current] == [
        (plan.memory.gpu_peak, plan.memory.host_peak, 0)
    ]


def test_nothing_goes_to_disks_that_nobody_said_there_are() -> None:
    without = search_run(plan_of(cluster={"host_memory": "400GB"}), vary_parallel_dims=False)
    assert not any(alternative.nvme_bytes for alternative in filter_fitting(without))
    disks = {"host_memory": "600GB", "nvme": "8x3.5TB"}
    assert any(
        alternative.nvme_bytes
        for alternative in filter_fitting(search_run(plan_of(cluster=disks), vary_parallel_dims=False))
    )


@pytest.mark.parametrize("index", range(6))
def test_a_choice_written_as_a_spec_is_that_choice(index: int) -> None:
    raw = spec_from_request(PlanRequest("llama-3.1-70b", 8, "H100-80GB", host_memory="2TB", nvme="8x3.5TB"))
    plan = make_plan(resolve_run(RunSpec.model_validate(raw), world_size=8))
    assert plan.model is not None
    kinds = {
        (r.settings.stage, r.settings.optimizer_device, r.settings.param_device): r
        for r in search_run(plan, vary_parallel_dims=False)
    }
    alternative = list(kinds.values())[index]
    spec = RunSpec.model_validate(merge_changes(raw, spec_changes_for(alternative.settings, plan.model, raw)))
    again = settings_of(with_tuned_defaults(resolve_run(spec, world_size=8)))
    assert again is not None
    assert again == alternative.settings


def test_swap_buffers_of_a_written_spec_hold_the_largest_shard() -> None:
    raw = spec_from_request(PlanRequest("llama-3.1-70b", 8, "H100-80GB"))
    for tuned in (True, False):
        raw["tuned_defaults"] = tuned
        plan = make_plan(resolve_run(RunSpec.model_validate(raw), world_size=8))
        assert plan.model is not None
        both = next(r for r in search_run(plan, vary_parallel_dims=False) if r.settings.param_device == "nvme")
        assert both.settings.parameter_buffer_size >= 131_334_144
        assert both.settings.sub_group_size == 100_000_000
        zero = spec_changes_for(both.settings, plan.model, raw)["zero"]
        assert ("buffer_size" in zero["offload_param"]) is not tuned, "left to the tuned defaults where there are any"


def test_merging_lays_over_and_takes_away() -> None:
    raw = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge_changes(raw, {"a": {"b": 5, "c": None}, "d": None}) == {"a": {"b": 5}}
    assert raw == {"a": {"b": 1, "c": 2}, "d": 3}


def test_sixteen_thousand_ranks_are_planned_in_under_a_second() -> None:
    begun = time.process_time()
    plan = make_plan(run_of("llama-3.1-405b", 16_384, zero={"stage": 3}))
    assert time.process_time() - begun < 1
    assert plan.fit.fits is True


@pytest.mark.parametrize(
    ("changes", "gate", "word"),
    [
        ({"model": "nobody/nothing"}, "MM001", "catalogue"),
        ({"model": "lama-3.1-70b"}, "MM001", "did you mean"),
        ({"gpus": 0}, "MM007", "`--gpus 0`"),
        ({"gpus": -3}, "MM007", "`--gpus -3`"),
        ({"gpus": 12}, "MM007", "12 GPUs"),
        ({"gpu": "H101"}, "MM003", "H101"),
        ({"host_memory": "-2TB"}, "MM004", "-2TB"),
        ({"nvme": "8xmany"}, "MM004", "8xmany"),
        ({"gpus_per_node": 0}, "MM007", "gpus-per-node"),
        ({"max_length": 0}, "MM007", "max-length"),
    ],
)
def test_what_cannot_be_planned_with_is_a_finding(changes: dict[str, Any], gate: str, word: str) -> None:
    fields = {"model": "llama-3.1-8b", "gpus": 8, "gpu": "H100", **changes}
    problems = validate_request(PlanRequest(**fields))
    assert gate in [f.gate for f in problems]
    assert word in " ".join(f.message for f in problems)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    problems = validate_request(PlanRequest("nobody/nothing", 0, "H101", nvme="x", host_memory="y"))
    assert {f.gate for f in problems} == {"MM001", "MM003", "MM004", "MM007"}


def test_the_raw_floor_divides_by_the_size_in_the_name() -> None:
    device = plan_of().device
    assert device is not None
    assert min_gpus_for_states(16 * 70e9, device) == 14


def test_alternatives_of_pairs_have_the_batch_of_the_run() -> None:
    """Two sequences a pair: the micro-batch of a spec counts pairs, that of the arithmetic sequences."""
    batch = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": None, "global_batch_size": 64}
    plan = make_plan(run_of("llama-3.1-8b", objective="dpo", dpo={"beta": 0.1}, train=batch))
    assert plan.settings is not None
    assert (plan.settings.rows, plan.settings.micro_batch) == (4, 8)
    assert [each.settings for each in plan.alternatives if each.is_current] == [plan.settings]
    settings = [each.settings for each in (*plan.alternatives, *plan.fastest_fitting, *plan.best_by_kind)]
    assert {each.rows * each.accumulation * each.data_parallel_size for each in settings} == {64}
    assert {each.tokens_per_step for each in settings} == {128 * 4096}


@pytest.mark.parametrize(("family", "has_stages"), [("gpt_neox", False), ("llama", True)])
def test_no_pipeline_is_named_that_the_gates_refuse(family: str, has_stages: bool) -> None:
    """MD004: GPT-NeoX is no plain stack of layers."""
    found = search_run(plan_of({**TINY, "model_type": family}, 2, zero={"stage": 1}))
    assert any(each.settings.pipeline_parallel_size > 1 for each in found) == has_stages
