"""Which documents are held out for evaluation. Decided by sizes alone, so that texts need not be there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class EvalSplit:
    """`chosen`: ascending indices of whole documents. `cut`: instead of any, the tail of this document is held out, of
    about `wanted` characters.
    """

    documents: np.ndarray
    cut_document: int | None = None
    cut_chars: float = 0.0


def split_eval(sizes: np.ndarray, fraction: float, seed: int, *, divisible: bool) -> EvalSplit:
    """Documents drawn by `seed` until they hold `fraction` of the characters; `sizes` counts those of each.

    Where every document is too large for that, or there is but one, the tail of one is held out; documents that are not
    `divisible`, such as chats, are held out whole, and a single one not at all. With `fraction` 0 nothing is.
    """
    none = np.empty(0, dtype=np.int64)
    if not fraction or not len(sizes):
        return EvalSplit(none)
    wanted, size, held = fraction * float(sizes.sum()), 0, list[int]()
    order = np.random.default_rng([seed, len(sizes)]).permutation(len(sizes))
    for start in range(0, len(order) if len(sizes) > 1 else 0, _CHUNK):
        drawn = order[start : start + _CHUNK]
        # A document is taken when that brings the held-out part nearer to what is wanted; so one giant cannot take all.
        for i, more in zip(drawn.tolist(), sizes[drawn].tolist(), strict=True):
            if size < wanted and size + more - wanted <= wanted - size and len(held) < len(sizes) - 1:
                held.append(i)
                size += more
        if size >= wanted:
            break
    if held:
        return EvalSplit(np.sort(np.array(held, dtype=np.int64)))
    if divisible:  # few and equal documents: each is more than twice what is wanted
        return EvalSplit(none, int(order[0]), wanted)
    return EvalSplit(order[:1] if len(sizes) > 1 else none)
