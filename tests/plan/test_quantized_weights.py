# SPDX-License-Identifier: Apache-2.0
"""The plan of weights in 4 bits. Real ones are counted in `tests/training/models/test_quantized_base.py`."""

from __future__ import annotations

from typing import Any

import pytest

from harness.facts.model_facts import ModelFacts
from harness.facts.model_lookup import find_model
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.zero_partitions import count_frozen_bytes
from harness.plan.planner import make_plan
from harness.plan.settings.plan_settings import settings_of
from harness.plan.time.goodput import checkpoint_bytes
from harness.plan.time.step_work import count_step_work
from harness.plan.weights.quantized_weights import count_quantized, quantized_bytes
from harness.spec.sections.model_spec import QuantizationSpec
from tests.support.plan_inputs import run_of

ONE_SCALE = QuantizationSpec(bnb_4bit_use_double_quant=False)
LAYERS_8B = 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 4096 * 14336)
OUTSIDE_8B = 2 * 128_256 * 4096 + 65 * 4096
"""Embeddings, head and norms."""


def model_of(name: str) -> ModelFacts:
    facts = find_model(name, None, None).facts
    assert facts is not None
    return facts


def _run(stage: int = 2, **model: Any) -> Any:
    lora = {"r": 8, "target_modules": "all-linear"}
    model = {"lora": lora, "quantization": {"load_in_4bit": True}, **model}
    return run_of("llama-3.1-8b", model=model, zero={"stage": stage}, ranks=1, cluster={"gpus_per_node": 1})


@pytest.mark.parametrize(
    ("numel", "quantization", "size"),
    [
        (4096, ONE_SCALE, 2048 + 4 * 64 + 64),
        (4096, QuantizationSpec(), 2048 + 64 + 4 * 1 + 4 + 64 + 1024),
        (100_000, QuantizationSpec(), 50_000 + 1563 + 4 * 7 + 4 + 64 + 1024),
        (3, ONE_SCALE, 2 + 4 + 64),
    ],
)
def test_bytes_of_a_weight_are_counted_by_blocks(numel: int, quantization: QuantizationSpec, size: int) -> None:
    assert quantized_bytes(numel, quantization) == size


def test_layers_are_quantized_and_nothing_else() -> None:
    model = model_of("llama-3.1-8b")
    weights = count_quantized(model.parameters(), model, QuantizationSpec())
    assert (weights.numel, weights.largest) == (LAYERS_8B, 4096 * 14336)
    assert weights.bytes / weights.numel == pytest.approx(0.516, abs=1e-3)


def _frozen(memory: MemoryEstimate | None) -> list[int]:
    assert memory is not None
    return [item.bytes for item in memory.items if item.kind == "frozen"]


def test_the_rows_of_frozen_weights_are_those_of_16_and_of_4_bits() -> None:
    quantized, plain = make_plan(_run()), make_plan(_run(quantization=None))
    assert quantized.model is not None
    weights = count_quantized(quantized.model.parameters(), quantized.model, QuantizationSpec())
    assert _frozen(quantized.memory) == [2 * OUTSIDE_8B, weights.bytes]
    assert _frozen(plain.memory) == [2 * (OUTSIDE_8B + LAYERS_8B)]


def test_the_plan_says_that_no_gpu_has_run_it() -> None:
    assert [(f.gate, f.key) for f in make_plan(_run()).findings] == [("MM019", "model.quantization")]


def test_a_checkpoint_has_the_weights_in_4_bits() -> None:
    plan = make_plan(_run())
    assert plan.settings is not None
    assert plan.model is not None
    frozen = count_frozen_bytes(plan.model, plan.settings)
    assert frozen == sum(_frozen(plan.memory))
    assert checkpoint_bytes(plan.settings, 10, frozen) == 140 + frozen


def test_other_settings_of_4_bit_weights_have_no_stage_3() -> None:
    stages = {alternative.settings.stage for alternative in make_plan(_run()).alternatives}
    assert stages == {0, 1, 2}


def test_a_step_moves_the_weights_out_of_4_bits_in_each_pass() -> None:
    run = _run()
    model, settings = model_of("llama-3.1-8b"), settings_of(run)
    assert settings is not None
    weights = count_quantized(model.parameters(), model, QuantizationSpec())
    moved = count_step_work(model, settings).compute.dequantized_bytes
    assert moved == pytest.approx(3 * (weights.bytes + 2 * weights.numel), rel=0.02)  # and one of them recomputed
