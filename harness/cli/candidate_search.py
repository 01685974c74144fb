"""What `harness tune` looks up before anything runs: the spec, this machine, the planner's choices under the gates."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from harness.check.check_file import CheckedFile, check_file
from harness.cli.console import exit_on_errors, exit_with, print_findings
from harness.errors import ExitCode
from harness.facts.devices import Device, find_device
from harness.findings import Finding, Fix
from harness.hostinfo import machine
from harness.launching.hosts.local_host import LocalHost, inspect_local_host
from harness.plan.alternatives import Alternative, evaluate_alternative
from harness.plan.plan_settings import settings_of
from harness.plan.planner import Plan, make_plan
from harness.plan.resolved_run import ResolvedRun
from harness.plan.settings_search import search_settings
from harness.plan.spec_changes import describe_changes, minimal_changes
from harness.tuning.candidates import REFERENCE_GPU, Candidate, order_alternatives
from harness.tuning.tuned_spec import apply_changes, edit_spec

_NOTHING_WRITTEN = "Nothing was written or started"
_MAX_CHECKED = 60
"""Choices that gates are asked about at most, where they refuse many."""


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


def find_candidates(
    spec: str, overrides: list[str], hostfile: str | None, most: int, *, allow_code: bool
) -> TuneSearch:
    """At most so many candidates, the spec first. Prints what speaks against the spec, and ends the program then.

    `allow_code` is `--allow-local-code`.
    """
    check = partial(check_file, spec, overrides=overrides, hostfile=hostfile, launching=True, allow_code=allow_code)
    checked = check()
    here = inspect_local_host(variables=checked.run.spec.launch.env if checked.run else None)
    if checked.run is not None and checked.run.parallel_dims.world_size is None:
        world = here.num_accelerators or 1
        checked = check(world_size=world)
    run = exit_on_errors(checked, _NOTHING_WRITTEN)
    local = run.cluster is None
    device, name = (
        _local_device(run, here) if local else (find_device(run.spec.cluster.gpu or ""), _describe_hosts(run))
    )
    plan = make_plan(run, Path.cwd(), device.name if device else None)
    if run.kind != "spec" or plan.model is None or plan.settings is None or checked.source is None:
        _exit_untunable(run, plan, checked)
    own = plan.capacity if not (device and device.is_cpu) else replace(plan.capacity, gpu=None)
    free = machine.host_memory().available if local and own.host is None else own.host
    own = replace(own, host=free, gpu=device.memory or None if device else own.gpu)
    arguments = (plan.model, plan.settings, device, own, plan.rates)
    rungs = search_settings(*arguments, vary_parallel_dims=False)
    here_is = evaluate_alternative(plan.model, plan.settings, plan.settings, device, own, plan.rates)
    found = TuneSearch(
        spec, overrides, hostfile, checked.source.text, run.spec.model_dump(mode="json", exclude_unset=True), run,
        (Candidate("the spec as it is", here_is),), (), len(rungs), name, "" if here_is.time else REFERENCE_GPU,
    )  # fmt: skip
    return _add_candidates(found, plan, rungs, most)


def _add_candidates(found: TuneSearch, plan: Plan, rungs: tuple[Alternative, ...], most: int) -> TuneSearch:
    """The most promising that the gates let through, in order of planned time."""
    if plan.model is None or plan.settings is None:
        return found
    disks = any(isinstance(s, dict) and s.get("nvme_path") for s in (found.raw.get("zero") or {}).values())
    others: list[Candidate] = []
    refused: list[tuple[str, Finding]] = []
    order = order_alternatives(rungs, plan.settings, plan.model, plan.rates, allow_nvme=disks)
    for choice in (r for _, r in zip(range(_MAX_CHECKED), order, strict=False)):
        if len(others) == most - 1:
            break
        sets = minimal_changes(choice.settings, plan.settings, plan.model, found.raw)
        if not sets:
            continue
        candidate = Candidate(describe_changes(choice.settings, plan.settings), choice, sets)
        error = next(iter(_errors(_check_candidate(found, candidate))), None)
        if error is None:
            others.append(candidate)
        else:
            refused.append((candidate.title, error))
    if not found.stand_in:
        others.sort(key=lambda c: c.planned_step_seconds or 0.0)
    return replace(found, candidates=(*found.candidates, *others), refused=tuple(refused))


def build_spec_text(found: TuneSearch, candidate: Candidate, file: Path) -> tuple[str, bool]:
    """The spec with the candidate's keys as it would lie in `file`, and whether comments were kept."""
    sets = dict(candidate.changes)
    hosts = found.run.spec.launch.hostfile
    folder = Path(found.spec).absolute().parent
    if hosts is not None and not Path(hosts).is_absolute() and file.parent != folder:  # it is relative to the spec
        sets["launch", "hostfile"] = os.path.relpath(folder / hosts, file.parent)
    return edit_spec(found.spec_text, found.spec, sets, found.overrides, found.raw)


