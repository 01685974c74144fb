# SPDX-License-Identifier: Apache-2.0
"""The summary of a run: a few figures, the same for the list of runs, the report and the end of a launch."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.file_io import replace_file
from harness.run_records.run_files import json_of
from harness.run_records.run_record import RunRecord
from harness.units import finite_number, format_seconds
from harness.verdicts import Verdict

_RECENT = 200
_MAX_SECONDS_BEFORE_RANKS = 3600.0
"""The limit for the time between a run directory and its ranks; what is longer is the date of an older file."""
_STAMP = re.compile(r"-(\d{8}-\d{6})(?:-\d+)?$")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of a run. None: not recorded. Losses and lost steps are those of its training, from the first step
    on. Speeds are medians without the first step of each start; `started` and `changed` are seconds since
    1970; `step_seconds` is the time of a step.
    """

    name: str
    folder: Path
    state: str
    step: int
    steps: int | None
    loss: float | None
    first_loss: float | None
    eval_loss: float | None
    best_eval: tuple[int, float] | None
    tokens_per_second: float | None
    mfu: float | None
    step_seconds: float | None
    tokens: float | None
    predicted_tokens: float | None
    """Those of `tokens`, which has no padding, that the loss counts."""
    skipped: int
    attempts: int
    lost: int
    started: float | None
    changed: float | None
    checkpoint: str | None
    unusable: tuple[str, ...] = ()
    """Unusable files, each with the reason."""
    verdict: Verdict | None = None
    training: str = ""
    """The directory's name of the first run of the training."""
    branch_of: str | None = None
    """The training that this one left at an older step, with other settings."""
    parts: tuple[str, ...] = ()
    """The run directories of the training, the first launch first."""
    training_started: float | None = None
    tags: tuple[str, ...] = ()
    note: str = ""
    """The tags and the note that `harness runs RUN --tags --note` wrote to the run directory."""

    @property
    def seconds(self) -> float | None:
        """The time of the launch, as the terminal names it; of a run that has not ended, or whose supervisor was
        killed, from the first start to the last sign of life.
        """
        if self.verdict is not None and self.verdict.seconds:
            return self.verdict.seconds
        if self.started is None or self.changed is None:
            return None
        return max(0.0, self.changed - self.started)


def summarise_run(record: RunRecord) -> RunSummary:
    """The summary of a record; for a brief one, of its first and last lines."""
    whole = record.training
    losses, evals = whole.points("step", "loss"), whole.points("eval", "loss")
    steps = [finite_number(line.get("step")) for line in record.lines_of("step")] or [None]
    status_steps = [finite_number(status.get("step")) for status in record.statuses]
    started = start_time(record)
    tags, note = read_remarks(record.folder)
    return RunSummary(
        name=record.name,
        folder=record.folder,
        state=record.state,
        step=int(_max_or_zero([*steps[-1:], *status_steps, record.verdict.step if record.verdict else None])),
        steps=_to_int(finite_number(record.header.get("steps"))),
        loss=losses[-1][1] if losses else None,
        first_loss=losses[0][1] if losses else None,
        eval_loss=evals[-1][1] if evals else None,
        best_eval=min(((int(s), v) for s, v in evals), key=lambda e: e[1], default=None),
        tokens_per_second=median_or_none(record.values("tokens_per_second")[-_RECENT:]),
        mfu=median_or_none(record.values("mfu")[-_RECENT:]),
        step_seconds=median_or_none(record.values("seconds")[-_RECENT:]),
        tokens=_last_value(record, "tokens"),
        predicted_tokens=_last_value(record, "predicted_tokens"),
        skipped=int(_last_value(record, "skipped") or 0),
        attempts=max(1, len(record.attempts), 1 + len(record.lines_of("restart"))),
        lost=whole.lost,
        started=started,
        changed=last_change_time(record),
        checkpoint=_last_checkpoint(record),
        unusable=record.unusable,
        verdict=record.verdict,
        training=record.part.training,
        branch_of=record.part.branch_of,
        parts=(record.name,),
        tags=tags,
        note=note,
        training_started=finite_number(whole.header.get("time")) if record.history else started,
    )


