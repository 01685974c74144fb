"""Which documents share a row: best fit decreasing, in windows, so that memory does not grow with the corpus.

Each document goes, longest first, into the row with the least room that still takes it (Johnson 1973; Ding et al.
2024 for language models). A row is one sequence of training; documents are not cut here.
"""

from __future__ import annotations

import numpy as np

WINDOW = 1 << 16
"""Documents that are packed with each other."""


def pack_best_fit(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """(order, starts): row r holds the documents order[starts[r] : starts[r + 1]].

    `lengths`: tokens of each document, 1 to `capacity`. Rows hold their documents in the order in which they were
    given, and come in the order of their first document. Raises ValueError for a document that fits in no row.
    """
    count = len(lengths)
    if count and (lengths.max() > capacity or lengths.min() < 1):
        raise ValueError(f"documents of 1 to {capacity} tokens can be packed")
    row_of = np.empty(count, dtype=np.int64)
    rows_with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit r is set while a row with room for r tokens is open
    rows = 0
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_with_room[room].pop()
            if not rows_with_room[room]:
                rooms ^= 1 << room
        else:
            row, room = rows, capacity
            rows += 1
        row_of[document] = row
        left = room - length
        if left:
            rows_with_room[left].append(row)
            rooms |= 1 << left
    first = np.full(rows, count, dtype=np.int64)
    np.minimum.at(first, row_of, np.arange(count))
    place = np.empty(rows, dtype=np.int64)
    place[np.argsort(first, kind="stable")] = np.arange(rows)
    order = np.argsort(place[row_of], kind="stable")
    sizes = np.bincount(place[row_of], minlength=rows)
    return order, np.concatenate([[0], np.cumsum(sizes)])
