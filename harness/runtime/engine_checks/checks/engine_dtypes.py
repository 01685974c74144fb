# SPDX-License-Identifier: Apache-2.0
"""AT005: number formats of parameters, masters, accumulated gradients and communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from harness.runtime.engine_checks.engine_check import (
    CheckResult,
    EngineCheck,
    check_failed,
    check_passed,
    format_value,
)
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.model_weights import master_weights, numel_of
from harness.runtime.engine_checks.observations import Observations
from harness.runtime.models.quantized_base import quantized_layers


def _observe(observations: Observations) -> Any:
    engine, optimizer = observations.engine, observations.engine.optimizer
    counts: Counter[str] = Counter()
    in_4_bits = {id(layer.weight) for layer in quantized_layers(engine.module)}
    for parameter in engine.module.parameters():
        if id(parameter) in in_4_bits:
            continue
        counts[_dtype_name(parameter.dtype)] += numel_of(parameter)
    has_autocast = hasattr(type(engine), "torch_autocast_enabled")  # from 0.17.2 on
    autocast = (
        _dtype_name_or_none(engine.torch_autocast_dtype()) or "any"
        if has_autocast and engine.torch_autocast_enabled()
        else None
    )
    return {
        "weights": dict(counts),
        "masters": sorted({_dtype_name(m.dtype) for m in master_weights(engine) if m.numel()}),
        "accumulation": _dtype_name_or_none(getattr(optimizer, "gradient_accumulation_dtype", None)),
        "communication": _dtype_name_or_none(engine.communication_data_type),
        "autocast": autocast,
    }


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_name_or_none(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else _dtype_name(dtype)


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    counts: Counter[str] = Counter()
    for values in rank_values:
        counts.update(values["weights"])
    main_dtype = max(counts, key=lambda name: counts[name])
    if main_dtype != expected.dtype or set(counts) - {expected.dtype, "float32"}:  # some are kept in fp32 on purpose
        return check_failed(
            f"weights are in {format_value(list(counts))}, most should be in {format_value(expected.dtype)}",
            dict(counts),
        )
    for values in rank_values:
        difference = _find_difference(expected, values)
        if difference:
            return check_failed(difference, values)
    return check_passed(rank_values[0])


def _find_difference(expected: ExpectedSettings, values: dict[str, Any]) -> str:
    if values["masters"] and expected.master_dtype not in values["masters"]:
        formats, master_dtype = format_value(values["masters"]), format_value(expected.master_dtype)
        return f"master weights are in {formats}, should be in {master_dtype}"
    for name, dtype in (("accumulation", expected.accumulation_dtype), ("communication", expected.communication_dtype)):
        if dtype is not None and values[name] not in (None, dtype):
            return f"gradients' {name} is in {format_value(values[name])}, should be in {format_value(dtype)}"
    autocast, dtype = values["autocast"], expected.autocast_dtype
    if autocast == dtype or (autocast and dtype and "any" in (autocast, dtype)):
        return ""
    return f"`torch_autocast` is {format_value(autocast)}, should be {format_value(dtype)}"


CHECK = EngineCheck(
    id="AT005",
    name="another-number-format",
    question="are weights, masters, accumulated gradients and communication in the formats of the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="precision",
    gates=("PR004", "PR024"),
    fix="switch the format on by `precision.bf16: true` or `precision.fp16: true`, as a boolean",
)
