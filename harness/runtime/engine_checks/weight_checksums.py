"""Checksums of tensors that add up: a rank sums what it holds of a weight, and the ranks' sums are that of the whole.

So nothing is gathered, whatever cut the weight: a sum over the bits of the values, and one in which each counts as
often as its place in the whole says (modulo 2^64), which tells an order from another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import torch

MAX_ELEMENTS = 1 << 14
"""Elements of a tensor that are looked at: of larger ones those at the beginning."""
Checksum = tuple[int, int]
EMPTY_CHECKSUM: Checksum = (0, 0)
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MODULUS = 1 << 64


def compute_checksum(part: torch.Tensor, begin: int, strides: Sequence[int]) -> torch.Tensor:
    """Of a part whose element at (i, j ...) is element begin + i * strides[0] + j * strides[1] ... of the whole.

    int64, (2,), on the part's device; wraps around.
    """
    if not part.numel():
        return torch.zeros(2, dtype=torch.int64, device=part.device)
    bits = part.detach().contiguous().view(_BITS[part.element_size()]).to(torch.int64)
    total = bits.sum()
    placed = total * begin
    if bits.dim() == 1:
        return torch.stack([total, placed + strides[0] * _dot_with_indices(bits)])
    for dim, stride in enumerate(strides):
        others = [d for d in range(bits.dim()) if d != dim]
        line = bits.sum(others) if others else bits
        placed = placed + stride * _dot_with_indices(line)
    return torch.stack([total, placed])


def _dot_with_indices(line: torch.Tensor) -> torch.Tensor:
    """Of integers with their places: 0 * first + 1 * second ..."""
    places = (
        _cached_indices(line.device)[: len(line)]
        if len(line) <= MAX_ELEMENTS
        else torch.arange(len(line), device=line.device)
    )
    return torch.dot(line, places) if line.device.type == "cpu" else (line * places).sum()


@cache
def _cached_indices(device: torch.device) -> torch.Tensor:
    return torch.arange(MAX_ELEMENTS, device=device)


def num_checked_elements(shape: Sequence[int]) -> int:
    """How many elements of a weight of this shape are looked at: whole rows, where a row is no longer than `MOST`."""
    numel = torch.Size(shape).numel()
    row = numel // shape[0] if numel else 0
    if numel <= MAX_ELEMENTS or row > MAX_ELEMENTS:
        return min(numel, MAX_ELEMENTS)
    return MAX_ELEMENTS // row * row


def compute_shard_checksum(shard: torch.Tensor, begin: int, shape: Sequence[int]) -> torch.Tensor:
    """Of a flat shard that begins at `begin` of a weight of this shape, as far as `reach`; without padding."""
    end = num_checked_elements(shape)
    return compute_checksum(shard.reshape(-1)[: max(0, end - begin)], begin, (1,))


def combine_checksums(sums: Iterable[Sequence[int]]) -> Checksum:
    """The sum of the whole from those of its parts."""
    first, second = 0, 0
    for a, b in sums:
        first, second = (first + a) % _MODULUS, (second + b) % _MODULUS
    return first, second
