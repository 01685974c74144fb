# SPDX-License-Identifier: Apache-2.0
"""Seconds of compute: what the host launches bounds small micro-batches, and a given efficiency replaces the fit."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.planner import make_plan
from harness.plan.time.step_time import StepTime
from tests.support.plan_inputs import plan_of, run_of


def time_of(**sections: Any) -> StepTime:
    time = plan_of("llama-3.1-8b", **sections).time
    assert time is not None
    return time


def test_few_tokens_are_bound_by_launches() -> None:
    """Half of the tokens do not take half of the time, and a compiled model takes less of it."""
    compute = [time_of(data={"max_length": n}).seconds_of("compute") for n in (32, 64, 4096, 8192)]
    assert compute[0] == compute[1]
    assert compute[3] > 2 * compute[2]
    compiled = time_of(data={"max_length": 32}, train={"torch_compile": True}).seconds_of("compute")
    assert compiled < compute[0]


def test_weights_without_masters_are_multiplied_in_their_own_format() -> None:
    """ms-swift without DeepSpeed steps bf16 weights: no fp32 matrix is computed with."""
    run = run_of("llama-3.1-8b", zero={"stage": 0})
    seconds = []
    for trainer in ("trainer", "swift"):
        time = make_plan(run, trainer=trainer).time
        assert time is not None
        seconds.append(time.seconds_of("compute"))
    assert seconds[0] == pytest.approx(seconds[1])


def test_a_larger_micro_batch_is_never_slower() -> None:
    small = time_of(train={"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8})
    large = time_of(train={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2})
    assert large.seconds < small.seconds


def test_a_given_efficiency_is_that_of_all_operations() -> None:
    half = time_of(cluster={"compute_efficiency": 0.5}).seconds_of("compute")
    quarter = time_of(cluster={"compute_efficiency": 0.25}).seconds_of("compute")
    assert quarter == pytest.approx(2 * half)


def test_eager_attention_takes_longer() -> None:
    long = {"data": {"max_length": 32768}}
    eager, fused = (
        time_of(**long, model={"name_or_path": "llama-3.1-8b", "attn_implementation": kernel}).seconds_of("compute")
        for kernel in ("eager", "sdpa")
    )
    assert eager > 1.5 * fused


def test_the_range_contains_the_estimate() -> None:
    time = time_of()
    assert time.fast_seconds < time.seconds < time.slow_seconds
