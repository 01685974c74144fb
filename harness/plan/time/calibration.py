# SPDX-License-Identifier: Apache-2.0
"""Constants of one machine from its own runs: factors on the planned seconds and bytes, each with its spread.

A run gives sums of parts (both passes, the update), the plan their sizes. The factors are the smallest ones, in units
of how far published runs scatter, that give the measured sums: least squares of logarithms with `Spread` as the prior.
A part that no run has keeps the factor 1 and the spread of the prior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from harness.plan.time.fitted_rates import FITTED, Scale, Spread
from harness.plan.time.machine_fingerprint import Fingerprint

MEASURED_RATES = ("compute", "collectives", "cpu_optimizer", "nvme", "pcie", "gpu_optimizer")
"""Fields of `Scale` and `Spread` that a run can tell something of."""
MIN_SPREAD = 1.05
MIN_SPREAD_OF_ONE = 1.1
"""One run says nothing of how far runs scatter."""
MAX_FACTOR = 10.0
_NOISE = 0.01
"""Standard deviation of the logarithm of a median of steps."""
_ITERATIONS = 50
_LEAST_SHARE = 0.02
"""Of a sum of parts, for a rate to count as measured."""

Factor = Annotated[float, Field(gt=1 / (2 * MAX_FACTOR), lt=2 * MAX_FACTOR)]
Width = Annotated[float, Field(ge=MIN_SPREAD, lt=100.0)]
Seconds = Annotated[float, Field(gt=0.0, lt=1e7)]


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Observation(_Stored):
    """Measured seconds of a part of a step, and the planned ones by rate, before any factor. `noise`: standard
    deviation of the logarithm.
    """

    what: str
    measured: Seconds
    planned: dict[str, Annotated[float, Field(ge=0.0, lt=1e7)]]
    noise: Annotated[float, Field(gt=0.0, lt=10.0)] = _NOISE


class CalibratedRun(_Stored):
    """A run: its steps, sums, and peaks of memory by what was planned. `started`: seconds since 1970."""

    name: str
    started: float
    steps: int
    observations: tuple[Observation, ...]
    allocated: Factor | None = None
    """Measured over planned tensors."""
    reserved: Factor | None = None
    """Reserved over allocated, both measured."""


class RateFactor(_Stored):
    """A factor on planned seconds or bytes, and the one between its middle and a fast or slow run."""

    factor: Factor
    spread: Width


class Calibration(_Stored):
    """The measurements of one machine's runs. `date`: of the last change."""

    fingerprint: Fingerprint
    date: str
    runs: Annotated[tuple[CalibratedRun, ...], Field(min_length=1)]
    rates: dict[str, RateFactor]
    allocated: RateFactor | None = None
    reserved: RateFactor | None = None

    @property
    def scale(self) -> Scale:
        """Factors on seconds, for `Rates`."""
        return Scale(**{name: rate.factor for name, rate in self.rates.items() if name in MEASURED_RATES})

    @property
    def spread(self) -> Spread:
        """Their spreads, for `Rates`; runs do not tell attention from other compute."""
        spreads = {name: rate.spread for name, rate in self.rates.items() if name in MEASURED_RATES}
        if "compute" in self.rates_in_runs:
            spreads["attention"] = spreads["compute"]
        return Spread(**spreads, experts=1.0)

    @property
    def rates_in_runs(self) -> tuple[str, ...]:
        """The rates that take a part of the runs' steps; the others are as without a calibration."""
        observations = [each for run in self.runs for each in run.observations]
        return tuple(
            name
            for name in MEASURED_RATES
            if any(each.planned.get(name, 0.0) > _LEAST_SHARE * sum(each.planned.values()) for each in observations)
        )

    def summary(self) -> dict[str, Any]:
        """The factors and where they are from, for JSON; without the runs' measurements."""
        body = self.model_dump(mode="json", exclude={"runs"})
        return {**body, "rates_in_runs": list(self.rates_in_runs), "runs": [run.name for run in self.runs]}


