"""The plan of a run: memory, time and alternatives as one value, and its JSON. Decides nothing and contacts no host."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from harness.facts.devices import DEVICES, Device, find_device
from harness.facts.model_lookup import ModelFacts, ModelLookup, find_model
from harness.findings import Finding, Fix
from harness.plan.alternatives import Alternative, list_alternatives, title_of
from harness.plan.goodput import CheckpointCost, RunCost, checkpoint_cost, run_cost
from harness.plan.memory_estimate import Capacity, Fit, MemoryEstimate, check_fit, estimate_memory
from harness.plan.plan_settings import PlanSettings, settings_of
from harness.plan.rates import BadRate, Rates, override_links, parse_disks, rates_of
from harness.plan.resolved_run import ResolvedRun
from harness.plan.settings_search import filter_fitting, search_settings
from harness.plan.step_time import StepTime, estimate_step_time
from harness.plan.tuned_defaults.impact import DefaultImpact, compute_impacts
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.units import format_bytes, parse_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run needs. `memory`, `fit`, `time` and `rungs` are empty where the model, the ranks or the micro-batch are
    unknown; `findings` say which and how to tell. `best`: the fastest data-parallel settings that fit.
    """

    run: ResolvedRun
    model: ModelFacts | None
    model_source: str
    device: Device | None
    capacity: Capacity
    settings: PlanSettings | None
    memory: MemoryEstimate | None
    fit: Fit
    time: StepTime | None
    alternatives: tuple[Alternative, ...]
    findings: tuple[Finding, ...]
    rates: Rates = field(default_factory=Rates)
    checkpoint_cost: CheckpointCost | None = None
    cost: RunCost | None = None
    fastest_fitting: tuple[Alternative, ...] = ()

    @property
    def title(self) -> str:
        """What is run, in a few words: `ZeRO-3, optimizer on cpu`."""
        return title_of(self.settings) if self.settings else f"ZeRO-{self.run.spec.zero.stage}"

    @property
    def tuned_defaults_impact(self) -> tuple[DefaultImpact, ...]:
        """What the harness chose where the spec is silent, with the difference that the plan sees. Counted anew at
        each call.
        """
        if self.model is None or self.settings is None:
            return ()
        return compute_impacts(self.run, self.model, self.settings, self.device, self.rates)

    def to_json(self) -> dict[str, Any]:
        """The content of `plan.json`. Bytes and seconds; `gpu` values a rank, `host` and `nvme` values a node."""
        from harness.plan.plan_json import plan_json

        return plan_json(self)


