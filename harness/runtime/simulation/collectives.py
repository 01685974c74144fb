# SPDX-License-Identifier: Apache-2.0
"""Numbers collectives, to match the operator that begins one with the handle that is waited for."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.utils._pytree import tree_iter

_dist: Any = torch._C._distributed_c10d
_numbers = itertools.count(1)
_handles: dict[int, tuple[Any, int]] = {}
"""By the address of the handle: the handle, which is kept so that no other gets its address, and its number."""


def number_collective(out: Any) -> int:
    """A number for the collective whose operator returned `out`."""
    number = next(_numbers)
    for value in tree_iter(out):
        if isinstance(value, torch.ScriptObject):
            handle = _dist.Work.unbox(value)
            _handles[id(handle)] = handle, number
    return number


def find_number(handle: Any) -> int | None:
    """The number of the collective that the handle stands for; None for a handle that no operator returned."""
    entry = _handles.get(id(handle))
    return None if entry is None else entry[1]


def find_group(args: Any) -> Any:
    """The process group among the arguments of a collective, or None."""
    for value in args:
        kind: Any = value._type() if isinstance(value, torch.ScriptObject) else None
        if kind is not None and kind.name() == "ProcessGroup":
            return _dist.ProcessGroup.unbox(value)
    return None


def group_of(args: Any) -> str:
    """The name of the process group among the arguments of a collective."""
    group = find_group(args)
    return "" if group is None else str(group.group_name)


def is_async_collective(func: Any, args: Any) -> bool:
    """Does the caller go on before the collective is done? Then it runs on a stream of its group."""
    names = [argument.name for argument in func._schema.arguments]
    number = names.index("async_op") if "async_op" in names else len(args)
    return bool(args[number] if number < len(args) else "async_op" in names)
