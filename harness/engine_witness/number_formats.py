# SPDX-License-Identifier: Apache-2.0
"""Number formats and their rounding."""

from __future__ import annotations

import torch

_CHUNK = 1 << 20
"""Elements. torch's norm on the CPU is 0.001 % too small for as many in fp32, and 4 % for a quarter of a billion."""
U32 = 2.0**-24
"""Unit roundoff of fp32, in which kernels compute."""


def roundoff_of(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of this format; 0 for integers."""
    return float(torch.finfo(dtype).eps) / 2 if dtype.is_floating_point else 0.0


def widest_dtype(device: torch.device) -> torch.dtype:
    """fp64, or fp32 on a device without fp64."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64


def sum_of_squares(tensor: torch.Tensor) -> torch.Tensor:
    """Squared norm of a tensor of any size and float format, a scalar on its device: fp64, or fp32 on a device without
    it. Holds no second tensor of that size.
    """
    widest, chunk = widest_dtype(tensor.device), _CHUNK if tensor.device.type == "cpu" else max(tensor.numel(), 1)
    norms = [torch.linalg.vector_norm(part, dtype=torch.float32) for part in tensor.reshape(-1).split(chunk)]
    return torch.stack(norms).to(widest).square().sum() if norms else torch.zeros((), dtype=widest)
