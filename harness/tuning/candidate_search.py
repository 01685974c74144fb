# SPDX-License-Identifier: Apache-2.0
"""The search of `harness tune` before anything runs: the spec, this machine, the planner's settings under the gates."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.check.check_file import CheckedFile, check_file
from harness.errors import ExitCode, UserError
from harness.facts.devices import Device, find_device
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.plan.planner import Plan, make_plan
from harness.plan.search.alternatives import Alternative, evaluate_alternative
from harness.plan.search.settings_search import search_settings
from harness.plan.search.spec_changes import describe_changes, minimal_changes
from harness.plan.settings.plan_settings import settings_of
from harness.run.resolved_run import ResolvedRun
from harness.tuning.candidates import REFERENCE_GPU, Candidate, order_alternatives
from harness.tuning.tuned_spec import apply_changes, edit_spec

_MAX_CHECKED = 60
"""Choices that gates are asked about at most, where they refuse many."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The spec to tune with its options. `allow_code` is `--allow-local-code`."""

    spec: str
    overrides: list[str]
    hostfile: str | None
    max_candidates: int
    allow_code: bool = False

    def check(self, *, world_size: int | None = None) -> CheckedFile:
        """The spec as it is, through all gates."""
        return check_file(
            self.spec,
            overrides=self.overrides,
            hostfile=self.hostfile,
            world_size=world_size,
            launching=True,
            allow_code=self.allow_code,
            look_at_paths=True,
        )


@dataclass(frozen=True)
class TuneSearch:
    """The spec as it is and what else is worth a run. `raw` is what the spec says, options included."""

    spec: str
    overrides: list[str]
    hostfile: str | None
    spec_text: str
    raw: dict[str, Any]
    run: ResolvedRun
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, Finding], ...]
    num_alternatives: int
    machine: str
    stand_in: str


def find_candidates(request: TuneRequest, checked: CheckedFile, run: ResolvedRun, num_accelerators: int) -> TuneSearch:
    """As many candidates as the request allows at most, the spec first. Raises UserError (MM013) for a run whose
    settings cannot be planned. `num_accelerators` are those of this machine that ranks may use.
    """
    is_local = run.cluster is None
    device, machine_name = (
        _local_device(run, num_accelerators)
        if is_local
        else (find_device(run.spec.cluster.gpu or ""), _describe_hosts(run))
    )
    plan = make_plan(run, Path.cwd(), device.name if device else None)
    if run.kind != "spec" or plan.model is None or plan.settings is None or checked.source is None:
        raise UserError([_untunable_finding(run, plan, checked)], ExitCode.FINDINGS)
    capacity = plan.capacity if not (device and device.is_cpu) else replace(plan.capacity, gpu=None)
    host_bytes = machine.host_memory().available if is_local and capacity.host is None else capacity.host
    capacity = replace(capacity, host=host_bytes, gpu=device.memory or None if device else capacity.gpu)
    alternatives = search_settings(plan.run, plan.model, device, capacity, plan.rates, vary_parallel_dims=False)
    baseline = evaluate_alternative(plan.model, plan.settings, plan.settings, device, capacity, plan.rates)
    search = TuneSearch(
        spec=request.spec,
        overrides=request.overrides,
        hostfile=request.hostfile,
        spec_text=checked.source.text,
        raw=run.spec.model_dump(mode="json", exclude_unset=True),
        run=run,
        candidates=(Candidate("the spec as it is", baseline),),
        refused=(),
        num_alternatives=len(alternatives),
        machine=machine_name,
        stand_in="" if baseline.time else REFERENCE_GPU,
    )
    return _add_candidates(search, plan, alternatives, request.max_candidates)


