# SPDX-License-Identifier: Apache-2.0
"""A model created with the random numbers of the plain way, of which only this stage's weights take memory.

`transformers` builds and initialises as always, under a mode that makes every new weight an empty (meta) tensor and
records the operations on it. Random numbers are drawn into a temporary tensor, so that the generator advances as it
would. A weight of this stage is materialized later, by replaying its operations from the recorded generator states: bit
for bit the weight of the whole model, at the peak memory of one weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OVERWRITING_OPS = (
    torch.ops.aten.normal_.default,
    torch.ops.aten.uniform_.default,
    torch.ops.aten.zero_.default,
    torch.ops.aten.fill_.Scalar,
    torch.ops.aten.copy_.default,
)


@dataclass(frozen=True, slots=True)
class _RecordedOp:
    """An in-place operation on (a view of) a weight; `generator_state` is from before it, None if it is not random."""

    operation: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    view: tuple[tuple[int, ...], tuple[int, ...], int]
    generator_state: torch.Tensor | None


class DeferredInit(TorchDispatchMode):
    """In this mode new weights are empty. `draw_random=False`: they will be loaded, and need no random numbers."""

    def __init__(self, draw_random: bool) -> None:
        TorchDispatchMode.__init__(self)
        self._draw_random = draw_random
        self._recorded_ops: dict[int, list[_RecordedOp]] = defaultdict(list)
        self._kept_storages: list[torch.UntypedStorage] = []

    def __torch_dispatch__(
        self,
        operation: Any,
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
    ) -> Any:
        """Called by torch for every operation."""
        options = options or {}
        on_host = torch.device(options.get("device") or "cpu").type == "cpu"
        if on_host and operation is torch.ops.aten.empty.memory_format:
            weight = operation(*arguments, **{**options, "device": "meta"})
            self._kept_storages.append(weight.untyped_storage())  # while it lives, no other storage has its address
            return weight
        target = arguments[0] if arguments else None
        if isinstance(target, torch.Tensor) and target.is_meta and operation._schema.is_mutable:
            self._record_op(operation, target, arguments[1:], options)
            return target
        return operation(*arguments, **options)

    def _record_op(
        self,
        operation: Any,
        target: torch.Tensor,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        is_random = torch.Tag.nondeterministic_seeded in operation.tags
        if is_random and not self._draw_random:
            return
        state = torch.get_rng_state() if is_random else None
        if is_random:
            operation(torch.empty(target.shape, dtype=target.dtype), *arguments, **options)
        view = (tuple(target.shape), tuple(target.stride()), int(target.storage_offset()))
        recorded_ops = self._recorded_ops[target.untyped_storage()._cdata]
        if (
            operation in _OVERWRITING_OPS
            and target.numel() == target.untyped_storage().nbytes() // target.element_size()
        ):
            recorded_ops.clear()  # such as what the module's constructor had drawn
        recorded_ops.append(_RecordedOp(operation, arguments, options, view, state))

    def materialize(self, module: torch.nn.Module) -> None:
        """Give the module's empty weights memory and their initial values; the generator stays as it is."""
        rng_state = torch.get_rng_state()
        for owner in module.modules():
            for name, parameter in list(owner.named_parameters(recurse=False)):
                if parameter.is_meta:
                    weight = torch.nn.Parameter(self._replay_ops(parameter), requires_grad=parameter.requires_grad)
                    setattr(owner, name, weight)
        torch.set_rng_state(rng_state)

    def _replay_ops(self, empty: torch.Tensor) -> torch.Tensor:
        weight = torch.empty(empty.shape, dtype=empty.dtype)
        for op in self._recorded_ops[empty.untyped_storage()._cdata]:
            if op.generator_state is not None:
                torch.set_rng_state(op.generator_state)
            op.operation(weight.as_strided(*op.view), *op.arguments, **op.options)
        return weight
