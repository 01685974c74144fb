# SPDX-License-Identifier: Apache-2.0
"""The documents held out for evaluation, a function of their sizes alone: the texts are not needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class EvalSplit:
    """`documents`: ascending indices of whole documents. `cut_document`: instead of these, the tail of one document, of
    about `cut_chars` characters.
    """

    documents: np.ndarray
    cut_document: int | None = None
    cut_chars: float = 0.0


def split_eval(sizes: np.ndarray, fraction: float, seed: int, *, divisible: bool) -> EvalSplit:
    """A random sample of documents with `fraction` of the characters; `sizes` counts those of each.

    Where every document is too large for that, or there is only one, the split holds out the tail of one; documents
    that are not `divisible`, such as chats, are held out whole, and a single one not at all. `fraction` 0 holds out
    nothing. Of packed texts only a single one is divisible.
    """
    none = np.empty(0, dtype=np.int64)
    if not fraction or not len(sizes):
        return EvalSplit(none)
    target, size, documents = fraction * float(sizes.sum()), 0, list[int]()
    order = np.random.default_rng([seed, len(sizes)]).permutation(len(sizes))
    for start in range(0, len(order) if len(sizes) > 1 else 0, _CHUNK):
        indices = order[start : start + _CHUNK]
        # A document must bring the held-out part nearer to its target, so that one huge document cannot be all of it.
        for i, document_size in zip(indices.tolist(), sizes[indices].tolist(), strict=True):
            is_nearer = size < target and size + document_size - target <= target - size
            if is_nearer and len(documents) < len(sizes) - 1:
                documents.append(i)
                size += document_size
        if size >= target:
            break
    if documents:
        return EvalSplit(np.sort(np.array(documents, dtype=np.int64)))
    if divisible:  # few and equal documents: each is more than twice the target
        return EvalSplit(none, int(order[0]), target)
    return EvalSplit(order[:1] if len(sizes) > 1 else none)