def combine_runs(fingerprint: Fingerprint, runs: Sequence[CalibratedRun], date: str) -> Calibration:
    """The calibration of all runs of one machine. Runs of the same parts count by their geometric mean."""
    fit = fit_rates([observation for run in runs for observation in run.observations], len(runs))
    return Calibration(
        fingerprint=fingerprint,
        date=date,
        runs=tuple(runs),
        rates=fit,
        allocated=_mean_ratio([run.allocated for run in runs if run.allocated is not None]),
        reserved=_mean_ratio([run.reserved for run in runs if run.reserved is not None]),
    )


def fit_rates(
    observations: Sequence[Observation], num_runs: int = 1, prior: Spread = FITTED.spread
) -> dict[str, RateFactor]:
    """Factor and spread of each rate (Gauss-Newton; the module's doc says what is minimised)."""
    weights = [1 / math.log(getattr(prior, name)) ** 2 for name in MEASURED_RATES]
    logs = [0.0] * len(MEASURED_RATES)
    for _ in range(_ITERATIONS):
        system = _linearize(observations, logs, weights)
        changes = _solve(system.matrix, system.vector)
        logs = [log + max(-1.0, min(1.0, change)) for log, change in zip(logs, changes, strict=True)]
        if max(map(abs, changes)) < 1e-9:
            break
    system = _linearize(observations, logs, weights)
    units = [[float(i == j) for j in range(len(logs))] for i in range(len(logs))]
    variances = [_solve(system.matrix, unit)[i] for i, unit in enumerate(units)]
    # A rate that the runs do not tell has the variance of the prior: 0 of its scatter is theirs.
    told = [1 - variance * weight for variance, weight in zip(variances, weights, strict=True)]
    scatter = sum(r * r for r in system.residuals) / max(1.0, len(observations) - sum(told))
    floor = MIN_SPREAD if num_runs > 1 else MIN_SPREAD_OF_ONE
    return {
        name: RateFactor(
            factor=max(1 / MAX_FACTOR, min(MAX_FACTOR, math.exp(log))),
            spread=max(floor, math.exp(math.sqrt(variance + scatter * share))),
        )
        for name, log, variance, share in zip(MEASURED_RATES, logs, variances, told, strict=True)
    }


class _System(NamedTuple):
    matrix: list[list[float]]
    vector: list[float]
    residuals: list[float]


def _linearize(observations: Sequence[Observation], logs: Sequence[float], weights: Sequence[float]) -> _System:
    """The normal equations of a small change of `logs`. A residual is measured over predicted, as a logarithm."""
    size = range(len(logs))
    matrix = [[weights[i] if i == j else 0.0 for j in size] for i in size]
    vector = [-weight * log for weight, log in zip(weights, logs, strict=True)]
    residuals = []
    for observation in observations:
        seconds = [
            observation.planned.get(name, 0.0) * math.exp(log) for name, log in zip(MEASURED_RATES, logs, strict=True)
        ]
        total = sum(seconds)
        shares = [part / total for part in seconds]
        residual = math.log(observation.measured / total)
        residuals.append(residual)
        weight = observation.noise**-2
        for i in size:
            vector[i] += weight * shares[i] * residual
            for j in size:
                matrix[i][j] += weight * shares[i] * shares[j]
    return _System(matrix, vector, residuals)


def _solve(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """x of a small symmetric positive definite system, by elimination."""
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    size = len(rows)
    for i in range(size):
        for row in rows[i + 1 :]:
            factor = row[i] / rows[i][i]
            row[i:] = [mine - factor * other for mine, other in zip(row[i:], rows[i][i:], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution


def _mean_ratio(ratios: Sequence[float]) -> RateFactor | None:
    """The geometric mean, with the standard deviation of the ratios as its spread."""
    if not ratios:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / len(logs)
    if len(logs) == 1:
        return RateFactor(factor=ratios[0], spread=MIN_SPREAD_OF_ONE)
    deviation = math.sqrt(sum((log - mean) ** 2 for log in logs) / (len(logs) - 1))
    return RateFactor(factor=math.exp(mean), spread=max(MIN_SPREAD, math.exp(deviation)))


def sum_by_rate(seconds: Mapping[str, float], rate_of: Mapping[str, str]) -> dict[str, float]:
    """Seconds of parts added up by the rate that they go by."""
    sums: dict[str, float] = {}
    for name, value in seconds.items():
        sums[rate_of[name]] = sums.get(rate_of[name], 0.0) + value
    return sums
