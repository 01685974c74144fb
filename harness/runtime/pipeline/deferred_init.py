"""A model created in the order of random numbers of the plain way, of which only the wanted weights take memory.

`transformers` builds and initialises as always, under a mode that makes every new weight an empty (meta) tensor and
notes what is done to it. Random numbers are drawn into a tensor that is thrown away, so that the generator moves on as
it would. A wanted weight is made later, by repeating what was noted from the generator states of that time: bit for bit
the weight that the whole model would have, at the peak of one weight of memory.
"""

from __future__ import annotations

from collections import defaultdict
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
    """An in-place operation on (a view of) a weight; `state` is the generator's before it, None if it draws nothing."""

    operation: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    view: tuple[tuple[int, ...], tuple[int, ...], int]
    generator_state: torch.Tensor | None


class DeferredInit(TorchDispatchMode):
    """While entered, new weights are empty. `draw=False`: they will be loaded, so that no random number is needed."""

    def __init__(self, draw_random: bool) -> None:
        super().__init__()
        self._draw_random = draw_random
        self._recorded_ops: dict[int, list[_RecordedOp]] = defaultdict(list)
        self._kept_storages: list[torch.UntypedStorage] = []

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every operation."""
        options = options or {}
        on_host = torch.device(options.get("device") or "cpu").type == "cpu"
        if on_host and operation is torch.ops.aten.empty.memory_format:
            made = operation(*arguments, **{**options, "device": "meta"})
            self._kept_storages.append(made.untyped_storage())  # while it lives, no other storage has its address
            return made
        target = arguments[0] if arguments else None
        if isinstance(target, torch.Tensor) and target.is_meta and operation._schema.is_mutable:
            self._record_op(operation, target, arguments[1:], options)
            return target
        return operation(*arguments, **options)

    def _record_op(
        self, operation: Any, target: torch.Tensor, arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        random = torch.Tag.nondeterministic_seeded in operation.tags
        if random and not self._draw_random:
            return
        state = torch.get_rng_state() if random else None
        if random:
            operation(torch.empty(target.shape, dtype=target.dtype), *arguments, **options)
        view = (tuple(target.shape), tuple(target.stride()), target.storage_offset())
        deeds = self._recorded_ops[target.untyped_storage()._cdata]
        if (
            operation in _OVERWRITING_OPS
            and target.numel() == target.untyped_storage().nbytes() // target.element_size()
        ):
            deeds.clear()  # such as what the module's constructor had drawn
        deeds.append(_RecordedOp(operation, arguments, options, view, state))

    def materialize(self, module: torch.nn.Module) -> None:
        """Give the module's empty weights memory and the values that they would have; leaves the generator as it is."""
        now = torch.get_rng_state()
        for owner in module.modules():
            for name, parameter in list(owner.named_parameters(recurse=False)):
                if parameter.is_meta:
                    made = torch.nn.Parameter(self._replay_ops(parameter), requires_grad=parameter.requires_grad)
                    setattr(owner, name, made)
        torch.set_rng_state(now)

    def _replay_ops(self, empty: torch.Tensor) -> torch.Tensor:
        made = torch.empty(empty.shape, dtype=empty.dtype)
        for deed in self._recorded_ops[empty.untyped_storage()._cdata]:
            if deed.generator_state is not None:
                torch.set_rng_state(deed.generator_state)
            deed.operation(made.as_strided(*deed.view), *deed.arguments, **deed.options)
        return made
