"""AT005: number formats of parameters, masters, accumulated gradients and communication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds, show
from harness.runtime.attest.seen import Seen
from harness.runtime.attest.weights import masters, numel_of


def _look(seen: Seen) -> Any:
    engine, optimizer = seen.engine, seen.engine.optimizer
    counts: Counter[str] = Counter()
    for parameter in engine.module.parameters():
        counts[_name(parameter.dtype)] += numel_of(parameter)
    autocast = _name(engine.torch_autocast_dtype()) or "any" if engine.torch_autocast_enabled() else None
    return {
        "weights": dict(counts),
        "masters": sorted({_name(m.dtype) for m in masters(engine) if m.numel()}),
        "accumulation": _name(getattr(optimizer, "gradient_accumulation_dtype", None)),
        "communication": _name(engine.communication_data_type),
        "autocast": autocast,
    }


def _name(dtype: Any) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    counts: Counter[str] = Counter()
    for has in found:
        counts.update(has["weights"])
    most = max(counts, key=lambda name: counts[name])
    if most != asked.dtype or set(counts) - {asked.dtype, "float32"}:  # some are kept in fp32 on purpose
        return differs(f"weights are in {show(list(counts))}, most should be in {show(asked.dtype)}", dict(counts))
    for has in found:
        wrong = _wrong(asked, has)
        if wrong:
            return differs(wrong, has)
    return holds(found[0])


def _wrong(asked: Asked, has: dict[str, Any]) -> str:
    if has["masters"] and asked.master not in has["masters"]:
        return f"master weights are in {show(has['masters'])}, should be in {show(asked.master)}"
    for name, wanted in (("accumulation", asked.accumulation_dtype), ("communication", asked.communication_dtype)):
        if wanted is not None and has[name] not in (None, wanted):
            return f"gradients' {name} is in {show(has[name])}, should be in {show(wanted)}"
    mine, wanted = has["autocast"], asked.autocast
    if mine == wanted or (mine and wanted and "any" in (mine, wanted)):
        return ""
    return f"`torch_autocast` is {show(mine)}, should be {show(wanted)}"


CLAIM = Claim(
    id="AT005",
    name="another-number-format",
    question="are weights, masters, accumulated gradients and messages in the formats that are asked for?",
    moment="built",
    look=_look,
    judge=_judge,
    key="precision",
    gates=("PR004", "PR024"),
    fix="switch the format on by `precision.bf16: true` or `precision.fp16: true`, as a boolean",
)
