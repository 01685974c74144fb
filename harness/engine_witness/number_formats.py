# SPDX-License-Identifier: Apache-2.0
"""Number formats and their rounding."""

from __future__ import annotations

import torch

U32 = 2.0**-24
"""Unit roundoff of fp32, in which kernels compute."""


def roundoff_of(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number of this format; 0 for integers."""
    return float(torch.finfo(dtype).eps) / 2 if dtype.is_floating_point else 0.0


def widest_dtype(device: torch.device) -> torch.dtype:
    """fp64, or fp32 on a device that has none."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, TypeError):
        return torch.float32
    return torch.float64
