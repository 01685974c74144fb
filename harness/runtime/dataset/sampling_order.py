# SPDX-License-Identifier: Apache-2.0
"""The order of the rows of an epoch: pure functions of sizes, seed and epoch. `sampler.py` slices it into batches."""

from __future__ import annotations

import numpy as np

_WINDOW_BATCHES = 32
"""Global batches whose rows are sorted by length together: less padding, and still a random order."""


def shuffle_rows(count: int, seed: int | None, epoch: int) -> np.ndarray:
    """The epoch's permutation, a function of the seed and the epoch. `seed` None: as stored."""
    return np.arange(count) if seed is None else np.random.default_rng([seed, epoch]).permutation(count)


def mix_sources(sizes: list[int], shares: tuple[int, ...], seed: int | None, epoch: int) -> np.ndarray:
    """The epoch's rows, a share from each group: epoch after epoch the next part of the group's own order, so that
    training reads all of a large group in the end.
    """
    parts, offset = [], 0
    for group, (size, share) in enumerate(zip(sizes, shares, strict=True)):
        positions = np.arange(epoch * share, (epoch + 1) * share)
        passes = [
            _permute_source(size, seed, group, int(number))
            for number in range(positions[0] // size, positions[-1] // size + 1)
        ]
        rows = np.concatenate(passes)[positions - positions[0] // size * size]
        parts.append(rows + offset)
        offset += size
    order = np.concatenate(parts)
    if seed is None:  # as stored, the groups spread evenly
        places = np.concatenate([(np.arange(n) + 0.5) / n for n in shares])
        return order[np.argsort(places, kind="stable")]
    return order[np.random.default_rng([seed, epoch]).permutation(len(order))]


def _permute_source(size: int, seed: int | None, group: int, number: int) -> np.ndarray:
    return np.arange(size) if seed is None else np.random.default_rng([seed, group, number]).permutation(size)


def group_by_length(order: np.ndarray, lengths: np.ndarray, wave: int, total: int, seed: list[int]) -> np.ndarray:
    """The order, sorted inside windows so that the rows of a wave have about the same length.

    A wave is one micro-batch of every rank, which compute at once; a global batch of `total` rows is some waves. The
    waves are in random order.
    """
    window, whole = _WINDOW_BATCHES * total, len(order) // total * total
    rng = np.random.default_rng([*seed, 1])
    windows = [
        _sort_into_waves(order[start : min(whole, start + window)], lengths, wave, rng)
        for start in range(0, whole, window)
    ]
    return np.concatenate([*windows, order[whole:]])


def _sort_into_waves(rows: np.ndarray, lengths: np.ndarray, wave: int, rng: np.random.Generator) -> np.ndarray:
    waves = rows[np.argsort(lengths[rows], kind="stable")].reshape(-1, wave)
    return waves[rng.permutation(len(waves))].reshape(-1)
