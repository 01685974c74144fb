"""AT005: number formats of parameters, masters, accumulated gradients and communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

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


def _observe(seen: Observations) -> Any:
    engine, optimizer = seen.engine, seen.engine.optimizer
    counts: Counter[str] = Counter()
    for parameter in engine.module.parameters():
        counts[_dtype_name(parameter.dtype)] += numel_of(parameter)
    autocast = _dtype_name(engine.torch_autocast_dtype()) or "any" if engine.torch_autocast_enabled() else None
    return {
        "weights": dict(counts),
        "masters": sorted({_dtype_name(m.dtype) for m in master_weights(engine) if m.numel()}),
        "accumulation": _dtype_name(getattr(optimizer, "gradient_accumulation_dtype", None)),
        "communication": _dtype_name(engine.communication_data_type),
        "autocast": autocast,
    }


def _dtype_name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    counts: Counter[str] = Counter()
    for has in found:
        counts.update(has["weights"])
    most = max(counts, key=lambda name: counts[name])
    if most != asked.dtype or set(counts) - {asked.dtype, "float32"}:  # some are kept in fp32 on purpose
        return check_failed(
            f"weights are in {format_value(list(counts))}, most should be in {format_value(asked.dtype)}", dict(counts)
        )
    for has in found:
        wrong = _find_difference(asked, has)
        if wrong:
            return check_failed(wrong, has)
    return check_passed(found[0])


def _find_difference(asked: ExpectedSettings, has: dict[str, Any]) -> str:
    if has["masters"] and asked.master_dtype not in has["masters"]:
        return f"master weights are in {format_value(has['masters'])}, should be in {format_value(asked.master_dtype)}"
    for name, wanted in (("accumulation", asked.accumulation_dtype), ("communication", asked.communication_dtype)):
        if wanted is not None and has[name] not in (None, wanted):
            return f"gradients' {name} is in {format_value(has[name])}, should be in {format_value(wanted)}"
    mine, wanted = has["autocast"], asked.autocast_dtype
    if mine == wanted or (mine and wanted and "any" in (mine, wanted)):
        return ""
    return f"`torch_autocast` is {format_value(mine)}, should be {format_value(wanted)}"


CHECK = EngineCheck(
    id="AT005",
    name="another-number-format",
    question="are weights, masters, accumulated gradients and messages in the formats that are asked for?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="precision",
    gates=("PR004", "PR024"),
    fix="switch the format on by `precision.bf16: true` or `precision.fp16: true`, as a boolean",
)
