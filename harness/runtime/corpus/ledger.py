"""What becomes of records that cannot be used: the first ends the run, or they are counted and listed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import TracebackType

from harness.errors import Refused
from harness.runtime.corpus.record import KINDS, BadRecord, Part
from harness.runtime.refusals import refusal
from harness.spec.sections.data import DataSpec

LIST = "skipped.jsonl"


class Ledger:
    """Counts by kind, and a file that lists what was left out, one JSON object a line."""

    def __init__(self, data: DataSpec, folder: Path) -> None:
        self._data = data
        self._file = (folder / LIST).open("w", encoding="utf-8")
        self.counts: Counter[str] = Counter()

    def add(self, part: Part, number: int, bad: BadRecord, key: str) -> None:
        """Leave a record out, or raise Refused where the policy says so."""
        dropped = bad.kind == "too-long" and self._data.excess_length_strategy == "drop"
        if self._data.on_bad_record == "stop" and not dropped:
            raise refuse(part, number, bad, key)
        self.counts[bad.kind] += 1
        line = {"source": part.name, part.unit or "row": number, "kind": bad.kind, "why": bad.what}
        self._file.write(json.dumps(line) + "\n")
        broken = self.counts.total() - (self.counts["too-long"] if dropped else 0)
        if broken > self._data.max_bad_records:
            raise self._too_many(part, number, bad, key)

    def _too_many(self, part: Part, number: int, bad: BadRecord, key: str) -> Refused:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return refusal(
            "MD125",
            f"more than {self._data.max_bad_records} records of `{key}` cannot be used",
            key="data.max_bad_records",
            notes=(kinds, f"the last is {part.place(number)}: {bad.what}"),
            fix="mend the data, or set a larger `data.max_bad_records`",
        )

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()


def refuse(part: Part, number: int, bad: BadRecord, key: str) -> Refused:
    """The finding for one record that ends the run."""
    gate, mend = KINDS[bad.kind]
    return refusal(
        gate,
        f"{part.place(number)}: {bad.what}",
        key=key,
        notes=("`data.on_bad_record: skip` would leave such records out, count them and list them",),
        fix=mend,
    )
