# SPDX-License-Identifier: Apache-2.0
"""The policy for records that cannot be used: they end the run, all in one message, or they are counted and listed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from harness.errors import UserError, user_error
from harness.findings import Finding, Fix
from harness.runtime.dataset.record import BAD_RECORD_KINDS, BadRecord, SourcePart
from harness.spec.sections.data_spec import DataSpec

SKIPPED_FILE = "skipped.jsonl"
_MAX_PLACES = 10
"""Bad records of one kind that an error names."""
_MAX_RECORDS_AFTER_FIRST = 100_000
"""Records that are read after the first bad one of a run that ends with it: a second of a huge file, not an hour."""


class _ErrorPlace(NamedTuple):
    """A bad record that ends the run."""

    part: SourcePart
    number: int
    reason: str


class BadRecordLog:
    """Counts by kind, and a file that lists the skipped records, one JSON object a line.

    Where a bad record ends the run, the others of the file are collected first, so that one run names all of them.
    """

    def __init__(self, data: DataSpec, folder: Path) -> None:
        self._data = data
        self._file = (folder / SKIPPED_FILE).open("w", encoding="utf-8")
        self.counts: Counter[str] = Counter()
        self._errors: dict[str, list[_ErrorPlace]] = {}
        self._error_counts: Counter[str] = Counter()
        self._error_key = ""
        self._records_after_first = 0

    def add(self, part: SourcePart, number: int, bad: BadRecord, key: str) -> None:
        """Skip a record, or keep it for the error of `check`. Raises UserError for more than `max_bad_records`."""
        is_dropped = bad.kind == "too-long" and self._data.excess_length_strategy == "drop"
        if self._data.on_bad_record == "stop" and not is_dropped:
            self._error_key = self._error_key or key
            self._error_counts[bad.kind] += 1
            places = self._errors.setdefault(bad.kind, [])
            if len(places) < _MAX_PLACES:
                places.append(_ErrorPlace(part, number, bad.reason))
            return
        self.counts[bad.kind] += 1
        line = {"source": part.name, part.unit or "row": number, "kind": bad.kind, "why": bad.reason}
        self._file.write(json.dumps(line) + "\n")
        num_bad = self.counts.total() - (self.counts["too-long"] if is_dropped else 0)
        if num_bad > self._data.max_bad_records:
            raise self._too_many_error(part, number, bad, key)

    def check(self, num_records: int, *, is_last: bool) -> None:
        """Raise UserError for the bad records that end the run: after the last record, or long enough after the first
        bad one. `num_records`: so many more were read.
        """
        if not self._error_counts:
            return
        self._records_after_first += num_records
        if is_last or self._records_after_first >= _MAX_RECORDS_AFTER_FIRST:
            findings = [self._describe_errors(kind, places) for kind, places in self._errors.items()]
            if not is_last:
                note = f"the {_MAX_RECORDS_AFTER_FIRST:,} records after the first of them were read, not the rest"
                findings[-1] = findings[-1]._replace(notes=(*findings[-1].notes, note))
            raise UserError(findings)

    def _describe_errors(self, kind: str, places: list[_ErrorPlace]) -> Finding:
        """A finding for all bad records of a kind. The first is its message, others share notes."""
        gate, fix = BAD_RECORD_KINDS[kind]
        first = places[0]
        notes = []
        for (_, reason), others in groupby(places[1:], lambda place: (place.part.name, place.reason)):
            group = list(others)
            where = group[0].part.describe_records([place.number for place in group])
            notes.append(f"{where}: {'the same' if reason == first.reason else reason}")
        if len(places) < self._error_counts[kind]:
            notes.append(f"{self._error_counts[kind]:,} records like these, of which {len(places)} are named here")
        notes.append("`data.on_bad_record: skip` skips such records, counts them and lists them")
        message = f"{first.part.describe_record(first.number)}: {first.reason}"
        return Finding(gate, "error", message, key=self._error_key, notes=tuple(notes), fix=Fix(fix))

    def _too_many_error(self, part: SourcePart, number: int, bad: BadRecord, key: str) -> UserError:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return user_error(
            "MD125",
            f"more than {self._data.max_bad_records} records of `{key}` cannot be used",
            key="data.max_bad_records",
            notes=(kinds, f"the last is {part.describe_record(number)}: {bad.reason}"),
            fix="fix the data, or set a larger `data.max_bad_records`",
        )

    def __enter__(self) -> BadRecordLog:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()