REMARKS = "remarks.json"


def read_remarks(run_dir: Path) -> tuple[tuple[str, ...], str]:
    """The tags and the note that a user gave to a run."""
    body = json_of(run_dir / REMARKS)
    tags, note = body.get("tags"), body.get("note")
    texts = tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()
    return texts, note if isinstance(note, str) else ""


def write_remarks(run_dir: Path, tags: Sequence[str] | None, note: str | None) -> None:
    """Replace the tags, the note or both. Raises OSError."""
    old_tags, old_note = read_remarks(run_dir)
    body = {"tags": list(old_tags if tags is None else tags), "note": old_note if note is None else note}
    replace_file(run_dir / REMARKS, json.dumps(body, indent=1) + "\n")


def _last_value(record: RunRecord, key: str) -> float | None:
    return next((value for _, value in reversed(record.points("step", key))), None)


def median_or_none(values: list[float]) -> float | None:
    """The median; None without values."""
    return median(values) if values else None


def start_time(record: RunRecord) -> float | None:
    """The start of the launch, which creates the run directory before it compiles ops; else that of the first attempt's
    ranks, as for a copy, whose files are newer. Seconds since 1970.
    """
    attempt_start = finite_number(record.attempts[0].get("began")) if record.attempts else None
    ranks_start = attempt_start or finite_number(record.header.get("time"))
    created = _mtime(record.folder / "spec.resolved.json")
    if ranks_start:
        is_of_launch = created is not None and 0 < ranks_start - created < _MAX_SECONDS_BEFORE_RANKS
        return created if is_of_launch else ranks_start
    stamp = _STAMP.search(record.name)
    if stamp:
        with suppress(ValueError):
            return time.mktime(time.strptime(stamp[1], "%Y%m%d-%H%M%S"))
    return created


def last_change_time(record: RunRecord) -> float | None:
    """The last sign of life: of a rank or of metrics.jsonl, whose lines before format 2 have no time."""
    times = [finite_number(status.get("time")) for status in record.statuses]
    times += [finite_number(line.get("time")) for line in record.lines[-20:]]
    return max((t for t in times if t is not None), default=None) or _mtime(record.folder / "metrics.jsonl")


def _last_checkpoint(record: RunRecord) -> str | None:
    saves = [line for line in record.lines_of("save") if isinstance(line.get("path"), str)]
    return str(saves[-1]["path"]) if saves else None


def time_parts(record: RunRecord) -> str:
    """The parts of the time of a run that has ended: in the training loop, outside of it, and the attempts. Empty where
    they are not known.
    """
    verdict = record.verdict
    if verdict is None or not verdict.seconds or not record.lines_of("run"):
        return ""
    loop = min(_loop_seconds(record), verdict.seconds)
    parts = f"{format_seconds(loop)} in the training loop, {format_seconds(verdict.seconds - loop)} before and after it"
    attempts = max(1, len(record.attempts))
    return parts + (f", in {attempts} attempts" if attempts > 1 else "")


def _loop_seconds(record: RunRecord) -> float:
    """From the header of each attempt to its last line. The last lines of an attempt before a restart are dropped as
    lost, so that it counts until its ranks had ended.
    """
    ends = {attempt.get("number"): finite_number(attempt.get("ended")) for attempt in record.attempts}
    total, start, last = 0.0, None, None
    for line in record.lines:
        moment = finite_number(line.get("time"))
        if line.get("type") == "restart":
            number = finite_number(line.get("attempt"))
            end = ends.get(number - 1) if number is not None else None
            total += max(0.0, (end or last or 0.0) - start) if start is not None else 0.0
            start = None
            continue
        if line.get("type") == "run":
            start = moment
        last = last if moment is None else moment
    return total + (max(0.0, last - start) if start is not None and last is not None else 0.0)


def _max_or_zero(values: Iterable[float | None]) -> float:
    return max((v for v in values if v is not None), default=0.0)


def _to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def _mtime(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
