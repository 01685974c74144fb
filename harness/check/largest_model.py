# SPDX-License-Identifier: Apache-2.0
"""`harness size --largest-model`: the largest model of the catalogue that fits on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.check import auto_plan
from harness.errors import ExitCode, UserError
from harness.facts.model_catalogue import CATALOGUE
from harness.facts.model_lookup import ModelFacts, facts_from_config
from harness.plan.counted_plan import CountedPlan
from harness.plan.memory.memory_estimate import check_fit, estimate_memory
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import STAGES_AND_OFFLOADS, with_offload
from harness.plan.search.plan_request import PlanRequest, validate_request
from harness.plan.settings.plan_settings import PlanSettings

_MAX_SHOWN = 4
BASE_MODEL = "meta-llama/Llama-3.1-8B"
"""Any model, for a cluster that waits for one."""


@dataclass(frozen=True)
class FittingModel:
    """A model that fits: its plan by the search, and the keys that make it."""

    name: str
    parameters: int
    counted: CountedPlan
    spec: Mapping[str, Any]


@dataclass(frozen=True)
class LargestModel:
    """The largest models that fit, largest first, and those that are too large, largest first."""

    machine: str
    fitting: tuple[FittingModel, ...]
    too_large: tuple[tuple[str, int], ...]


def find_largest_model(request: PlanRequest) -> LargestModel:
    """Search the settings of each model from the largest on. Raises UserError with everything that is wrong."""
    request = replace(request, model=BASE_MODEL)
    findings = validate_request(request)
    if findings:
        raise UserError(findings, ExitCode.USAGE)
    _, checked = auto_plan.check_request(request)
    base = make_plan(checked.run, with_alternatives=False) if checked.run is not None else None
    if base is None or base.settings is None:
        raise UserError(checked.report.findings, ExitCode.FINDINGS)
    fitting: list[FittingModel] = []
    too_large: list[tuple[str, int]] = []
    for name, model in _models_by_size():
        if len(fitting) == _MAX_SHOWN:
            break
        found = _search(replace(request, model=name), model, name) if _may_fit(model, base, base.settings) else None
        if found is not None:
            fitting.append(found)
        elif not fitting:
            too_large.append((name, model.num_parameters))
    machine = f"{request.gpus:,} x {base.device.name if base.device else request.gpu}"
    return LargestModel(machine, tuple(fitting), tuple(too_large))


def _models_by_size() -> Iterator[tuple[str, ModelFacts]]:
    """One name a size, the largest first."""
    by_size: dict[int, tuple[str, ModelFacts]] = {}
    for name, config in CATALOGUE.items():
        model = facts_from_config(config).facts
        if model is not None:
            by_size.setdefault(model.num_parameters, (name, model))
    for parameters in sorted(by_size, reverse=True):
        yield by_size[parameters]


def _may_fit(model: ModelFacts, base: Plan, settings: PlanSettings) -> bool:
    """Does any stage or offload hold the model? Parallel sizes are left to the search."""
    memories = (estimate_memory(model, with_offload(settings, *place), base.device) for place in STAGES_AND_OFFLOADS)
    return any(
        check_fit(memory, base.capacity).fits is not False and not (memory.nvme_bytes and base.capacity.nvme is None)
        for memory in memories
    )


def _search(request: PlanRequest, model: ModelFacts, name: str) -> FittingModel | None:
    raw, checked = auto_plan.check_request(request)
    if checked.run is None:
        return None
    found = auto_plan.find_best_plan(checked.run, raw, auto_plan.name_of(request), None, pinned=request.pinned)
    counted = CountedPlan.of(found.plan) if found is not None and found.launchable else None
    return None if found is None or counted is None else FittingModel(name, model.num_parameters, counted, found.raw)
