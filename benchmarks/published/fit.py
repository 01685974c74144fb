# SPDX-License-Identifier: Apache-2.0
"""Fits the rates of the planner to published step times: a random search from the present values, one rate at a time.

Every source weighs about as much as another, however many rows it has; a rate moves away from its present value only
where that gains more than it costs, so that what no row speaks of stays.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from benchmarks.published.error_table import measured_seconds
from benchmarks.published.published_rows import PlannedRow, group_of
from benchmarks.published.set_aside import is_set_aside
from harness.facts.devices import Device
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.fitted_rates import FITTED, FittedRates
from harness.plan.time.rates import GroupRates, Rates, group_rates
from harness.plan.time.step_time import time_parts
from harness.plan.time.step_work import StepWork, count_step_work

SCALARS = (
    "width",
    "rows",
    "expert_share",
    "attention_length",
    "attention_backward",
    "activation_passes",
    "logit_bytes",
    "launch_seconds",
    "hook_seconds",
    "gather_seconds",
    "reduction_seconds",
    "overlap",
    "optimizer_bytes",
    "host_memory_share",
    "pcie_exposed",
    "step_seconds",
)
_SHARES = frozenset({"attention_backward", "overlap", "host_memory_share", "pcie_exposed"})
_WIDTH_OF_PRIOR = {
    "attention_backward": 0.1,
    "launch_seconds": 0.5,
    "hook_seconds": 0.5,
    "gather_seconds": 0.5,
    "reduction_seconds": 0.7,
}
_LARGE_ERROR = 0.7
"""Absolute logarithm above which an error counts less: an outlier, or something that the planner does not know."""


@dataclass(frozen=True)
class Sample:
    """A measured step and everything that its planned time depends on."""

    seconds: float
    weight: float
    work: StepWork
    settings: PlanSettings
    device: Device
    rates: Rates
    links: GroupRates

    def error(self, fitted: FittedRates) -> float:
        """Absolute logarithm of planned by measured, large ones damped."""
        parts = time_parts(self.work, self.settings, self.device, self.rates, self.links, fitted)
        error = abs(math.log(sum(part.exposed for part in parts) / self.seconds))
        return self.weight * min(error, _LARGE_ERROR + 0.3 * (error - _LARGE_ERROR))


def samples_of(rows: Iterable[PlannedRow]) -> list[Sample]:
    """The measured steps of the sources that are not set aside."""
    kept = [
        row for row in rows if row.plan is not None and not is_set_aside(row.row["source"]) and measured_seconds(row)
    ]
    counts = Counter((row.row["source"], group_of(row.row)) for row in kept)
    samples = []
    for row in kept:
        plan, seconds = row.plan, measured_seconds(row)
        if plan is None or plan.model is None or plan.settings is None or plan.device is None or not seconds:
            continue
        weight = row.row["quality"] / 3 / counts[row.row["source"], group_of(row.row)] ** 0.7
        work = count_step_work(plan.model, plan.settings)
        links = group_rates(plan.settings, plan.device, plan.rates)
        samples.append(Sample(seconds, weight, work, plan.settings, plan.device, plan.rates, links))
    return samples


def fit_rates(samples: Sequence[Sample], iterations: int = 4000, seed: int = 1) -> FittedRates:
    """The rates with the least weighted error, and how far they moved."""
    rnd, best = random.Random(seed), FITTED  # noqa: S311
    generations = sorted(FITTED.matmul)
    moves = [*SCALARS, *(f"matmul.{name}" for name in generations), *(f"attention.{name}" for name in generations)]
    least, step = _objective(samples, best), 0.2
    for iteration in range(iterations):
        if iteration % 1000 == 999:
            step *= 0.6
        tried = _moved(best, rnd.choice(moves), math.exp(rnd.gauss(0, step)))
        if tried is None:
            continue
        error = _objective(samples, tried)
        if error < least:
            best, least = tried, error
    return best


def _moved(rates: FittedRates, name: str, factor: float) -> FittedRates | None:
    """The rates with one of them changed; None where a share would leave what is possible."""
    table, _, generation = name.partition(".")
    if generation:
        shares = dict(getattr(rates, table))
        shares[generation] *= factor
        return replace(rates, **{table: shares}) if shares[generation] <= 0.95 else None
    value = getattr(rates, name) * factor
    return None if name in _SHARES and value > 1 else replace(rates, **{name: value})


def _objective(samples: Sequence[Sample], rates: FittedRates) -> float:
    error = sum(sample.error(rates) for sample in samples)
    for name in SCALARS:
        width = _WIDTH_OF_PRIOR.get(name, 0.25)
        error += 0.08 * (math.log(getattr(rates, name) / getattr(FITTED, name)) / width) ** 2
    for table in ("matmul", "attention"):
        for generation, share in getattr(FITTED, table).items():
            error += (
                0.08
                * (math.log(getattr(rates, table)[generation] / share) / (0.12 if table == "attention" else 0.25)) ** 2
            )
    return error


def format_rates(rates: FittedRates) -> str:
    """The rates as the lines of `harness/plan/time/fitted_rates.py`."""
    lines = [f"{name} = {getattr(rates, name):.3g}" for name in SCALARS]
    for table in ("matmul", "attention"):
        lines += [f"{table}.{name} = {share:.3g}" for name, share in getattr(rates, table).items()]
    return "\n".join(lines)
