# SPDX-License-Identifier: Apache-2.0
"""Packing of documents into rows: best fit decreasing, in windows, so that memory does not grow with the corpus.

Each document goes, longest first, into the row with the least room that still takes it (Johnson 1973; Ding et al.
2024 for language models). A row is one training sequence. `pack_best_fit` cuts no document.
"""

from __future__ import annotations

import numpy as np

WINDOW = 1 << 16
"""Documents that are packed with each other."""


def pack_best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """(order, starts): row r holds the documents order[starts[r] : starts[r + 1]].

    `lengths`: tokens of each document, 1 to `capacity`. Rows hold their documents in the order of `lengths`,
    and come in the order of their first document. Raises ValueError for a document that fits in no row.
    """
    count = len(lengths)
    if count and (lengths.max() > capacity or lengths.min() < 1):
        raise ValueError(f"documents of 1 to {capacity} tokens can be packed")
    row_of = np.empty(count, dtype=np.int64)
    rows_with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit r is set while a row with room for r tokens is open
    num_rows = 0
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        large_enough = rooms >> length
        if large_enough:
            room = length + (large_enough & -large_enough).bit_length() - 1
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                rooms ^= 1 << room
        else:
            row, room = num_rows, capacity
            num_rows += 1
        row_of[document] = row
        rest = room - length
        if rest:
            rows_with_room[rest].append(row)
            rooms |= 1 << rest
    first_document = np.full(num_rows, count, dtype=np.int64)
    np.minimum.at(first_document, row_of, np.arange(count))
    rank = np.empty(num_rows, dtype=np.int64)
    rank[np.argsort(first_document, kind="stable")] = np.arange(num_rows)
    order = np.argsort(rank[row_of], kind="stable")
    sizes = np.bincount(rank[row_of], minlength=num_rows)
    return order, np.concatenate([[0], np.cumsum(sizes)])
