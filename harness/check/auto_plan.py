# SPDX-License-Identifier: Apache-2.0
"""`harness plan` beyond one run: the search under the gates, and a run from a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.check.check_file import CheckedFile, check_file
from harness.check.model_findings import check_model_kind
from harness.errors import ExitCode, UserError
from harness.findings import Finding, Fix
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import Alternative, best_of_each_kind, kind_of
from harness.plan.search.nearest_fit import NearestFit, find_nearest_fit
from harness.plan.search.pinned_keys import keep_pinned
from harness.plan.search.plan_request import OPTION_KEYS, PlanRequest, spec_from_request, validate_request
from harness.plan.search.settings_search import filter_fitting, may_fit, search_settings
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.time.calibration_file import Calibrations
from harness.run.resolved_run import ResolvedRun
from harness.spec.parse.source import KeyPath, value_at
from harness.spec.yaml_text import spec_as_yaml

_MAX_CHECKED = 40


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search: all choices in order, the first that fits and passes, and those refused before it.

    `plan` is the plan of the best, where nothing fits that of the closest. `launchable`: `harness launch` would start
    it; otherwise it is valid and planned, and launch says why not. `nearest_fit`: what would do where nothing fits.
    `findings`: of the gates about the best.
    """

    alternatives: tuple[Alternative, ...]
    best: Alternative | None
    raw: dict[str, Any]
    spec_text: str
    plan: Plan | None
    refused: tuple[tuple[Alternative, Finding], ...]
    launchable: bool
    nearest_fit: NearestFit | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def usable(self) -> tuple[Alternative, ...]:
        """Those that fit, the best first, without the kinds that the gates refuse: none is faster than the best (by
        more than steps count as equally fast).
        """
        if self.best is None:
            return ()
        best_kind = kind_of(self.best)
        refused = {kind_of(alternative) for alternative, _ in self.refused} - {best_kind}
        usable = [each for each in filter_fitting(self.alternatives) if kind_of(each) not in refused]
        return tuple(usable) or (self.best,)

    def refusal_of(self, alternative: Alternative) -> Finding | None:
        """The reason why the gates refuse settings of this kind, where they were asked."""
        if self.best is not None and kind_of(alternative) == kind_of(self.best):
            return None
        kinds = {kind_of(refused): finding for refused, finding in reversed(self.refused)}
        return kinds.get(kind_of(alternative))


def check_request(request: PlanRequest) -> tuple[dict[str, Any], CheckedFile]:
    """The requested run, through the same checks as a file. Raises UserError with everything that is wrong."""
    findings = validate_request(request)
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    return spec_from_request(request), _check_values(request)


def check_for_search(check: Callable[..., CheckedFile]) -> Callable[..., CheckedFile]:
    """`check_for_plan` for a search. Where the ranks are more than the sequences of a step (BT001 alone), it is the
    first check with a degree of `parallel` that leaves fewer data ranks: there the search begins.
    """

    def check_with_degrees(spec: str, overrides: Sequence[str] | None, *hosts: Any, **how: Any) -> CheckedFile:
        checked = check(spec, overrides, *hosts, **how)
        if {finding.gate for finding in checked.report.findings if finding.is_error} != {"BT001"}:
            return checked
        for degree in (2, 4, 8, 16):
            for kind in ("tensor", "sequence", "pipeline"):
                more = [*(overrides or ()), f"parallel.{kind}_parallel_size={degree}"]
                tried = check(spec, more, *hosts, **how)
                if tried.report.ok:
                    return tried
        return checked

    return check_with_degrees


def _check_values(request: PlanRequest) -> CheckedFile:
    """The check of a request's spec. Its findings have places in `--set` alone: there is no file to point at."""
    values, key = spec_from_request(replace(request, overrides=())), ("train", "per_device_train_batch_size")
    whole = spec_from_request(request)
    micro, stage = value_at(whole, key), value_at(whole, ("zero", "stage"))
    if ("zero", "stage") not in request.pinned:  # that of 4-bit weights
        values["zero"]["stage"] = stage
    if key not in request.pinned and isinstance(micro, int):  # made by the accumulation steps of `--set`
        values["train"][key[1]] = micro
    text = spec_as_yaml(values)
    checked = check_file(name_of(request), overrides=request.overrides, text=text, world_size=request.gpus)
    found = checked.report.findings
    if checked.run is not None and not any(finding.is_error for finding in found):
        found = (*found, *check_model_kind(checked.run.spec))
    findings = tuple(_of_options(finding) for finding in found)
    return checked._replace(report=checked.report._replace(findings=findings))


