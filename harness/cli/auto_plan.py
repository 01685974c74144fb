"""What `harness plan` does beyond one run: the search under the gates, the fewest GPUs, and a run from a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.check.check_file import CheckedFile, check_file
from harness.errors import ExitCode, UserError
from harness.facts.devices import find_device
from harness.findings import Finding, Fix
from harness.plan.alternatives import Alternative
from harness.plan.plan_request import (
    PlanRequest,
    min_gpus_for_states,
    spec_from_request,
    validate_request,
)
from harness.plan.planner import Plan, make_plan
from harness.plan.resolved_run import ResolvedRun
from harness.plan.settings_search import filter_fitting, search_settings
from harness.plan.spec_changes import merge_changes, spec_changes_for

_MAX_CHECKED = 40
_MAX_HOSTS = 4096


@dataclass(frozen=True)
class SearchResult:
    """The outcome of a search: all choices in order, the first that fits and passes, and those refused before it.

    `launchable`: `harness launch` would start it; otherwise it is valid and planned, and launch says why not.
    """

    alternatives: tuple[Alternative, ...]
    best: Alternative | None
    raw: dict[str, Any]
    spec_text: str
    plan: Plan | None
    refused: tuple[tuple[Alternative, Finding], ...]
    launchable: bool


@dataclass(frozen=True)
class MinGpusResult:
    """The smallest number of GPUs on which something fits; `rung` is the fastest such choice, None where none does."""

    gpus: int
    best: Alternative | None
    raw_floor_gpus: int
    state_bytes: float


def check_request(ask: PlanRequest) -> tuple[dict[str, Any], CheckedFile]:
    """The run that is asked for, through the same checks as a file. Raises Refused with everything that is wrong."""
    found = validate_request(ask)
    if found:
        raise UserError(found, ExitCode.FINDINGS)
    raw = spec_from_request(ask)
    return raw, check_file(name_of(ask), text=as_yaml(raw), world_size=ask.gpus)


def name_of(ask: PlanRequest) -> str:
    """A file name for a run that has no file."""
    return f"{Path(ask.model).name.lower() or 'run'}-{ask.gpus}x{ask.gpu.lower()}.yaml"


def as_yaml(raw: Mapping[str, Any], head: str = "") -> str:
    """The spec as text, sections in the order in which they are given."""
    return head + yaml.safe_dump(dict(raw), sort_keys=False, default_flow_style=False)


def find_best_plan(run: ResolvedRun, raw: Mapping[str, Any], file: str, hostfile: str | None) -> SearchResult | None:
    """Search, then ask the gates from the best choice on. None where the model, the ranks or the batch are unknown.

    Raises Refused where no step can be timed.
    """
    base = make_plan(run, Path.cwd())
    if base.model is None or base.settings is None:
        return None
    if base.time is None:
        fix = Fix("set `cluster.gpu` to a kind that `harness plan` knows, such as `H100-80GB`")
        message = "a search needs a GPU whose speed is known"
        raise UserError([Finding("MM007", "error", message, "cluster.gpu", fix=fix)], ExitCode.USAGE)
    rungs = search_settings(base.model, base.settings, base.device, base.capacity, base.rates)
    refused: list[tuple[Alternative, Finding]] = []
    second: SearchResult | None = None
    for rung in _best_of_each_kind(filter_fitting(rungs)):
        changed = merge_changes(raw, spec_changes_for(rung.settings, base.model, raw))
        text = as_yaml(changed)
        checked = _check_candidate(file, text, run, hostfile, launching=True)
        if checked.report.ok and checked.run is not None:
            made = make_plan(checked.run, Path.cwd())
            return SearchResult(rungs, rung, changed, text, made, tuple(refused), launchable=True)
        refused.append((rung, next(f for f in checked.report.findings if f.severity == "error")))
        if second is None:
            valid = _check_candidate(file, text, run, hostfile, launching=False)
            if valid.report.ok and valid.run is not None:
                made = make_plan(valid.run, Path.cwd())
                second = SearchResult(rungs, rung, changed, text, made, (), launchable=False)
    if second is not None:
        return replace(second, refused=tuple(refused))
    return SearchResult(rungs, None, {}, "", None, tuple(refused), launchable=False)


def _best_of_each_kind(rungs: Any) -> list[Alternative]:
    """The best choice of every kind of place and degree, best kinds first: a gate refuses kinds, seldom batches."""
    best: dict[tuple[object, ...], Alternative] = {}
    for rung in rungs:
        s = rung.settings
        kind = (
            s.stage,
            s.optimizer_device,
            s.param_device,
            s.tensor_parallel_size,
            s.pipeline_parallel_size,
            s.sequence_parallel_size,
        )
        best.setdefault(kind, rung)
    return list(best.values())[:_MAX_CHECKED]


def _check_candidate(file: str, text: str, run: ResolvedRun, hostfile: str | None, *, launching: bool) -> CheckedFile:
    world = None if run.cluster is not None else run.parallel_dims.world_size
    return check_file(file, text=text, hostfile=hostfile, world_size=world, launching=launching, allow_code=True)


def find_min_gpus(ask: PlanRequest) -> MinGpusResult:
    """Try whole hosts, and parts of one, until something fits. Raises Refused with everything that is wrong."""
    found = validate_request(ask)
    if found:
        raise UserError(found, ExitCode.FINDINGS)
    floor, states = 1, 0.0
    device = find_device(ask.gpu)
    for gpus in _gpu_counts_to_try(ask.gpus_per_node or 8):
        tried = replace(ask, gpus=gpus)
        checked = check_file(name_of(tried), text=as_yaml(spec_from_request(tried)), world_size=gpus)
        plan = make_plan(checked.run, Path.cwd()) if checked.run is not None else None
        if plan is None or plan.model is None or plan.settings is None or device is None:
            raise UserError(checked.report.findings or (_unknown_size_finding(ask),), ExitCode.FINDINGS)
        states = plan.settings.bytes_per_parameter.per_rank(plan.model.num_parameters, 1, 0)
        floor = min_gpus_for_states(states, device)
        rungs = search_settings(
            plan.model, plan.settings, plan.device, plan.capacity, plan.rates, vary_parallel_dims=False
        )
        best = next((rung for rung in filter_fitting(rungs) if ask.stage in (None, rung.settings.stage)), None)
        if best is not None:
            return MinGpusResult(gpus, best, floor, states)
    return MinGpusResult(_MAX_HOSTS * (ask.gpus_per_node or 8), None, floor, states)


def _unknown_size_finding(ask: PlanRequest) -> Finding:
    message = f"the model's size is not known: `{ask.model}`"
    return Finding("MM001", "error", message, fix=Fix("name a folder with a `config.json`"))


def _gpu_counts_to_try(per_node: int) -> Sequence[int]:
    inside = [n for n in (1, 2, 4) if n < per_node]
    hosts = (*range(1, 17), *range(18, 64, 2), *(2**i for i in range(6, 13)))
    return [*inside, *(per_node * n for n in hosts)]