def make_plan(
    run: ResolvedRun,
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
    run = with_tuned_defaults(run, base_dir)
    spec = run.spec
    found = find_model(spec.model.name_or_path, spec.model.config, base_dir, spec.model.revision, build=True)
    device, rates, capacity, given = _resolve_cluster(run, gpu)
    settings = settings_of(run)
    known = find_device(spec.cluster.gpu or gpu or "")
    findings = (*_check_inputs(run, found, known, settings), *given)
    plan = Plan(
        run, found.facts, found.source, device, capacity, settings, None, Fit(None, ""), None, (), findings, rates
    )
    if found.facts is None or settings is None:
        return plan
    model = found.facts
    memory = estimate_memory(model, settings, device)
    verdict = check_fit(memory, capacity)
    time = estimate_step_time(model, settings, device, rates)
    saved = None if memory.pooled else checkpoint_cost(settings, model.num_parameters, rates)
    return replace(
        plan,
        memory=memory,
        fit=verdict,
        time=time,
        alternatives=list_alternatives(model, settings, device, capacity, rates),
        findings=(*findings, *_built_model_findings(found), *_check_capacity(memory, capacity, verdict)),
        checkpoint_cost=saved,
        cost=_run_cost(settings, time, saved, tokens, price),
        fastest_fitting=_fastest_fitting(model, settings, device, capacity, rates) if time else (),
    )


def _fastest_fitting(
    model: ModelFacts, s: PlanSettings, device: Device | None, capacity: Capacity, rates: Rates
) -> tuple[Alternative, ...]:
    return tuple(
        islice(filter_fitting(search_settings(model, s, device, capacity, rates, vary_parallel_dims=False)), 3)
    )


def _run_cost(
    s: PlanSettings, time: StepTime | None, saved: CheckpointCost | None, tokens: float | None, price: float | None
) -> RunCost | None:
    if time is None or tokens is None:
        return None
    return run_cost(tokens, time.tokens_per_second, s, saved.lost if saved else 0.0, price)


def _resolve_cluster(run: ResolvedRun, gpu: str | None) -> tuple[Device | None, Rates, Capacity, tuple[Finding, ...]]:
    """The device, the rates and the sizes that the spec gives; what cannot be read is a finding and is left out."""
    cluster = run.spec.cluster
    device = find_device(cluster.gpu or gpu or "")
    host, findings = _parse_size("cluster.host_memory", cluster.host_memory, parse_bytes)
    disks, more = _parse_size("cluster.nvme", cluster.nvme, parse_disks)
    findings += more
    rates = Rates()
    try:
        rates = rates_of(cluster)
        device = override_links(device, cluster)
    except BadRate as error:
        fix = Fix("write a rate such as `400GB/s`")
        findings += (Finding("MM004", "warning", str(error), key=error.key, fix=fix),)
    return device, rates, Capacity(device.memory or None if device else None, host, disks), findings


def _built_model_findings(found: ModelLookup) -> tuple[Finding, ...]:
    if found.facts is None or not found.facts.built:
        return ()
    message = f"`model_type: {found.facts.family}` is not counted by formula: transformers built it on the meta device"
    notes = ("parameters are exact; activations are those of a Llama-like layer",)
    return (Finding("MM006", "info", message, "model.name_or_path", notes=notes),)


def _check_capacity(memory: MemoryEstimate, capacity: Capacity, verdict: Fit) -> tuple[Finding, ...]:
    if verdict.fits is not False:
        return ()
    need, have, of, key = {
        "host memory": (memory.host_peak, capacity.host, f"a host of {memory.ranks_per_host} ranks", "host_memory"),
        "nvme": (memory.nvme_bytes, capacity.nvme, f"a host of {memory.ranks_per_host} ranks", "nvme"),
    }.get(verdict.binding, (memory.gpu_peak, capacity.gpu, "a rank", "gpu"))
    message = f"the plan needs {format_bytes(need)} {verdict.binding} for {of}, and there are {format_bytes(have or 0)}"
    fix = Fix("choose a row of `What else would fit` that fits, or more ranks")
    return (Finding("MM005", "warning", message, f"cluster.{key}", fix=fix),)


def _parse_size(
    key: str, text: str | int | None, parse: Callable[[str | int], int]
) -> tuple[int | None, tuple[Finding, ...]]:
    if text is None:
        return None, ()
    try:
        return parse(text), ()
    except ValueError as error:
        fix = Fix("write a size such as `2TB` or `1024GiB`" if parse is parse_bytes else "write it as `8x3.5TB`")
        return None, (Finding("MM004", "warning", str(error), key=key, fix=fix),)


def _check_inputs(
    run: ResolvedRun, found: ModelLookup, device: Device | None, settings: PlanSettings | None
) -> tuple[Finding, ...]:
    findings = []
    if found.facts is None:
        key = "model.config" if run.spec.model.config is not None else "model.name_or_path"
        notes = ("memory and time are not planned; the run itself is not affected",)
        fix = Fix("name a folder that has a `config.json`, or write `model.config` out")
        findings.append(
            Finding("MM001", "info", f"the model's size is not known: {found.why_not}", key, notes=notes, fix=fix)
        )
    if settings is None:
        missing = "number of ranks" if run.parallel_dims.data is None else "micro-batch"
        fix = Fix(
            "give `--hostfile` or `--world-size`"
            if run.parallel_dims.data is None
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
