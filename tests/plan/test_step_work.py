# SPDX-License-Identifier: Apache-2.0
"""The counted work of a step: by hand, for Llama-3.1-8B and for what changes with adapters and leaf layers."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.model_lookup import find_model
from harness.plan.time.step_work import StepWork, count_step_work
from harness.plan.weights.flops import FULL_RECOMPUTATION, hardware_flops_per_token
from tests.support.plan_inputs import offload, settings

TOKENS = 4096


def work_of(name: str = "llama-3.1-8b", **sections: Any) -> StepWork:
    facts = find_model(name).facts
    assert facts is not None
    return count_step_work(facts, settings(name, 8, **sections))


def test_operations_are_those_of_the_flops_formula() -> None:
    """Fused attention computes the scores once more backward: 2.5 forward passes and not 2."""
    facts = find_model("llama-3.1-8b").facts
    assert facts is not None
    compute = work_of().compute
    executed = compute.matmul_flops + compute.attention_forward_flops + compute.attention_backward_flops * 2 / 2.5
    assert executed == pytest.approx(TOKENS * hardware_flops_per_token(facts, TOKENS, FULL_RECOMPUTATION))


def test_adapters_have_hardly_any_products_for_gradients_of_weights() -> None:
    """Forward, recomputation and the gradient of the inputs are left: 3 of 4 products."""
    whole = work_of().compute.matmul_flops
    adapted = work_of(model={"lora": {"r": 16}}).compute.matmul_flops
    assert adapted / whole == pytest.approx(0.74, abs=0.02)


def test_stage_3_gathers_every_large_module_in_every_pass() -> None:
    """Seven projections a layer, 32 layers; forward, recomputation and backward of four micro-batches."""
    assert work_of().collectives.gathers == 7 * 32 * 3 * 4
    assert work_of(zero={"stage": 2}).collectives.gathers == 0
    assert work_of(tuned_defaults=True).collectives.gathers in (7 * 32 * 12, 32 * 12)


def test_stage_1_reduces_once_and_stage_2_in_every_micro_batch() -> None:
    one, two = (work_of(zero={"stage": stage}).collectives.reductions for stage in (1, 2))
    assert one == 9 * 32
    assert two == 4 * one


def test_an_optimizer_on_the_cpu_leaves_nothing_to_the_gpu() -> None:
    on_gpu, on_cpu = work_of().optimizer, work_of(zero=offload("cpu")).optimizer
    assert (on_gpu.host_bytes, on_cpu.gpu_elements) == (0, 0)
    assert on_cpu.host_bytes == pytest.approx(28 * 8_030_261_248, rel=1e-3)
    assert on_gpu.gpu_elements == pytest.approx(8_030_261_248 / 8, rel=1e-3)


def test_a_part_of_the_optimizer_on_the_cpu_is_divided() -> None:
    """Its gradients are fp32 on the host: 8 bytes an element where 16-bit ones take 2."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.25}}
    work = work_of(zero=zero).optimizer
    assert work.host_bytes == pytest.approx(34 * 8_030_261_248 / 4, rel=1e-3)
    assert work.gpu_elements == pytest.approx(8_030_261_248 * 0.75 / 8, rel=1e-3)


def test_experts_see_their_share_of_the_tokens_and_are_gathered_as_one() -> None:
    compute = work_of("mixtral-8x7b-v0.1").compute
    assert compute.experts
    assert compute.rows == TOKENS * 2 / 8
    assert not work_of("mixtral-8x7b-v0.1").collectives.prefetches
    roomy = {"zero": {"stage": 3, "stage3_max_live_parameters": 3_000_000_000}}
    assert work_of("mixtral-8x7b-v0.1", **roomy).collectives.prefetches
    assert work_of().collectives.prefetches


def test_tensor_ranks_repeat_what_stays_whole() -> None:
    """AutoTP divides the head of gpt-oss alone: 8 ranks have nearly the work of one."""
    tensor = {"parallel": {"tensor_parallel_size": 8}, "zero": {"stage": 1}}
    one, eight = (work_of("gpt-oss-20b", **run).compute.matmul_flops for run in ({}, tensor))
    assert 0.6 < eight / one < 1
    one, eight = (work_of("llama-3.1-8b", **run).compute.matmul_flops for run in ({}, tensor))
    assert eight / one == pytest.approx(1 / 8, rel=0.01)


def test_a_pipeline_stage_waits_and_sends() -> None:
    piped = work_of(parallel={"pipeline_parallel_size": 4}, zero={"stage": 1})
    assert piped.compute.idle_share == pytest.approx(3 / 7)
    assert piped.collectives.messages == 2 * (4 + 4 - 2)
    assert piped.compute.layer_passes == 3 * 8
