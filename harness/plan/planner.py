# SPDX-License-Identifier: Apache-2.0
"""The plan of a run: memory, time and alternatives as one value. Decides nothing and contacts no host."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

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
from harness.plan.trainable_split import TrainableChoice, TrainableSplit, split_parameters
from harness.plan.tuned_defaults.impact import DefaultImpact, compute_impacts
from harness.plan.tuned_defaults.rules import with_tuned_defaults
from harness.plan.zero_partitions import count_trainable
from harness.spec.sections.data_spec import DataSpec
from harness.units import format_bytes, parse_bytes

_TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")


@dataclass(frozen=True, slots=True)
class Plan:
    """Memory, time and alternatives of a run.

    `memory`, `fit`, `time` and `alternatives` are empty where the model, the ranks or the micro-batch are unknown;
    `findings` name the missing one. `fastest_fitting`: the fastest data-parallel settings that fit.
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
    is_capacity_local: bool = False
    """Is the host's memory that of this machine?"""

    @property
    def title(self) -> str:
        """The run in a few words: `ZeRO-3, optimizer on CPU`."""
        return title_of(self.settings) if self.settings else f"ZeRO-{self.run.spec.zero.stage}"

    @property
    def trainable(self) -> TrainableSplit | None:
        """The trainable and the frozen parameters; None where the model is unknown. Computed at each call."""
        return split_parameters(self.model, TrainableChoice.from_spec(self.run.spec.model)) if self.model else None

    @property
    def tuned_defaults_impact(self) -> tuple[DefaultImpact, ...]:
        """The tuned defaults of the run, each with its effect on memory and time. Computed at each call."""
        if self.model is None or self.settings is None:
            return ()
        return compute_impacts(self.run, self.model, self.settings, self.device, self.rates)


def make_plan(
    run: ResolvedRun,
    base_dir: Path | None = None,
    gpu: str | None = None,
    *,
    tokens: float | None = None,
    price: float | None = None,
    local_memory: int | None = None,
) -> Plan:
    """Plan a run; `base_dir` is the folder that a relative `model.name_or_path` starts from. `gpu` is
    the kind of device where the spec names none (`cpu`: this machine has no other). `tokens` of the whole run and
    `price` a GPU and hour give hours and money. `local_memory` is that of this machine: the capacity of a CPU run that
    names no hosts and no `cluster.host_memory`. Raises nothing.
    """
    run = with_tuned_defaults(run, base_dir)
    spec = run.spec
    lookup = find_model(spec.model.name_or_path, spec.model.config, base_dir, spec.model.revision, build=True)
    device, rates, capacity, cluster_findings = _resolve_cluster(run, gpu)
    settings = settings_of(run)
    is_local = _is_local_cpu_run(run, device, capacity, settings)
    capacity = replace(capacity, host=local_memory) if is_local else capacity
    device_of_spec = find_device(spec.cluster.gpu or gpu or "")
    findings = (*_check_inputs(run, lookup, device_of_spec, settings), *cluster_findings)
    plan = Plan(
        run, lookup.facts, lookup.source, device, capacity, settings, None, Fit(None, ""), None, (), findings, rates
    )
    plan = replace(plan, is_capacity_local=is_local and local_memory is not None)
    if lookup.facts is None or settings is None:
        return plan
    model = lookup.facts
    memory = estimate_memory(model, settings, device)
    fit = check_fit(memory, capacity)
    time = estimate_step_time(model, settings, device, rates)
    trainable, whole = count_trainable(model, settings)
    checkpoints = None if memory.pooled else checkpoint_cost(settings, trainable, rates, whole - trainable)
    return replace(
        plan,
        memory=memory,
        fit=fit,
        time=time,
        alternatives=list_alternatives(model, settings, device, capacity, rates),
        findings=(
            *findings,
            *_built_model_findings(lookup),
            *_row_length_findings(run, device),
            *_check_capacity(memory, capacity, fit),
        ),
        checkpoint_cost=checkpoints,
        cost=_run_cost(settings, time, checkpoints, tokens, price),
        fastest_fitting=_fastest_fitting(model, settings, device, capacity, rates) if time else (),
    )


def _is_local_cpu_run(
    run: ResolvedRun, device: Device | None, capacity: Capacity, settings: PlanSettings | None
) -> bool:
    """Is it a CPU run on one host that nothing names, so that `harness launch` would start it on this machine?"""
    is_cpu = device is not None and device.is_cpu
    is_single = run.cluster is None and settings is not None and settings.num_hosts == 1
    return is_cpu and is_single and capacity.host is None


def _fastest_fitting(
    model: ModelFacts, settings: PlanSettings, device: Device | None, capacity: Capacity, rates: Rates
) -> tuple[Alternative, ...]:
    return tuple(
        islice(filter_fitting(search_settings(model, settings, device, capacity, rates, vary_parallel_dims=False)), 3)
    )


