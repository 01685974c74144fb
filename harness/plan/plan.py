"""The plan of a run: memory, time and alternatives as one value, and its JSON. Decides nothing and contacts no host."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.facts.devices import DEVICES, Device, find_device
from harness.facts.models import Found, ModelFacts, find
from harness.findings import Finding, Fix
from harness.plan.choices.choosing import with_choices
from harness.plan.choices.predicted import Difference, differences
from harness.plan.goodput import Checkpoints, Cost, checkpoints, cost_of
from harness.plan.ladder import Rung, ladder, title
from harness.plan.memory import Capacity, Fit, Memory, fit, memory_of
from harness.plan.rates import BadRate, Rates, device_with, parse_disks, rates_of
from harness.plan.run import Run
from harness.plan.search import fitting, search
from harness.plan.settings import Settings, settings_of
from harness.plan.time import StepTime, step_time
from harness.units import format_bytes, parse_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs. `memory`, `fit`, `time` and `rungs` are empty where the model, the ranks or the micro-batch are
    unknown; `findings` say which and how to tell. `best`: the fastest data-parallel settings that fit.
    """

    run: Run
    model: ModelFacts | None
    model_source: str
    device: Device | None
    capacity: Capacity
    settings: Settings | None
    memory: Memory | None
    fit: Fit
    time: StepTime | None
    rungs: tuple[Rung, ...]
    findings: tuple[Finding, ...]
    rates: Rates = field(default_factory=Rates)
    saved: Checkpoints | None = None
    cost: Cost | None = None
    best: tuple[Rung, ...] = ()

    @property
    def title(self) -> str:
        """What is run, in a few words: `ZeRO-3, optimizer on cpu`."""
        return title(self.settings) if self.settings else f"ZeRO-{self.run.spec.zero.stage}"

    @property
    def chosen(self) -> tuple[Difference, ...]:
        """What the harness chose where the spec is silent, with the difference that the plan sees. Counted anew at
        each call.
        """
        if self.model is None or self.settings is None:
            return ()
        return differences(self.run, self.model, self.settings, self.device, self.rates)

    def to_json(self) -> dict[str, Any]:
        """The content of `plan.json`. Bytes and seconds; `gpu` values a rank, `host` and `nvme` values a node."""
        from harness.plan.plan_json import plan_json

        return plan_json(self)


def make_plan(
    run: Run,
    base_dir: Path | None = None,
    gpu: str | None = None,
    *,
    tokens: float | None = None,
    price: float | None = None,
) -> Plan:
    """Plan a run; `base_dir` is the folder that a relative `model.name_or_path` starts from. `gpu` is
    the kind of device where the spec names none (`cpu`: this machine has no other). `tokens` of the whole run and
    `price` a GPU and hour give hours and money. Raises nothing.
    """
    run = with_choices(run, base_dir)
    spec = run.spec
    found = find(spec.model.name_or_path, spec.model.config, base_dir, spec.model.revision, build=True)
    device, rates, capacity, given = _machine(run, gpu)
    settings = settings_of(run)
    known = find_device(spec.cluster.gpu or gpu or "")
    findings = (*_unknown(run, found, known, settings), *given)
    plan = Plan(
        run, found.facts, found.source, device, capacity, settings, None, Fit(None, ""), None, (), findings, rates
    )
    if found.facts is None or settings is None:
        return plan
    model = found.facts
    memory = memory_of(model, settings, device)
    verdict = fit(memory, capacity)
    time = step_time(model, settings, device, rates)
    saved = None if memory.pooled else checkpoints(settings, model.num_parameters, rates)
    return replace(
        plan,
        memory=memory,
        fit=verdict,
        time=time,
        rungs=ladder(model, settings, device, capacity, rates),
        findings=(*findings, *_built(found), *_too_large(memory, capacity, verdict)),
        saved=saved,
        cost=_cost(settings, time, saved, tokens, price),
        best=_best(model, settings, device, capacity, rates) if time else (),
    )


def _best(model: ModelFacts, s: Settings, device: Device | None, capacity: Capacity, rates: Rates) -> tuple[Rung, ...]:
    return tuple(islice(fitting(search(model, s, device, capacity, rates, degrees=False)), 3))


