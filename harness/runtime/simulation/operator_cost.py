# SPDX-License-Identifier: Apache-2.0
"""Seconds of one operator by the planner's rates: matrix products and attention by their operations, others by bytes.

The operations are those of `torch.utils.flop_counter`, which has no products of experts; a causal attention has half
of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from harness.plan.simulation.clock_rates import ClockRates
from harness.runtime.simulation.memory_uses import IsPinned, MemoryUse, uses_of_operator

_READS_ROWS = ("embedding", "index", "index_select", "gather", "take")
"""Operators that read as many elements of their first input as they return."""
_WRITES_ONLY = ("copy_", "zero_", "fill_", "normal_", "uniform_")
"""Operators in place that read nothing of what they write."""


class OperatorWork(NamedTuple):
    """`place`: `stream`, `host`, `to device` or `to host`. `host_waits`: the host goes on when it is done."""

    place: str
    seconds: float
    host_waits: bool


class _Traits(NamedTuple):
    name: str
    formula: Any
    attention: str
    causal_argument: int
    reads_rows: bool
    reads_written: bool


def _count_grouped(rows: torch.Tensor, weights: torch.Tensor, *_: Any, **__: Any) -> int:
    """Operations of `_grouped_mm`: each row is multiplied with one expert."""
    return int(2 * rows.numel() * weights.shape[-1])


@cache
def _traits(func: Any) -> _Traits:
    name = func._schema.name.split("::")[1]
    formula = _count_grouped if name == "_grouped_mm" else flop_registry.get(func._overloadpacket)
    is_attention = formula is not None and "attention" in name
    arguments = [argument.name for argument in func._schema.arguments]
    return _Traits(
        name,
        formula,
        "" if not is_attention else "backward" if "backward" in name else "forward",
        arguments.index("is_causal") if "is_causal" in arguments else -1,
        name in _READS_ROWS,
        name.endswith("_") and name.removeprefix("_foreach_") not in _WRITES_ONLY,
    )


def work_of_operator(
    func: Any, args: Any, kwargs: dict[str, Any], out: Any, rates: ClockRates, byte_cost: float, is_pinned: IsPinned
) -> OperatorWork | None:
    """The work of an operator of torch; None for one without a kernel. `byte_cost`: seconds of a byte on the device."""
    uses, host_waits = uses_of_operator(func, args, kwargs, out, is_pinned)
    if not uses:
        return OperatorWork("stream", 0.0, True) if host_waits else None
    devices = {use.tensor.device.type for use in uses if use.tensor.dim() or use.tensor.device.type == "cuda"}
    traits = _traits(func)
    if "cuda" not in devices:
        return OperatorWork("host", _num_bytes(uses, traits, reads_lines=True) * rates.host_memory, host_waits)
    if len(devices) == 2 and traits.name in ("copy_", "_to_copy"):
        return _copy_between(uses, rates, host_waits)
    if traits.formula is not None:
        return OperatorWork("stream", _product_seconds(traits, args, kwargs, out, rates), host_waits)
    return OperatorWork("stream", _num_bytes(uses, traits) * byte_cost, host_waits)


def _copy_between(uses: list[MemoryUse], rates: ClockRates, host_waits: bool) -> OperatorWork:
    """A copy between host and device. From memory that is not page-locked the host waits for the staging."""
    target = next(use.tensor for use in uses if use.is_write)
    source = next((use.tensor for use in uses if not use.is_write), target)
    place = "to device" if target.device.type == "cuda" else "to host"
    is_staged = any(use.by_host for use in uses)
    return OperatorWork(place, source.numel() * source.element_size() * rates.pcie, host_waits or is_staged)


def _product_seconds(traits: _Traits, args: Any, kwargs: dict[str, Any], out: Any, rates: ClockRates) -> float:
    operations = traits.formula(*args, **kwargs, out_val=out)
    if not traits.attention:
        return float(operations * rates.matmul)
    number = traits.causal_argument
    is_causal = number >= 0 and (args[number] if number < len(args) else kwargs.get("is_causal", False))
    rate = rates.attention_forward if traits.attention == "forward" else rates.attention_backward
    return float(operations * rate) * (0.5 if is_causal else 1.0)


def _num_bytes(uses: list[MemoryUse], traits: _Traits, *, reads_lines: bool = False) -> int:
    """Bytes read and written: of a tensor that is expanded those of its storage at most. `reads_lines`: also those that
    are only written, as a CPU does.
    """
    result = 0
    largest_write = 0
    for tensor, is_write, _ in uses:
        size = min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
        if is_write:
            largest_write = max(largest_write, size)
            result += size * (2 if traits.reads_written or reads_lines else 1)
        elif not traits.reads_rows:
            result += size
    return result + (largest_write if traits.reads_rows else 0)