def _run_cost(
    settings: PlanSettings,
    time: StepTime | None,
    checkpoints: CheckpointCost | None,
    tokens: float | None,
    price: float | None,
) -> RunCost | None:
    if time is None or tokens is None:
        return None
    return run_cost(tokens, time.tokens_per_second, settings, checkpoints.lost if checkpoints else 0.0, price)


def _resolve_cluster(run: ResolvedRun, gpu: str | None) -> tuple[Device | None, Rates, Capacity, tuple[Finding, ...]]:
    """The device, the rates and the sizes of the spec. An unreadable figure is a finding and is left out."""
    cluster = run.spec.cluster
    device = find_device(cluster.gpu or gpu or "")
    host, findings = _parse_size("cluster.host_memory", cluster.host_memory, parse_bytes)
    disks, disk_findings = _parse_size("cluster.nvme", cluster.nvme, parse_disks)
    findings += disk_findings
    rates = Rates()
    try:
        rates = rates_of(cluster)
        device = override_links(device, cluster)
    except BadRate as error:
        fix = Fix("write a rate such as `400GB/s`")
        findings += (Finding("MM004", "warning", str(error), key=error.key, fix=fix),)
    return device, rates, Capacity(device.memory or None if device else None, host, disks), findings


def _row_length_findings(run: ResolvedRun, device: Device | None) -> tuple[Finding, ...]:
    """The memory that is not planned: oneDNN's kernels for each length of rows, in bf16 on a CPU."""
    data = run.spec.data
    is_cpu_bf16 = device is not None and device.is_cpu and run.spec.precision.bf16
    if not is_cpu_bf16 or data.packing or data.pad_to_multiple_of is not None or not _may_have_rows(data):
        return ()
    key = "data.pad_to_multiple_of"
    message = "host memory can grow beyond the plan: in bf16 on a CPU, torch keeps kernels for each length of rows"
    notes = ("oneDNN does not free them; a run with rows of 1 to 256 tokens held 1,612 MiB a rank instead of 628",)
    fix = Fix("set it to 64, or `data.packing: true`", {key: 64}, effect="more padding, which the loss does not count")
    return (Finding("MM015", "info", message, key, notes=notes, fix=fix),)


def _may_have_rows(data: DataSpec) -> bool:
    """Can records become rows of their own length? A text is cut into blocks of one length."""
    formats = [source.format or data.format for source in data.train or ()]
    paths = [source.path for source in data.train or ()]
    return any(
        name != "text" if name != "auto" else path.lower().endswith(_TABLE_SUFFIXES) or path.endswith("-chat")
        for name, path in zip(formats, paths, strict=True)
    )


def _built_model_findings(lookup: ModelLookup) -> tuple[Finding, ...]:
    if lookup.facts is None or not lookup.facts.built:
        return ()
    message = f"`model_type: {lookup.facts.family}` is not counted by formula: transformers built it on the meta device"
    notes = ("parameters are exact; activations are those of a Llama-like layer",)
    return (Finding("MM006", "info", message, "model.name_or_path", notes=notes),)


def _check_capacity(memory: MemoryEstimate, capacity: Capacity, fit: Fit) -> tuple[Finding, ...]:
    if fit.fits is not False:
        return ()
    required, available, owner, key = {
        "host memory": (memory.host_peak, capacity.host, f"a host of {memory.ranks_per_host} ranks", "host_memory"),
        "NVMe": (memory.nvme_bytes, capacity.nvme, f"a host of {memory.ranks_per_host} ranks", "nvme"),
    }.get(fit.binding, (memory.gpu_peak, capacity.gpu, "a rank", "gpu"))
    message = (
        f"the plan needs {format_bytes(required)} {fit.binding} for {owner}, "
        f"and there are {format_bytes(available or 0)}"
    )
    fix = Fix("choose a row of `Alternatives` that fits, or more ranks")
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
    run: ResolvedRun, lookup: ModelLookup, device: Device | None, settings: PlanSettings | None
) -> tuple[Finding, ...]:
    findings = []
    if lookup.facts is None:
        key = "model.config" if run.spec.model.config is not None else "model.name_or_path"
        notes = ("memory and time are not planned",)
        fix = Fix("name a folder that has a `config.json`, or write `model.config` out")
        findings.append(
            Finding("MM001", "info", f"the model's size is not known: {lookup.why_not}", key, notes=notes, fix=fix)
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
        similar = difflib.get_close_matches(gpu, DEVICES, n=1, cutoff=0.3)
        fix = Fix(f"set `cluster.gpu: {similar[0]}`" if similar else "choose one of " + ", ".join(DEVICES))
        notes = ("known kinds: " + ", ".join(DEVICES),)
        findings.append(
            Finding("MM003", "warning", f"GPU kind `{gpu}` is not known", "cluster.gpu", notes=notes, fix=fix)
        )
    return tuple(findings)
