"""What `harness tune` looks up before anything runs: the spec, this machine, the planner's choices under the gates."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from harness.cli.common import Checked, check_file, exit_with, print_findings, stop_on_errors
from harness.errors import Exit
from harness.facts import machine
from harness.facts.devices import Device, find_device
from harness.findings import Finding, Fix
from harness.launching.here import Here, look_here
from harness.plan.ladder import Rung, rung
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run
from harness.plan.search import search
from harness.plan.settings import settings_of
from harness.tuning.candidates import STAND_IN, Candidate, in_order
from harness.tuning.keys import keys_for, words_for
from harness.tuning.writing import edited, laid_over

_NOTHING = "Nothing was written or started"
_MOST_CHECKED = 60
"""Choices that gates are asked about at most, where they refuse many."""


@dataclass(frozen=True)
class Search:
    """The spec as it is and what else is worth a run. `raw` is what the spec says, options included."""

    spec: str
    overrides: list[str]
    hostfile: str | None
    text: str
    raw: dict[str, Any]
    run: Run
    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[str, Finding], ...]
    searched: int
    machine: str
    stand_in: str


def looked_up(spec: str, overrides: list[str], hostfile: str | None, most: int, *, allow_code: bool) -> Search:
    """At most so many candidates, the spec first. Prints what speaks against the spec, and ends the program then.

    `allow_code` is `--allow-local-code`.
    """
    check = partial(check_file, spec, overrides=overrides, hostfile=hostfile, launching=True, allow_code=allow_code)
    checked = check()
    here = look_here(variables=checked.run.spec.launch.env if checked.run else None)
    if checked.run is not None and checked.run.degrees.world is None:
        world = here.num_accelerators or 1
        checked = check(world_size=world)
    run = stop_on_errors(checked, _NOTHING)
    local = run.cluster is None
    device, name = _device(run, here) if local else (find_device(run.spec.cluster.gpu or ""), _hosts(run))
    plan = make_plan(run, Path.cwd(), device.name if device else None)
    if run.kind != "spec" or plan.model is None or plan.settings is None or checked.source is None:
        _nothing_to_tune(run, plan, checked)
    own = plan.capacity if not (device and device.is_cpu) else replace(plan.capacity, gpu=None)
    free = machine.memory().available if local and own.host is None else own.host
    own = replace(own, host=free, gpu=device.memory or None if device else own.gpu)
    arguments = (plan.model, plan.settings, device, own, plan.rates)
    rungs = search(*arguments, degrees=False)
    here_is = rung(plan.model, plan.settings, plan.settings, device, own, plan.rates)
    found = Search(
        spec, overrides, hostfile, checked.source.text, run.spec.model_dump(mode="json", exclude_unset=True), run,
        (Candidate("the spec as it is", here_is),), (), len(rungs), name, "" if here_is.time else STAND_IN,
    )  # fmt: skip
    return _with_candidates(found, plan, rungs, most)


def _with_candidates(found: Search, plan: Plan, rungs: tuple[Rung, ...], most: int) -> Search:
    """The most promising that the gates let through, in order of planned time."""
    if plan.model is None or plan.settings is None:
        return found
    disks = any(isinstance(s, dict) and s.get("nvme_path") for s in (found.raw.get("zero") or {}).values())
    others: list[Candidate] = []
    refused: list[tuple[str, Finding]] = []
    order = in_order(rungs, plan.settings, plan.model, plan.rates, disks=disks)
    for choice in (r for _, r in zip(range(_MOST_CHECKED), order, strict=False)):
        if len(others) == most - 1:
            break
        sets = keys_for(choice.settings, plan.settings, plan.model, found.raw)
        if not sets:
            continue
        candidate = Candidate(words_for(choice.settings, plan.settings), choice, sets)
        error = next(iter(_errors(_check(found, candidate))), None)
        if error is None:
            others.append(candidate)
        else:
            refused.append((candidate.title, error))
    if not found.stand_in:
        others.sort(key=lambda c: c.planned or 0.0)
    return replace(found, candidates=(*found.candidates, *others), refused=tuple(refused))


def text_of(found: Search, candidate: Candidate, file: Path) -> tuple[str, bool]:
    """The spec with the candidate's keys as it would lie in `file`, and whether comments were kept."""
    sets = dict(candidate.sets)
    hosts = found.run.spec.launch.hostfile
    folder = Path(found.spec).absolute().parent
    if hosts is not None and not Path(hosts).is_absolute() and file.parent != folder:  # it is relative to the spec
        sets["launch", "hostfile"] = os.path.relpath(folder / hosts, file.parent)
    return edited(found.text, found.spec, sets, found.overrides, found.raw)


def verified(found: Search, text: str, candidate: Candidate, file: Path) -> str | None:
    """Why the text is not what was measured; None where it is: same global batch, same settings, no error."""
    checked = _checked(found, text, str(file))
    error = next(iter(_errors(checked)), None)
    if error is not None or checked.run is None:
        return error.message if error else "it cannot be read"
    if checked.run.batch.global_batch != found.run.batch.global_batch:
        return f"its global batch would be {checked.run.batch.global_batch}"
    tried = _check(found, candidate).run
    same = tried is not None and settings_of(checked.run) == settings_of(tried)
    return None if same else "its settings would not be those that were measured"


def _check(found: Search, candidate: Candidate) -> Checked:
    """The candidate as its trial will run, through all gates."""
    import yaml

    text = yaml.safe_dump(laid_over(found.raw, candidate.sets), sort_keys=False)
    return _checked(found, text, found.spec)


def _checked(found: Search, text: str, file: str) -> Checked:
    """Its code was allowed when the spec was looked up, or it chooses none."""
    check = partial(check_file, file, text=text, launching=True, allow_code=True)
    return check(hostfile=found.hostfile, world_size=_world(found))


def _world(found: Search) -> int | None:
    return None if found.run.cluster is not None else found.run.degrees.world


def _errors(checked: Checked) -> list[Finding]:
    return [f for f in checked.report.findings if f.is_error]


def _device(run: Run, here: Here) -> tuple[Device | None, str]:
    """What is here: its kind where that is known, and in words."""
    if not here.num_accelerators:
        return find_device("cpu"), f"the CPU ({machine.cpu_model()})"
    names = [a.name for a in machine.accelerators()[: here.num_accelerators]]
    asked = find_device(run.spec.cluster.gpu or "")
    device = asked if asked and not asked.is_cpu else find_device(names[0])
    return device, f"{len(names)} x {names[0]}"


def _hosts(run: Run) -> str:
    count = len(run.cluster.hosts) if run.cluster else 1
    return f"{count} host{'' if count == 1 else 's'}" + (f" of {run.spec.cluster.gpu}" if run.spec.cluster.gpu else "")


def _nothing_to_tune(run: Run, plan: Plan, checked: Checked) -> NoReturn:
    if run.kind != "spec":
        message, key = f"`{checked.report.file}` is a DeepSpeed JSON, which says nothing about model and data", ""
    elif plan.model is None:
        message, key = "the model's size is not known: nothing can be planned, so nothing is chosen", "model"
    else:
        message, key = "the number of ranks or the micro-batch is not known", "train.per_device_train_batch_size"
    place = checked.source.place(key) if checked.source is not None and key else None
    fix = Fix("tune a run spec whose model `harness plan` can count")
    print_findings([Finding("MM013", "error", message, key, place, fix=fix)], checked.source)
    print(f"{_NOTHING}.", file=sys.stderr)
    exit_with(Exit.FINDINGS)
