# SPDX-License-Identifier: Apache-2.0
"""Allocations of a piece of work on torch's devices, counted by its storages: the same on every machine. No tests here."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes at once of the storages that `work` allocates."""
    now = most = 0
    seen: set[int] = set()

    def gone(key: int, size: int) -> None:
        nonlocal now
        now -= size
        seen.discard(key)

    class Follow(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal now, most
            given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            out = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(out):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in seen | given:
                    storage = tensor.untyped_storage()
                    seen.add(storage._cdata)
                    now += storage.nbytes()
                    most = max(most, now)
                    weakref.finalize(storage, gone, storage._cdata, storage.nbytes())
            return out

    with Follow():
        work()
    return most
