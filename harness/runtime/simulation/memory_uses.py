# SPDX-License-Identifier: Apache-2.0
"""Reads and writes of an operator: by its kernel on the stream, or by the host; and whether the host waits for it.

By the schema of the operator, and by what torch does with copies (aten/src/ATen/native/cuda/Copy.cu).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_iter

_aten: Any = torch.ops.aten
_COPIES = (_aten.copy_.default, _aten._to_copy.default)
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
_NO_KERNEL = ("empty", "new_empty", "record_stream", "is_pinned")
READ_OPERANDS = {
    **dict.fromkeys(("adam_update", "adam_update_in_one_pass", "lion_update", "adagrad_update"), (1,)),
    "adam_update_beside": (0, 1, 2, 3),
}
"""Of DeepSpeed's compiled functions: which of their tensors are only read (the gradients); the others are written."""
IsPinned = Callable[[torch.Tensor], bool]


class MemoryUse(NamedTuple):
    """An access to the bytes of a tensor, by the host itself or on the operator's stream."""

    tensor: torch.Tensor
    is_write: bool
    by_host: bool


class OperatorUses(NamedTuple):
    """All accesses of an operator. `host_waits`: it returns only when the stream has come so far."""

    uses: list[MemoryUse]
    host_waits: bool = False


_NOTHING = OperatorUses([])


def uses_of_operator(func: Any, args: Any, kwargs: dict[str, Any], out: Any, is_pinned: IsPinned) -> OperatorUses:
    """The accesses of an operator of torch: none for one that makes a view or changes shapes only."""
    traits = _traits(func)
    if not traits.has_kernel:
        return _NOTHING
    written = {id(t) for value in _written_arguments(traits, args, kwargs) for t in tree_iter(value)}
    inputs = _tensors((args, kwargs))
    outputs = [] if written else _tensors(out)
    if outputs and not written:
        storages = {t.untyped_storage()._cdata for t in inputs}
        if traits.returns_view or all(t.untyped_storage()._cdata in storages for t in outputs):
            return _NOTHING
    if traits.reads_no_input and not written:
        inputs = []
    accesses = [(t, id(t) in written) for t in inputs] + [(t, True) for t in outputs]
    if not any(t.fake_device.type == "cuda" for t, _ in accesses):
        return OperatorUses([MemoryUse(t, is_write, by_host=True) for t, is_write in accesses])
    if func in _COPIES and any(t.fake_device.type == "cpu" for t, _ in accesses):
        return _uses_of_copy(func, args, kwargs, accesses, is_pinned)
    uses = [MemoryUse(t, is_write, t.fake_device.type == "cpu") for t, is_write in accesses]
    return OperatorUses(uses, _waits_for_values(traits, args))


def _uses_of_copy(
    func: Any, args: Any, kwargs: dict[str, Any], accesses: list[tuple[FakeTensor, bool]], is_pinned: IsPinned
) -> OperatorUses:
    """A copy between host and device. One that does not block is asynchronous if the host's memory is page-locked and
    contiguous; from other memory it is staged before the call returns, and to other memory the call waits.
    """
    does_block = not (kwargs.get("non_blocking") or (func is _aten.copy_.default and len(args) > 2 and args[2]))
    host, host_writes = next((t, is_write) for t, is_write in accesses if t.fake_device.type == "cpu")
    is_direct = is_pinned(host) and host.is_contiguous()
    is_staged = not does_block and not is_direct and not host_writes
    uses = [MemoryUse(t, is_write, is_staged and t is host) for t, is_write in accesses]
    return OperatorUses(uses, does_block or (host_writes and not is_direct))


class _Traits(NamedTuple):
    has_kernel: bool
    returns_view: bool
    reads_no_input: bool
    written: tuple[tuple[int, str], ...]
    needs_values: bool
    indexes: bool


@cache
def _traits(func: Any) -> _Traits:
    schema = func._schema
    name = schema.name.split("::")[1]
    written = tuple(
        (number, argument.name)
        for number, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    indexes = name in _INDEXING
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
    return _Traits(
        has_kernel=func.namespace != "prim"
        and torch.Tag.inplace_view not in func.tags
        and not name.startswith(_NO_KERNEL),
        returns_view=not written and any(value.alias_info is not None for value in schema.returns),
        reads_no_input=name.endswith("_like") or name.startswith("new_"),
        written=written,
        needs_values=bool(tags) and not indexes,
        indexes=indexes,
    )


def _written_arguments(traits: _Traits, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    for number, name in traits.written:
        if number < len(args):
            yield args[number]
        elif name in kwargs:
            yield kwargs[name]


def _waits_for_values(traits: _Traits, args: Any) -> bool:
    """Does the operator return values or a shape that depends on them? Boolean indices are counted first."""
    return traits.needs_values or (
        traits.indexes
        and any(t.dtype in (torch.bool, torch.uint8) for t in tree_iter(args[1]) if isinstance(t, torch.Tensor))
    )


def _tensors(values: Any) -> list[FakeTensor]:
    return [t for t in tree_iter(values) if isinstance(t, FakeTensor) and t.fake_device.type in ("cpu", "cuda")]


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte, and the one after the last, of the tensor's elements in its storage."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    if tensor.numel() == 0:
        return first, first
    last = sum((int(n) - 1) * int(stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size