def _cost(
    s: Settings, time: StepTime | None, saved: Checkpoints | None, tokens: float | None, price: float | None
) -> Cost | None:
    if time is None or tokens is None:
        return None
    return cost_of(tokens, time.tokens_per_second, s, saved.lost if saved else 0.0, price)


def _machine(run: Run, gpu: str | None) -> tuple[Device | None, Rates, Capacity, tuple[Finding, ...]]:
    """The device, the rates and the sizes that the spec gives; what cannot be read is a finding and is left out."""
    cluster = run.spec.cluster
    device = find_device(cluster.gpu or gpu or "")
    host, findings = _size("cluster.host_memory", cluster.host_memory, parse_bytes)
    disks, more = _size("cluster.nvme", cluster.nvme, parse_disks)
    findings += more
    rates = Rates()
    try:
        rates = rates_of(cluster)
        device = device_with(device, cluster)
    except BadRate as error:
        fix = Fix("write a rate such as `400GB/s`")
        findings += (Finding("MM004", "warning", str(error), key=error.key, fix=fix),)
    return device, rates, Capacity(device.memory or None if device else None, host, disks), findings


def _built(found: Found) -> tuple[Finding, ...]:
    if found.facts is None or not found.facts.built:
        return ()
    message = f"`model_type: {found.facts.family}` is not counted by formula: transformers built it on the meta device"
    notes = ("parameters are exact; activations are those of a Llama-like layer",)
    return (Finding("MM006", "info", message, "model.name_or_path", notes=notes),)


def _too_large(memory: Memory, capacity: Capacity, verdict: Fit) -> tuple[Finding, ...]:
    if verdict.fits is not False:
        return ()
    need, have, of, key = {
        "host memory": (memory.host_peak, capacity.host, f"a host of {memory.ranks_per_host} ranks", "host_memory"),
        "nvme": (memory.nvme, capacity.nvme, f"a host of {memory.ranks_per_host} ranks", "nvme"),
    }.get(verdict.binding, (memory.gpu_peak, capacity.gpu, "a rank", "gpu"))
    message = f"the plan needs {format_bytes(need)} {verdict.binding} for {of}, and there are {format_bytes(have or 0)}"
    fix = Fix("choose a row of `What else would fit` that fits, or more ranks")
    return (Finding("MM005", "warning", message, f"cluster.{key}", fix=fix),)


def _size(
    key: str, text: str | int | None, parse: Callable[[str | int], int]
) -> tuple[int | None, tuple[Finding, ...]]:
    if text is None:
        return None, ()
    try:
        return parse(text), ()
    except ValueError as error:
        fix = Fix("write a size such as `2TB` or `1024GiB`" if parse is parse_bytes else "write it as `8x3.5TB`")
        return None, (Finding("MM004", "warning", str(error), key=key, fix=fix),)


def _unknown(run: Run, found: Found, device: Device | None, settings: Settings | None) -> tuple[Finding, ...]:
    findings = []
    if found.facts is None:
        key = "model.config" if run.spec.model.config is not None else "model.name_or_path"
        notes = ("memory and time are not planned; the run itself is not affected",)
        fix = Fix("name a folder that has a `config.json`, or write `model.config` out")
        findings.append(
            Finding("MM001", "info", f"the model's size is not known: {found.why_not}", key, notes=notes, fix=fix)
        )
    if settings is None:
        missing = "number of ranks" if run.degrees.data is None else "micro-batch"
        fix = Fix(
            "give `--hostfile` or `--world-size`"
            if run.degrees.data is None
            else "set `train.per_device_train_batch_size`"
        )
        notes = ("memory and time are not planned",)
        findings.append(Finding("MM002", "info", f"the {missing} is not known", "train", notes=notes, fix=fix))
    gpu = run.spec.cluster.gpu
    if gpu and device is None:
        close = difflib.get_close_matches(gpu, DEVICES, n=1, cutoff=0.3)
        fix = Fix(f"set `cluster.gpu: {close[0]}`" if close else "choose one of " + ", ".join(DEVICES))
        notes = ("known kinds: " + ", ".join(DEVICES),)
        findings.append(
            Finding("MM003", "warning", f"GPU kind `{gpu}` is not known", "cluster.gpu", notes=notes, fix=fix)
        )
    return tuple(findings)
