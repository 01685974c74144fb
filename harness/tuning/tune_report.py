# SPDX-License-Identifier: Apache-2.0
"""The result of `harness tune`, as one value and as JSON. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.findings import Finding
from harness.plan.settings.checkpointed_layers import checkpointing_value
from harness.spec.parse.source import join_key
from harness.tuning.trials import Ranking, Trial

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class TuneReport:
    """Trials in the order in which they ran, the spec as it is first; their ranking; the machine and the options.
    `refused`: alternatives that a gate refused before a trial. `complete`: the search was not interrupted.
    """

    spec: str
    overrides: tuple[str, ...]
    date: str
    machine: str
    versions: str
    ranks: int
    global_batch: int
    steps: int
    skip: int
    trials: tuple[Trial, ...]
    ranking: Ranking
    searched: int
    refused: tuple[tuple[str, Finding], ...] = ()
    complete: bool = True
    reference_gpu: str = ""
    """The kind of device whose rates order the candidates, where the machine's own are unknown."""

    def to_json(self) -> dict[str, Any]:
        """Seconds and bytes."""
        best, ranking = self.ranking.best, self.ranking
        return {
            "format_version": FORMAT_VERSION,
            "spec": self.spec,
            "overrides": list(self.overrides),
            "date": self.date,
            "machine": self.machine,
            "versions": self.versions,
            "ranks": self.ranks,
            "global_batch": self.global_batch,
            "steps": self.steps,
            "steps_left_out": self.skip,
            "complete": self.complete,
            "searched": self.searched,
            "ordered_as_on": self.reference_gpu or None,
            "best": self.trials.index(best) if best is not None else None,
            "faster": ranking.is_faster,
            "gain": ranking.gain,
            "refused": [
                {"title": title, "gate": finding.gate, "message": finding.message} for title, finding in self.refused
            ],
            "trials": [_trial_json(trial) for trial in self.trials],
        }


def _trial_json(trial: Trial) -> dict[str, Any]:
    alternative = trial.candidate.alternative
    settings = alternative.settings
    return {
        "title": trial.candidate.title,
        "sets": {join_key(path): value for path, value in trial.candidate.changes.items()},
        "zero_stage": settings.stage,
        "offload_optimizer": settings.optimizer_device,
        "offload_param": settings.param_device,
        "micro_batch": settings.rows,
        "gradient_accumulation_steps": settings.accumulation,
        "gradient_checkpointing": checkpointing_value(settings),
        "planned_step_seconds": trial.candidate.planned_step_seconds,
        "planned_gpu_peak_bytes": alternative.gpu_peak,
        "planned_host_peak_bytes": alternative.host_peak,
        "state": trial.state,
        "cause": trial.cause or None,
        "step_seconds": trial.median_step_seconds,
        "spread": trial.spread,
        "all_step_seconds": list(trial.seconds),
        "tokens_per_second": trial.tokens_per_second,
        "gpu_peak_bytes": trial.gpu_peak,
        "rank_host_peak_bytes": trial.host_peak,
        "wall_seconds": round(trial.wall_seconds, 1),
        "run_dir": trial.run_dir or None,
    }