def _add_candidates(
    search: TuneSearch, plan: Plan, alternatives: tuple[Alternative, ...], max_candidates: int
) -> TuneSearch:
    """The most promising that the gates let through, in order of planned time."""
    if plan.model is None or plan.settings is None:
        return search
    allow_nvme = any(isinstance(s, dict) and s.get("nvme_path") for s in (search.raw.get("zero") or {}).values())
    candidates: list[Candidate] = []
    refused: list[tuple[str, Finding]] = []
    order = order_alternatives(alternatives, plan.settings, plan.model, plan.rates, allow_nvme=allow_nvme)
    for alternative in (a for _, a in zip(range(_MAX_CHECKED), order, strict=False)):
        if len(candidates) == max_candidates - 1:
            break
        changes = minimal_changes(alternative.settings, plan.settings, plan.model, search.raw)
        if not changes:
            continue
        candidate = Candidate(describe_changes(alternative.settings, plan.settings), alternative, changes)
        error = next(iter(_errors(_check_candidate(search, candidate))), None)
        if error is None:
            candidates.append(candidate)
        else:
            refused.append((candidate.title, error))
    if not search.stand_in:
        candidates.sort(key=lambda c: c.planned_step_seconds or 0.0)
    return replace(search, candidates=(*search.candidates, *candidates), refused=tuple(refused))


def build_spec_text(search: TuneSearch, candidate: Candidate, file: Path) -> tuple[str, bool]:
    """The spec with the candidate's keys as it would lie in `file`, and whether comments were kept."""
    changes = dict(candidate.changes)
    hosts = search.run.spec.launch.hostfile
    folder = Path(search.spec).absolute().parent
    if hosts is not None and not Path(hosts).is_absolute() and file.parent != folder:  # it is relative to the spec
        changes["launch", "hostfile"] = os.path.relpath(folder / hosts, file.parent)
    return edit_spec(search.spec_text, search.spec, changes, search.overrides, search.raw)


def find_mismatch(search: TuneSearch, text: str, candidate: Candidate, file: Path) -> str | None:
    """The difference of the text from the measured spec; None without: same global batch, same settings, no error."""
    checked = _check_text(search, text, str(file))
    error = next(iter(_errors(checked)), None)
    if error is not None or checked.run is None:
        return error.message if error else "it cannot be read"
    if checked.run.batch.global_batch != search.run.batch.global_batch:
        return f"its global batch would be {checked.run.batch.global_batch}"
    measured_run = _check_candidate(search, candidate).run
    is_same = measured_run is not None and settings_of(checked.run) == settings_of(measured_run)
    return None if is_same else "its settings would differ from the measured ones"


def _check_candidate(search: TuneSearch, candidate: Candidate) -> CheckedFile:
    """The candidate as its trial will run, through all gates."""
    import yaml

    text = yaml.safe_dump(apply_changes(search.raw, candidate.changes), sort_keys=False)
    return _check_text(search, text, search.spec)


def _check_text(search: TuneSearch, text: str, file: str) -> CheckedFile:
    """Its code was allowed when the spec was looked up, or it chooses none."""
    check = partial(check_file, file, text=text, launching=True, allow_code=True)
    world_size = None if search.run.cluster is not None else search.run.parallel_dims.world_size
    return check(hostfile=search.hostfile, world_size=world_size)


def _errors(checked: CheckedFile) -> list[Finding]:
    return [f for f in checked.report.findings if f.is_error]


def _local_device(run: ResolvedRun, num_accelerators: int) -> tuple[Device | None, str]:
    """The kind of this machine's devices where that is known, and the machine in words."""
    if not num_accelerators:
        return find_device("cpu"), f"the CPU ({machine.cpu_model()})"
    names = [a.name for a in machine.accelerators()[:num_accelerators]]
    spec_device = find_device(run.spec.cluster.gpu or "")
    device = spec_device if spec_device and not spec_device.is_cpu else find_device(names[0])
    return device, f"{len(names)} x {names[0]}"


def _describe_hosts(run: ResolvedRun) -> str:
    count = len(run.cluster.hosts) if run.cluster else 1
    return f"{count} host{'' if count == 1 else 's'}" + (f" of {run.spec.cluster.gpu}" if run.spec.cluster.gpu else "")


def _untunable_finding(run: ResolvedRun, plan: Plan, checked: CheckedFile) -> Finding:
    if run.kind != "spec":
        message, key = f"`{checked.report.file}` is a DeepSpeed JSON, which has no model and no data", ""
    elif plan.model is None:
        message, key = "the model's size is not known, so no settings can be planned", "model"
    else:
        message, key = "the number of ranks or the micro-batch is not known", "train.per_device_train_batch_size"
    place = checked.source.place(key) if checked.source is not None and key else None
    fix = Fix("tune a run spec whose model `harness plan` can count")
    return Finding("MM013", "error", message, key, place, fix=fix)
