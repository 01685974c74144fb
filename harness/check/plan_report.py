# SPDX-License-Identifier: Apache-2.0
"""The answer of `harness plan`: the plan, the search behind it, the alternatives worth naming, and what would do where
nothing fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.check.auto_plan import SearchResult
from harness.check.check_file import CheckedFile
from harness.check.finding_places import place_findings
from harness.check.fit_table import FitTable
from harness.errors import ExitCode
from harness.findings import Finding
from harness.plan.planner import Plan
from harness.plan.search.alternatives import (
    STAGES_AND_OFFLOADS,
    Alternative,
    evaluate_alternative,
    is_stage_supported,
    kind_of,
    with_offload,
)
from harness.plan.search.nearest_fit import NearestFit, find_nearest_fit, find_without_offload, offloads
from harness.plan.search.plan_request import PlanRequest, batch_finding
from harness.plan.search.settings_search import CandidateSettings, filter_fitting, fits_with_headroom, may_fit

NUM_ALTERNATIVES = 3
_STAGE_3 = 3


@dataclass(frozen=True)
class PlanReport:
    """`findings`: of the gates, the options and the plan. `next_command` is empty if there is none."""

    plan: Plan
    searched: SearchResult | None
    nearest_fit: NearestFit | None
    findings: tuple[Finding, ...]
    next_command: str = ""
    fit_table: FitTable | None = None
    """The ways of training the model, where nothing fits and for a page."""
    without_offload: Alternative | None = None
    """The same run without its offload, where it fits with it."""
    gpus_without_offload: int | None = None
    """The fewest that do without, where these do not."""
    higher_stage: Alternative | None = None
    """ZeRO-3 on the same GPUs, where the user's own stage excludes it and needs offload or does not fit."""
    assumed: tuple[str, ...] = ()
    """Options of the batch whose values are the program's."""
    epochs: float | None = None
    """Times that the tokens are trained, where `--epochs` says so."""

    @property
    def nothing_fits(self) -> bool:
        """Does neither the run fit, nor anything that was looked at instead?"""
        if self.searched is not None:
            return self.searched.best is None
        others = (*self.plan.alternatives, *self.plan.fastest_fitting)
        return self.plan.fit.verdict is False and not any(map(may_fit, others))

    @property
    def code(self) -> ExitCode:
        """1 where nothing fits, or the data fills no step."""
        is_wrong = self.nothing_fits or "MD115" in {finding.gate for finding in self.findings}
        return ExitCode.FINDINGS if is_wrong else ExitCode.OK

    @property
    def least_host(self) -> Alternative | None:
        """Of a plan that offloads, what fits with at least a tenth less host memory: the least."""
        settings, memory = self.plan.settings, self.plan.memory
        if self.searched is None or settings is None or memory is None or not offloads(settings):
            return None
        sure = (each for each in self.searched.usable if each.fit.uncertain is None)
        least = min(sure, key=lambda each: each.host_peak, default=None)
        return least if least is not None and least.host_peak < 0.9 * memory.host_peak else None

    @property
    def largest_micro_batches(self) -> tuple[Alternative, ...]:
        """On data ranks alone, the largest that surely fit without checkpointing and with it, in this order: with the
        places of the plan, else with ZeRO-3. None of a plan whose micro-batch is the user's.
        """
        settings = self.plan.settings
        if self.searched is None or self.searched.best is None or settings is None:
            return ()
        alone = [each for each in self.searched.alternatives if each.settings.data_parallel_size == settings.world_size]
        if len({each.settings.micro_batch for each in alone}) < 2:
            return ()
        fitting = [each for each in alone if fits_with_headroom(each) and each.fit.uncertain is None]
        for place in ((settings.stage, settings.optimizer_device, settings.param_device), (_STAGE_3, "none", "none")):
            held = [each for each in fitting if kind_of(each)[:3] == place]
            kinds = ([each for each in held if each.settings.checkpointing is on] for on in (False, True))
            if held:
                return tuple(max(each, key=lambda one: one.settings.micro_batch) for each in kinds if each)
        return ()

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """A few that fit, the best first: one of each stage and offload (of a search, each other one), then all."""
        if self.searched is not None:
            others = [each for each in self.searched.usable if each is not self.searched.best]
        elif self.plan.time is None:
            others = [each for each in filter_fitting(self.plan.alternatives) if not each.is_current]
        else:
            others = [each for each in (*self.plan.fastest_fitting, *self.plan.best_by_kind) if not each.is_current]
        first: dict[tuple[object, ...], Alternative] = {}
        for each in others:
            first.setdefault(kind_of(each)[:3], each)
        if self.searched is not None and self.searched.best is not None:
            first.pop(kind_of(self.searched.best)[:3], None)
        by_place = list(first.values())
        rest = [each for index, each in enumerate(others) if each not in (*by_place, *others[:index])]
        return tuple([*by_place, *rest][:NUM_ALTERNATIVES])


