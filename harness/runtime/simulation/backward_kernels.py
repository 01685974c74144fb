# SPDX-License-Identifier: Apache-2.0
"""Operators that are one kernel on CUDA, and that a torch without CUDA composes of others before anything sees them."""

from __future__ import annotations

from typing import Any

import torch

COMPOSED = ("silu_backward", "mish_backward")
"""Those of torch 2.13 that have a kernel for CPU and CUDA and a composition for all other devices, and a backward pass:
the composition of `silu_backward` allocates its output five times.
"""
_LIBRARY: Any = torch.library.Library("aten", "IMPL")


def register_backward_kernels() -> None:
    """Name a kernel for CUDA, which is never called: fake tensors answer before it."""
    for name in COMPOSED:
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"):
            _LIBRARY.impl(name, _never_called, "CUDA")


def _never_called(*_: Any) -> Any:
    raise AssertionError("a kernel of the simulated device was called")
