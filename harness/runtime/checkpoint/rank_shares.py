# SPDX-License-Identifier: Apache-2.0
"""Work divided over the ranks, so that all have about the same to read or to write."""

from __future__ import annotations

from collections.abc import Iterable


def divide_over_ranks(loads: Iterable[tuple[str, int]], world_size: int) -> list[list[str]]:
    """Names by rank. `loads`: names with their load, the largest first; each goes to the rank with the least so far."""
    totals = [0] * world_size
    shares: list[list[str]] = [[] for _ in range(world_size)]
    for name, load in loads:
        rank = totals.index(min(totals))
        totals[rank] += load
        shares[rank].append(name)
    return shares