def report_plan(
    plan: Plan,
    searched: SearchResult | None,
    checked: CheckedFile,
    request: PlanRequest | None = None,
    next_command: str = "",
) -> PlanReport:
    """Everything that a command prints. `request` where there is no spec: its settings are not the user's."""
    if searched is not None and searched.best is not None:
        of_gates = tuple(finding._replace(place=None, related=()) for finding in searched.findings)
    else:
        of_gates = tuple(checked.report.findings)
    source = checked.source if request is None and searched is None else None
    of_batch = () if request is None else tuple(f for f in (batch_finding(request),) if f is not None)
    findings = [*of_batch, *of_gates, *place_findings(plan.findings, source)]
    if searched is not None and searched.best is not None and plan.time is not None:
        slower = [each for each in searched.usable if each is not searched.best]
        plan = replace(plan, fastest_fitting=(searched.best, *slower)[:NUM_ALTERNATIVES])
    without = None
    if plan.model is not None and plan.fit.verdict is not False:
        alternatives = plan.alternatives if searched is None else searched.alternatives
        without = find_without_offload(plan.run, plan.capacity, alternatives)
    nearest_fit = _find_nearest_fit(plan, searched)
    higher = None if searched is None else _find_higher_stage(plan, searched.alternatives)
    return PlanReport(
        plan, searched, nearest_fit, tuple(findings), next_command, without_offload=without, higher_stage=higher
    )


def _find_nearest_fit(plan: Plan, searched: SearchResult | None) -> NearestFit | None:
    """A way out for a plan that does not fit, where none of its alternatives does."""
    if searched is not None:
        return searched.nearest_fit
    others = (*plan.alternatives, *plan.fastest_fitting)
    if plan.model is None or plan.fit.verdict is not False or any(map(may_fit, others)):
        return None
    return find_nearest_fit(plan.run, plan.model, plan.device, plan.capacity, plan.alternatives)


def _find_higher_stage(plan: Plan, others: Sequence[Alternative]) -> Alternative | None:
    """ZeRO-3 on the same ranks, without offload if that fits, where the user's own stage is lower and needs offload or
    does not fit. None where the others of a search have that stage.
    """
    settings, fits = plan.settings, plan.fit.verdict is not False
    if plan.model is None or settings is None or not is_stage_supported(_STAGE_3, settings):
        return None
    if any(each.settings.stage == _STAGE_3 for each in others) or (fits and not offloads(settings)):
        return None
    candidates = CandidateSettings(plan.run, plan.model)
    for stage, optimizer, parameters in STAGES_AND_OFFLOADS:
        if stage != _STAGE_3 or "nvme" in (optimizer, parameters) or (fits and optimizer != "none"):
            continue
        other = candidates.resolve(with_offload(settings, stage, optimizer, parameters))
        if other is not None:
            found = evaluate_alternative(plan.model, settings, other, plan.device, plan.capacity, plan.rates)
            if fits_with_headroom(found):
                return found
    return None
