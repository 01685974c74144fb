# SPDX-License-Identifier: Apache-2.0
"""Products of tensor degree with pipeline stages or a sequence degree: what is accepted, which gate refuses the rest."""

from __future__ import annotations

from typing import Any

import pytest

from harness.check.check_file import check_file

MODEL = """
model:
  config: {model_type: llama, hidden_size: 64, intermediate_size: 128, num_hidden_layers: 6, num_attention_heads: 4,
    num_key_value_heads: 4, vocab_size: 320}
  tokenizer: bytes
data: {train: "builtin:python-docs"}
train: {max_steps: 1, per_device_train_batch_size: 1, gradient_accumulation_steps: 16}
"""


def errors(world_size: int, *overrides: str, **degrees: int) -> set[str]:
    """The gates that refuse a launch with these degrees."""
    text = MODEL + "zero: {stage: 1}\n"
    options = [*(f"parallel.{name}_parallel_size={degree}" for name, degree in degrees.items()), *overrides]
    findings: Any = check_file(
        "spec.yaml", text=text, world_size=world_size, overrides=options, launching=True
    ).report.findings
    return {finding.gate for finding in findings if finding.is_error}


@pytest.mark.parametrize(
    ("world_size", "tensor", "stages"), [(4, 2, 2), (8, 2, 2), (8, 2, 4), (8, 4, 2), (6, 2, 3), (12, 4, 3)]
)
def test_products_that_divide_the_ranks_are_accepted(world_size: int, tensor: int, stages: int) -> None:
    assert errors(world_size, tensor=tensor, pipeline=stages) == set()


@pytest.mark.parametrize("option", ["zero.stage=0", "zero.stage=3", "precision.bf16=true", "data.packing=true"])
def test_tensor_and_sequence_ranks_are_accepted(option: str) -> None:
    assert errors(8, option, tensor=2, sequence=2) == set()


@pytest.mark.parametrize("option", ["zero.stage=0", "precision.bf16=true", "zero.offload_optimizer.device=cpu"])
def test_settings_that_were_run_are_accepted(option: str) -> None:
    assert errors(4, option, tensor=2, pipeline=2) == set()


@pytest.mark.parametrize(
    ("gate", "world_size", "degrees", "option"),
    [
        ("PP018", 6, {"tensor": 3, "pipeline": 2}, "train.seed=1"),
        ("PP018", 8, {"tensor": 4, "pipeline": 2}, "model.config.vocab_size=322"),
        ("PP018", 8, {"tensor": 4, "pipeline": 2}, "model.config.num_key_value_heads=2"),
        ("PP019", 4, {"tensor": 2, "pipeline": 2}, "optimizer.type=muon"),
        ("PP001", 4, {"tensor": 2, "pipeline": 2}, "zero.stage=2"),
        ("PP016", 4, {"tensor": 2, "pipeline": 2}, "model.lora.r=8"),
        ("PP017", 4, {"tensor": 2, "pipeline": 2}, "zero.stage=0"),
        ("PP015", 4, {"tensor": 2, "pipeline": 2}, "parallel.pipeline_partition_method=type:GPT2Block"),
        ("SQ006", 8, {"tensor": 2, "pipeline": 2, "sequence": 2}, "train.seed=1"),
        ("SQ004", 8, {"tensor": 4, "sequence": 2}, "train.seed=1"),
        ("SQ004", 4, {"tensor": 2, "sequence": 2}, "model.config.num_key_value_heads=1"),
        ("TP018", 4, {"tensor": 2, "pipeline": 2}, "deepspeed.tensor_parallel.preset_model=llama"),
    ],
)
def test_what_is_not_built_is_refused(gate: str, world_size: int, degrees: dict[str, int], option: str) -> None:
    bf16 = ["precision.bf16=true"] if gate == "PP017" else []
    assert gate in errors(world_size, option, *bf16, **degrees)


def test_ranks_that_the_product_does_not_divide_are_refused() -> None:
    assert errors(6, tensor=2, pipeline=2)
