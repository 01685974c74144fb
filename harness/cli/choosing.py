"""What `harness plan` does beyond one run: the search under the gates, the fewest GPUs, and a run from a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.cli.common import Checked, check_file
from harness.errors import Exit, Refused
from harness.facts.devices import find_device
from harness.findings import Finding, Fix
from harness.plan.ask import Ask, changes_for, merged, raw_floor, spec_of, wrong
from harness.plan.ladder import Rung
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run
from harness.plan.search import fitting, search

_MOST_CHECKED = 40
_MOST_HOSTS = 4096


@dataclass(frozen=True)
class Chosen:
    """The outcome of a search: all choices in order, the first that fits and passes, and those refused before it.

    `launchable`: `harness launch` would start it; otherwise it is valid and planned, and launch says why not.
    """

    rungs: tuple[Rung, ...]
    rung: Rung | None
    raw: dict[str, Any]
    text: str
    plan: Plan | None
    refused: tuple[tuple[Rung, Finding], ...]
    launchable: bool


@dataclass(frozen=True)
class Fewest:
    """The smallest number of GPUs on which something fits; `rung` is the fastest such choice, None where none does."""

    gpus: int
    rung: Rung | None
    floor: int
    states: float


def checked_ask(ask: Ask) -> tuple[dict[str, Any], Checked]:
    """The run that is asked for, through the same checks as a file. Raises Refused with everything that is wrong."""
    found = wrong(ask)
    if found:
        raise Refused(found, Exit.FINDINGS)
    raw = spec_of(ask)
    return raw, check_file(name_of(ask), text=as_yaml(raw), world_size=ask.gpus)


def name_of(ask: Ask) -> str:
    """A file name for a run that has no file."""
    return f"{Path(ask.model).name.lower() or 'run'}-{ask.gpus}x{ask.gpu.lower()}.yaml"


def as_yaml(raw: Mapping[str, Any], head: str = "") -> str:
    """The spec as text, sections in the order in which they are given."""
    return head + yaml.safe_dump(dict(raw), sort_keys=False, default_flow_style=False)


def choose(run: Run, raw: Mapping[str, Any], file: str, hostfile: str | None) -> Chosen | None:
    """Search, then ask the gates from the best choice on. None where the model, the ranks or the batch are unknown.

    Raises Refused where no step can be timed.
    """
    base = make_plan(run, Path.cwd())
    if base.model is None or base.settings is None:
        return None
    if base.time is None:
        fix = Fix("set `cluster.gpu` to a kind that `harness plan` knows, such as `H100-80GB`")
        message = "a search needs a GPU whose speed is known"
        raise Refused([Finding("MM007", "error", message, "cluster.gpu", fix=fix)], Exit.USAGE)
    rungs = search(base.model, base.settings, base.device, base.capacity, base.rates)
    refused: list[tuple[Rung, Finding]] = []
    second: Chosen | None = None
    for rung in _first(fitting(rungs)):
        changed = merged(raw, changes_for(rung.settings, base.model, raw))
        text = as_yaml(changed)
        checked = _check(file, text, run, hostfile, launching=True)
        if checked.report.ok and checked.run is not None:
            made = make_plan(checked.run, Path.cwd())
            return Chosen(rungs, rung, changed, text, made, tuple(refused), launchable=True)
        refused.append((rung, next(f for f in checked.report.findings if f.severity == "error")))
        if second is None:
            valid = _check(file, text, run, hostfile, launching=False)
            if valid.report.ok and valid.run is not None:
                made = make_plan(valid.run, Path.cwd())
                second = Chosen(rungs, rung, changed, text, made, (), launchable=False)
    if second is not None:
        return replace(second, refused=tuple(refused))
    return Chosen(rungs, None, {}, "", None, tuple(refused), launchable=False)


def _first(rungs: Any) -> list[Rung]:
    """The best choice of every kind of place and degree, best kinds first: a gate refuses kinds, seldom batches."""
    best: dict[tuple[object, ...], Rung] = {}
    for rung in rungs:
        s = rung.settings
        kind = (s.stage, s.optimizer_at, s.parameters_at, s.tensor, s.pipeline, s.sequence_parallel)
        best.setdefault(kind, rung)
    return list(best.values())[:_MOST_CHECKED]


def _check(file: str, text: str, run: Run, hostfile: str | None, *, launching: bool) -> Checked:
    world = None if run.cluster is not None else run.degrees.world
    return check_file(file, text=text, hostfile=hostfile, world_size=world, launching=launching, allow_code=True)


def fewest(ask: Ask) -> Fewest:
    """Try whole hosts, and parts of one, until something fits. Raises Refused with everything that is wrong."""
    found = wrong(ask)
    if found:
        raise Refused(found, Exit.FINDINGS)
    floor, states = 1, 0.0
    device = find_device(ask.gpu)
    for gpus in _counts(ask.gpus_per_node or 8):
        tried = replace(ask, gpus=gpus)
        checked = check_file(name_of(tried), text=as_yaml(spec_of(tried)), world_size=gpus)
        plan = make_plan(checked.run, Path.cwd()) if checked.run is not None else None
        if plan is None or plan.model is None or plan.settings is None or device is None:
            raise Refused(checked.report.findings or (_no_size(ask),), Exit.FINDINGS)
        states = plan.settings.recipe.per_rank(plan.model.num_parameters, 1, 0)
        floor = raw_floor(states, device)
        rungs = search(plan.model, plan.settings, plan.device, plan.capacity, plan.rates, degrees=False)
        best = next((rung for rung in fitting(rungs) if ask.stage in (None, rung.settings.stage)), None)
        if best is not None:
            return Fewest(gpus, best, floor, states)
    return Fewest(_MOST_HOSTS * (ask.gpus_per_node or 8), None, floor, states)


def _no_size(ask: Ask) -> Finding:
    message = f"the model's size is not known: `{ask.model}`"
    return Finding("MM001", "error", message, fix=Fix("name a folder with a `config.json`"))


def _counts(per_node: int) -> Sequence[int]:
    inside = [n for n in (1, 2, 4) if n < per_node]
    hosts = (*range(1, 17), *range(18, 64, 2), *(2**i for i in range(6, 13)))
    return [*inside, *(per_node * n for n in hosts)]
