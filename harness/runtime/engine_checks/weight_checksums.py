# SPDX-License-Identifier: Apache-2.0
"""Checksums of tensors that add up: the checksums of the ranks' shards sum to that of the whole weight.

So nothing is gathered, whatever cut the weight. A checksum has two sums over the bits of the values: a plain one, and
one weighted by the index in the whole (modulo 2^64), which depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import torch

MAX_ELEMENTS = 1 << 14
"""Elements of a tensor that are summed. Of a larger tensor, the first ones."""
Checksum = tuple[int, int]
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MODULUS = 1 << 64


def compute_checksum(part: torch.Tensor, start: int, strides: Sequence[int]) -> torch.Tensor:
    """The checksum of a part. In the whole its element (i, j ...) has index start + i * strides[0] + j * strides[1] ...

    int64, (2,), on the part's device; wraps around.
    """
    if not part.numel():
        return torch.zeros(2, dtype=torch.int64, device=part.device)
    bits = part.detach().contiguous().view(_BITS[part.element_size()]).to(torch.int64)
    total = bits.sum()
    weighted_sum = total * start
    if bits.dim() == 1:
        return torch.stack([total, weighted_sum + strides[0] * _dot_with_indices(bits)])
    for dim, stride in enumerate(strides):
        other_dims = [d for d in range(bits.dim()) if d != dim]
        sums = bits.sum(other_dims) if other_dims else bits
        weighted_sum = weighted_sum + stride * _dot_with_indices(sums)
    return torch.stack([total, weighted_sum])


def _dot_with_indices(values: torch.Tensor) -> torch.Tensor:
    """The dot product with the indices: 0 * first + 1 * second ..."""
    indices = (
        _cached_indices(values.device)[: len(values)]
        if len(values) <= MAX_ELEMENTS
        else torch.arange(len(values), device=values.device)
    )
    return torch.dot(values, indices) if values.device.type == "cpu" else (values * indices).sum()


@cache
def _cached_indices(device: torch.device) -> torch.Tensor:
    return torch.arange(MAX_ELEMENTS, device=device)


def num_checked_elements(shape: Sequence[int]) -> int:
    """The number of elements of a weight that are summed: whole rows, unless a row is longer than `MAX_ELEMENTS`."""
    numel = torch.Size(shape).numel()
    row = numel // shape[0] if numel else 0
    if numel <= MAX_ELEMENTS or row > MAX_ELEMENTS:
        return min(numel, MAX_ELEMENTS)
    return MAX_ELEMENTS // row * row


def compute_shard_checksum(shard: torch.Tensor, start: int, shape: Sequence[int]) -> torch.Tensor:
    """The checksum of a flat shard at offset `start` of a weight of this shape, without padding."""
    end = num_checked_elements(shape)
    return compute_checksum(shard.reshape(-1)[: max(0, end - start)], start, (1,))


def combine_checksums(sums: Iterable[Sequence[int]]) -> Checksum:
    """The checksum of the whole from those of its parts."""
    first, second = 0, 0
    for a, b in sums:
        first, second = (first + a) % _MODULUS, (second + b) % _MODULUS
    return first, second
