# SPDX-License-Identifier: Apache-2.0
"""The policy for records that cannot be used: the first ends the run, or they are counted and listed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import TracebackType

from harness.errors import UserError
from harness.runtime.dataset.record import BAD_RECORD_KINDS, BadRecord, SourcePart
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSpec

SKIPPED_FILE = "skipped.jsonl"


class BadRecordLog:
    """Counts by kind, and a file that lists the skipped records, one JSON object a line."""

    def __init__(self, data: DataSpec, folder: Path) -> None:
        self._data = data
        self._file = (folder / SKIPPED_FILE).open("w", encoding="utf-8")
        self.counts: Counter[str] = Counter()

    def add(self, part: SourcePart, number: int, bad: BadRecord, key: str) -> None:
        """Skip a record, or raise UserError where the policy says so."""
        is_dropped = bad.kind == "too-long" and self._data.excess_length_strategy == "drop"
        if self._data.on_bad_record == "stop" and not is_dropped:
            raise bad_record_error(part, number, bad, key)
        self.counts[bad.kind] += 1
        line = {"source": part.name, part.unit or "row": number, "kind": bad.kind, "why": bad.reason}
        self._file.write(json.dumps(line) + "\n")
        num_bad = self.counts.total() - (self.counts["too-long"] if is_dropped else 0)
        if num_bad > self._data.max_bad_records:
            raise self._too_many_error(part, number, bad, key)

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


def bad_record_error(part: SourcePart, number: int, bad: BadRecord, key: str) -> UserError:
    """The finding for one record that ends the run."""
    gate, fix = BAD_RECORD_KINDS[bad.kind]
    return user_error(
        gate,
        f"{part.describe_record(number)}: {bad.reason}",
        key=key,
        notes=("`data.on_bad_record: skip` skips such records, counts them and lists them",),
        fix=fix,
    )
