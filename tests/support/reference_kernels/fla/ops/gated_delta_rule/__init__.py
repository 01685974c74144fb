# SPDX-License-Identifier: Apache-2.0
"""The interface of `fla`'s gated delta rule for tests on a CPU: a recurrence, token by token, of each document alone.

It is written after the rule's formula and the arguments that `transformers` hands over, and is no copy of the package.
"""

from __future__ import annotations

from itertools import pairwise

import torch


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None]:
    """`q`, `k`, `v`: (rows, length, heads, width); `g` (a logarithm) and `beta`: (rows, length, heads)."""
    assert initial_state is None
    assert not output_final_state
    borders = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    assert cu_seqlens is None or len(q) == 1
    groups = v.shape[2] // q.shape[2]
    q, k = (t.repeat_interleave(groups, dim=2) for t in (q, k))
    if use_qk_l2norm_in_kernel:
        q, k = (t * torch.rsqrt((t * t).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q = q * q.shape[-1] ** -0.5
    outs = []
    for first, last in pairwise(borders):
        state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=v.dtype)
        for t in range(first, last):
            state = state * g[:, t].exp()[..., None, None]
            update = (v[:, t] - (state * k[:, t][..., None]).sum(-2)) * beta[:, t][..., None]
            state = state + k[:, t][..., None] * update[..., None, :]
            outs.append((state * q[:, t][..., None]).sum(-2))
    return torch.stack(outs, dim=1), None


def fused_recurrent_gated_delta_rule(*_: object, **__: object) -> None:
    """Decoding is not tested."""
    raise NotImplementedError
