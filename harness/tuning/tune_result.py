# SPDX-License-Identifier: Apache-2.0
"""The result of a tuning: its report, and the fastest candidate as a spec. Writes no file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from harness.hostinfo import machine
from harness.tuning.candidate_search import TuneSearch, build_spec_text, find_mismatch
from harness.tuning.trials import Trial, rank_trials
from harness.tuning.tune_report import TuneReport
from harness.tuning.tuned_spec import add_header


class TunedSpec(NamedTuple):
    """The text of the fastest spec, where there is one, and what to tell the user about it."""

    text: str | None
    notes: tuple[str, ...] = ()


def build_tune_report(
    search: TuneSearch, trials: Sequence[Trial], steps: int, skip: int, *, complete: bool = True
) -> TuneReport:
    """The report of the trials so far. `complete`: not broken off."""
    run = search.run
    return TuneReport(
        spec=search.spec,
        overrides=tuple(search.overrides),
        date=time.strftime("%Y-%m-%d %H:%M"),
        machine=search.machine,
        versions=", ".join(f"{name} {machine.package_version(name)}" for name in ("deepspeed", "torch")),
        ranks=run.parallel_dims.world_size or 1,
        global_batch=run.batch.global_batch or 0,
        steps=steps,
        skip=skip,
        trials=tuple(trials),
        ranking=rank_trials(trials),
        searched=search.num_alternatives,
        refused=search.refused,
        complete=complete,
        reference_gpu=search.stand_in,
    )


def build_tuned_spec(search: TuneSearch, report: TuneReport, file: Path) -> TunedSpec:
    """The fastest candidate as the text of `file`, with the evidence above it."""
    best = report.ranking.best
    if best is None or not report.ranking.is_faster:
        return TunedSpec(None)
    text, has_comments = build_spec_text(search, best.candidate, file)
    mismatch = find_mismatch(search, text, best.candidate, file)
    if mismatch is not None:
        return TunedSpec(None, (f"The fastest could not be written as a spec: {mismatch}",))
    note = "note: the spec's layout could not be edited; it was written again, without comments"
    return TunedSpec(add_header(text, str(file), report), () if has_comments else (note,))