def _of_options(finding: Finding) -> Finding:
    """The finding without places in the file that is not there, and its fix as an option."""
    place = finding.place if finding.place is not None and finding.place.file == "--set" else None
    related = tuple(each for each in finding.related if each.place.file == "--set")
    options = {key: name for name, key in OPTION_KEYS.items() if name not in ("gpus", "gpus_per_node", "batch_tokens")}
    fix = finding.fix
    if fix is not None and len(fix.sets) == 1 and (key := next(iter(fix.sets))) in options:
        fix = fix._replace(title=f"give `--{options[key].replace('_', '-')} {fix.sets[key]}`")
    return finding._replace(place=place, related=related, fix=fix)


def name_of(request: PlanRequest) -> str:
    """A file name for a run that has no file."""
    return f"{Path(request.model).name.lower() or 'run'}-{request.gpus}x{request.gpu.lower()}.yaml"


def find_best_plan(
    run: ResolvedRun,
    raw: Mapping[str, Any],
    file: str,
    hostfile: str | None,
    calibrations: Calibrations | None = None,
    pinned: Sequence[KeyPath] = (),
) -> SearchResult | None:
    """Search, then request the gates from the best choice on. None where the model, the ranks or the batch are unknown.
    `pinned`: keys of `raw` whose values the user gave, which every choice has.

    Raises UserError where no step can be timed, and where the search has nothing with the pinned values.
    """
    plan_of = partial(make_plan, base_dir=Path.cwd(), with_alternatives=False, by_name=True, calibrations=calibrations)
    base = plan_of(run)
    if base.model is None or base.settings is None:
        return None
    if base.time is None:
        fix = Fix("set `cluster.gpu` to a kind that `harness plan` knows, such as `H100-80GB`")
        message = "a search needs a GPU of known speed"
        raise UserError([Finding("MM007", "error", message, "cluster.gpu", fix=fix)], ExitCode.USAGE)
    alternatives = search_settings(base.run, base.model, base.device, base.capacity, base.rates)
    alternatives = keep_pinned(alternatives, lambda each: each.settings, base.model, raw, pinned)
    refused: list[tuple[Alternative, Finding]] = []
    second: SearchResult | None = None
    fitting = list(filter_fitting(alternatives)) or [each for each in alternatives if may_fit(each)]
    for alternative in best_of_each_kind(fitting)[:_MAX_CHECKED]:
        changed = merge_changes(raw, spec_changes_for(alternative.settings, base.model, raw))
        text = spec_as_yaml(changed)
        checked = _check_candidate(file, text, run, hostfile, launching=True)
        if checked.report.ok and checked.run is not None:
            plan = plan_of(checked.run)
            found = SearchResult(alternatives, alternative, changed, text, plan, tuple(refused), launchable=True)
            return replace(found, findings=tuple(checked.report.findings))
        if second is None:
            valid = _check_candidate(file, text, run, hostfile, launching=False)
            if valid.report.ok and valid.run is not None:
                plan = plan_of(valid.run)
                second = SearchResult(alternatives, alternative, changed, text, plan, tuple(refused), launchable=False)
                second = replace(second, findings=tuple(valid.report.findings))
        refused.append((alternative, next(f for f in checked.report.findings if f.severity == "error")))
    if second is not None:
        return second
    nothing = SearchResult(alternatives, None, {}, "", None, tuple(refused), launchable=False)
    if fitting:
        return nothing
    nearest_fit = find_nearest_fit(base.run, base.model, base.device, base.capacity, alternatives)
    if nearest_fit is None or nearest_fit.closest is None:
        return nothing
    changed = merge_changes(raw, spec_changes_for(nearest_fit.closest.settings, base.model, raw))
    closest = _check_candidate(file, spec_as_yaml(changed), run, hostfile, launching=False).run
    return replace(nothing, nearest_fit=nearest_fit, plan=None if closest is None else plan_of(closest))


def _check_candidate(file: str, text: str, run: ResolvedRun, hostfile: str | None, *, launching: bool) -> CheckedFile:
    world = None if run.cluster is not None else run.parallel_dims.world_size
    return check_file(file, text=text, hostfile=hostfile, world_size=world, launching=launching, allow_code=True)
