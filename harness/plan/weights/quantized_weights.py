# SPDX-License-Identifier: Apache-2.0
"""The 4-bit weights of `model.quantization`: which parameters bitsandbytes quantizes, and the bytes of each.

`transformers` puts a `Linear4bit` into the place of every linear layer but the head. The bytes are those of the tensors
of a real `Params4bit` and its `QuantState` (tests/training/plan/test_quantized_bytes.py). No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.facts.model_facts import ModelFacts
from harness.facts.model_parts import Parameter
from harness.spec.sections.model_spec import QuantizationSpec
from harness.units import format_bytes

BLOCK_SIZE = 64
"""Weights that share a scale: the default of bitsandbytes, which `transformers` leaves."""
_SCALES_PER_BLOCK = 256
"""Scales that share one of their own, with double quantization."""
_VALUES_OF_4_BITS = 16
_VALUES_OF_8_BITS = 256
_FP32 = 4
_MATRIX = 2


class QuantizedWeights(NamedTuple):
    """The elements of the 4-bit weights, their bytes with all scales, and the elements of the largest."""

    numel: int = 0
    bytes: int = 0
    largest: int = 0


NONE_QUANTIZED = QuantizedWeights()


def count_quantized(
    frozen: Iterable[Parameter], model: ModelFacts, quantization: QuantizationSpec | None
) -> QuantizedWeights:
    """The quantized ones among the frozen parameters; nothing without `model.quantization`."""
    if quantization is None:
        return NONE_QUANTIZED
    sizes = [parameter.numel for parameter in frozen if is_quantized(parameter, model)]
    total = sum(quantized_bytes(size, quantization) for size in sizes)
    return QuantizedWeights(sum(sizes), total, max(sizes, default=0))


def is_quantized(parameter: Parameter, model: ModelFacts) -> bool:
    """Is it the weight of a linear layer inside the decoder layers? The stacked weights of experts are not."""
    is_inside = parameter.name.startswith(f"{model.layer_path}.")
    return is_inside and len(parameter.shape) == _MATRIX and parameter.name.endswith(".weight")


def bytes_with_experts(model: ModelFacts, quantization: QuantizationSpec, width: int) -> int:
    """All weights where a program quantizes every matrix of the layers, stacked experts too; others of `width`."""
    inside = f"{model.layer_path}."
    return sum(
        quantized_bytes(each.numel, quantization)
        if each.name.startswith(inside) and len(each.shape) >= _MATRIX
        else width * each.numel
        for each in model.parameters()
    )


def describe_fsdp(weights: int, gpus: int) -> str:
    """The way of dividing 4-bit weights of so many bytes, which the harness does not have; one GPU is shown as two."""
    gpus = max(2, gpus)
    each = format_bytes(weights / gpus)
    return f"QLoRA with FSDP in another trainer (`bnb_4bit_quant_storage`), {each} of them on each of {gpus:,} GPUs"


def quantized_bytes(numel: int, quantization: QuantizationSpec) -> int:
    """Bytes of a weight of so many elements in 4 bits: two in a byte, the scales of its blocks, a table of values.

    Double quantization has 8 bits a scale, an fp32 scale for 256 of them, their mean, and a table of their values.
    """
    weights, blocks = -(-numel // 2), -(-numel // BLOCK_SIZE)
    table = _FP32 * _VALUES_OF_4_BITS
    if not quantization.bnb_4bit_use_double_quant:
        return weights + _FP32 * blocks + table
    scales = blocks + _FP32 * (-(-blocks // _SCALES_PER_BLOCK) + 1)
    return weights + scales + table + _FP32 * _VALUES_OF_8_BITS
