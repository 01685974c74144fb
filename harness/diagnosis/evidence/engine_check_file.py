# SPDX-License-Identifier: Apache-2.0
"""The differences in `engine_checks.json` next to a log. If training continued, only this file has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.diagnosis.diagnosis_types import Diagnosis
from harness.finding_pages import is_engine_check
from harness.run_records.run_files import json_of

_FILE = "engine_checks.json"
_MAX_TEXT = 400
_ERROR = "EngineDifferenceError"
"""The error of a training run that stopped: its log says the same as the file."""


def add_engine_differences(diagnosis: Diagnosis, logs: Sequence[Path]) -> Diagnosis:
    """The diagnosis with the differences as notes; where the log shows no failure, the first of them is the cause."""
    folders = dict.fromkeys(log if log.is_dir() else log.parent for log in logs)
    by_check = {row["gate"]: row for folder in folders for row in reversed(_read_differences(folder))}
    if not by_check or _ERROR in diagnosis.message:
        return diagnosis
    notes = tuple(f"`{_FILE}` has {row['gate']}: {row['message']}" for row in by_check.values())
    if diagnosis.state != "no failure seen" or diagnosis.cause:
        return replace(diagnosis, notes=(*diagnosis.notes, *notes))
    cause, first = next(iter(by_check.items()))
    return replace(
        diagnosis,
        state="failed",
        confidence="certain",
        cause=cause,
        title=first["message"],
        change=first["change"],
        lines=(),
        notes=(f"`{_FILE}` has this; the log shows no failure", *notes[1:]),
    )


def _read_differences(folder: Path) -> list[Mapping[str, str]]:
    rows = json_of(folder / _FILE).get("differences")
    return [row for row in map(_parse_row, rows if isinstance(rows, list) else []) if row is not None]


def _parse_row(row: Any) -> Mapping[str, str] | None:
    """None for what `harness.watch` does not write: the file may be anybody's."""
    if (
        not isinstance(row, dict)
        or not isinstance(row.get("message"), str)
        or not is_engine_check(str(row.get("gate")))
    ):
        return None
    fix = row.get("fix")
    change = fix.get("title") if isinstance(fix, dict) else ""
    message = " ".join(row["message"].split())[:_MAX_TEXT]
    return {"gate": row["gate"], "message": message, "change": str(change or "")[:_MAX_TEXT]}
