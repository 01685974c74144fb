# SPDX-License-Identifier: Apache-2.0
"""The interface of `causal_conv1d` for tests on a CPU: one document after the other by `conv1d` of torch.

It is written after the arguments that `transformers` hands over, and is no copy of the package.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    seq_idx: torch.Tensor | None = None,
    activation: str | None = None,
) -> torch.Tensor:
    """`x`: (rows, channels, length); `seq_idx`: (rows, length), the document of each position."""
    if seq_idx is None:
        parts = [x]
    else:
        assert len(x) == 1
        parts = list(x.split(torch.bincount(seq_idx[0].long()).tolist(), dim=2))
    width = weight.shape[-1]
    outs = [
        functional.conv1d(functional.pad(p, (width - 1, 0)), weight.unsqueeze(1), bias, groups=x.shape[1])
        for p in parts
    ]
    out = torch.cat(outs, dim=2)
    return functional.silu(out) if activation in ("silu", "swish") else out
