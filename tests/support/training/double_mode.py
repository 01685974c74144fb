# SPDX-License-Identifier: Apache-2.0
"""Whatever code says, in fp64: for two programs that are to agree up to the rounding of fp64. Imports nothing of the
harness, so that it runs in TRL's environment, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@contextmanager
def double_mode() -> Iterator[None]:
    """In this context each operation that is asked for fp32, by a cast or by the default, makes fp64 instead. One that
    makes another floating format all the same raises TypeError: nothing is rounded more coarsely in silence.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _DoubleMode():
            yield
    finally:
        torch.set_default_dtype(before)


class _DoubleMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(torch.float64 if one is torch.float32 else one for one in args)
        kwargs = {key: torch.float64 if one is torch.float32 else one for key, one in (kwargs or {}).items()}
        result = func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default and result.dtype == torch.float32:  # numbers of the data
            result = result.double()
        for made in tree_leaves(result):
            if isinstance(made, torch.Tensor) and made.is_floating_point() and made.dtype != torch.float64:
                raise TypeError(f"{func} makes {made.dtype}")
        return result


def project_gradients(gradients: dict[str, torch.Tensor]) -> list[list[float]]:
    """(norm, product with drawn signs) of each parameter's gradient, by name. A gradient that differs anywhere has
    another product.
    """
    rows = []
    for name in sorted(gradients):
        gradient = gradients[name].double().flatten()
        drawn = torch.randint(2, gradient.shape, generator=torch.Generator().manual_seed(gradient.numel())) * 2 - 1
        rows.append([gradient.norm().item(), (gradient * drawn).sum().item()])
    return rows