def find_mismatch(found: TuneSearch, text: str, candidate: Candidate, file: Path) -> str | None:
    """Why the text is not what was measured; None where it is: same global batch, same settings, no error."""
    checked = _check_text(found, text, str(file))
    error = next(iter(_errors(checked)), None)
    if error is not None or checked.run is None:
        return error.message if error else "it cannot be read"
    if checked.run.batch.global_batch != found.run.batch.global_batch:
        return f"its global batch would be {checked.run.batch.global_batch}"
    tried = _check_candidate(found, candidate).run
    same = tried is not None and settings_of(checked.run) == settings_of(tried)
    return None if same else "its settings would not be those that were measured"


def _check_candidate(found: TuneSearch, candidate: Candidate) -> CheckedFile:
    """The candidate as its trial will run, through all gates."""
    import yaml

    text = yaml.safe_dump(apply_changes(found.raw, candidate.changes), sort_keys=False)
    return _check_text(found, text, found.spec)


def _check_text(found: TuneSearch, text: str, file: str) -> CheckedFile:
    """Its code was allowed when the spec was looked up, or it chooses none."""
    check = partial(check_file, file, text=text, launching=True, allow_code=True)
    return check(hostfile=found.hostfile, world_size=_world_size(found))


def _world_size(found: TuneSearch) -> int | None:
    return None if found.run.cluster is not None else found.run.parallel_dims.world_size


def _errors(checked: CheckedFile) -> list[Finding]:
    return [f for f in checked.report.findings if f.is_error]


def _local_device(run: ResolvedRun, here: LocalHost) -> tuple[Device | None, str]:
    """What is here: its kind where that is known, and in words."""
    if not here.num_accelerators:
        return find_device("cpu"), f"the CPU ({machine.cpu_model()})"
    names = [a.name for a in machine.accelerators()[: here.num_accelerators]]
    asked = find_device(run.spec.cluster.gpu or "")
    device = asked if asked and not asked.is_cpu else find_device(names[0])
    return device, f"{len(names)} x {names[0]}"


def _describe_hosts(run: ResolvedRun) -> str:
    count = len(run.cluster.hosts) if run.cluster else 1
    return f"{count} host{'' if count == 1 else 's'}" + (f" of {run.spec.cluster.gpu}" if run.spec.cluster.gpu else "")


def _exit_untunable(run: ResolvedRun, plan: Plan, checked: CheckedFile) -> NoReturn:
    if run.kind != "spec":
        message, key = f"`{checked.report.file}` is a DeepSpeed JSON, which says nothing about model and data", ""
    elif plan.model is None:
        message, key = "the model's size is not known: nothing can be planned, so nothing is chosen", "model"
    else:
        message, key = "the number of ranks or the micro-batch is not known", "train.per_device_train_batch_size"
    place = checked.source.place(key) if checked.source is not None and key else None
    fix = Fix("tune a run spec whose model `harness plan` can count")
    print_findings([Finding("MM013", "error", message, key, place, fix=fix)], checked.source)
    print(f"{_NOTHING_WRITTEN}.", file=sys.stderr)
    exit_with(ExitCode.FINDINGS)
