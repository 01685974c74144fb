"""Reads the records of a group and stores their ids; bad ones go to the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.plan.run import Run
from harness.runtime.corpus.encode import Encoded, Encoder
from harness.runtime.corpus.ledger import Ledger
from harness.runtime.corpus.plan import Group
from harness.runtime.corpus.progress import Display
from harness.runtime.corpus.record import Part, Raw
from harness.runtime.corpus.rows import Records
from harness.runtime.corpus.store import Growing
from harness.runtime.corpus.workers import Workers

_BATCH_BYTES = 1 << 18
_BATCH_RECORDS = 1024


@dataclass(frozen=True)
class Ingested:
    """The stored records of a group, and how many of them were cut."""

    records: Records
    truncated: int


@contextmanager
def ingest(
    group: Group, tokenizer: Any, run: Run, folder: Path, ledger: Ledger, display: Display
) -> Iterator[Ingested]:
    """The records, mapped from temporary files of `folder` that are gone afterwards. Raises Refused."""
    data = run.spec.data
    encoders = [Encoder(tokenizer, data, source.columns, rows=not group.stream) for source in group.sources]
    masked = any(encoder.masked for encoder in encoders)
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    names = {"ids": dtype, "trained": np.bool_, "lengths": np.int64, "sizes": np.int64}
    files = {name: Growing(folder / f".{name}.npy", kind) for name, kind in names.items()}
    truncated = 0
    try:
        for source, encoder in zip(group.sources, encoders, strict=True):
            with Workers(encoder, data.num_proc, sum(part.size for part in source.parts)) as workers:
                for part in source.parts:
                    documents = _Documents(files)
                    for encoded in workers.map(_batches(part, display)):
                        for number, bad in encoded.bad:
                            ledger.add(part, number, bad, source.key)
                        _store(encoded, files, masked=masked)
                        documents.add(encoded)
                        display.records(len(encoded.lengths), sum(ledger.counts.values()))
                        truncated += encoded.truncated
                    documents.end()
        found = {name: file.map() for name, file in files.items()}
        yield Ingested(
            Records(found["ids"], found["trained"] if masked else None, found["lengths"], found["sizes"]), truncated
        )
    finally:
        for file in files.values():
            file.close()
            file.path.unlink(missing_ok=True)


def _store(encoded: Encoded, files: dict[str, Growing], *, masked: bool) -> None:
    files["ids"].append(encoded.ids)
    if masked:
        trained = encoded.trained if encoded.trained is not None else np.ones(len(encoded.ids), dtype=np.bool_)
        files["trained"].append(trained)


class _Documents:
    """Lengths and sizes, where a long text comes in several parts."""

    def __init__(self, files: dict[str, Growing]) -> None:
        self._files, self._length, self._size = files, 0, 0

    def add(self, encoded: Encoded) -> None:
        """Note the records of a batch."""
        if not self._length and (encoded.lengths >= 0).all():
            self._files["lengths"].append(encoded.lengths)
            self._files["sizes"].append(encoded.sizes)
            return
        for length, size in zip(encoded.lengths.tolist(), encoded.sizes.tolist(), strict=True):
            self._length, self._size = self._length + abs(length), self._size + size
            if length >= 0:
                self.end()

    def end(self) -> None:
        """A text that was begun is complete."""
        if self._length:
            self._files["lengths"].append(np.array([self._length]))
            self._files["sizes"].append(np.array([self._size]))
            self._length = self._size = 0


def _batches(part: Part, display: Display) -> Iterator[list[Raw]]:
    """Records of about 256 KiB, at most a thousand: a token takes a few hundred bytes while it is made."""
    batch: list[Raw] = []
    taken = 0

    def tell(count: int) -> None:
        nonlocal taken
        taken += count

    for raw in part.read(tell):
        batch.append(raw)
        if taken >= _BATCH_BYTES or len(batch) >= _BATCH_RECORDS:
            display.bytes(taken)
            yield batch
            batch, taken = [], 0
    display.bytes(taken)
    if batch:
        yield batch
