# SPDX-License-Identifier: Apache-2.0
"""The plan of a run: memory, time and alternatives as one value. Decides nothing and contacts no host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.facts.devices import TERA, Device, describe_device, find_device, notes_on_kind, suggest_device
from harness.facts.model_lookup import ModelFacts, ModelLookup
from harness.findings import Finding, Fix
from harness.hostinfo.module_probe import OwnModule
from harness.plan.memory.memory_estimate import Capacity, Fit, MemoryEstimate, check_fit, estimate_memory
from harness.plan.memory.zero_partitions import count_frozen_bytes, count_trainable
from harness.plan.own_states import OwnStates, count_own_states, own_module_findings
from harness.plan.plan_notes import attention_findings, built_model_findings, row_kernel_findings, tower_findings
from harness.plan.search.alternatives import Alternative, best_of_each_kind, title_of
from harness.plan.search.async_offload import (
    AsyncOffload,
    can_step_async,
    list_async_offloads,
    read_async_offload,
    with_async_offload,
    with_current_row,
)
from harness.plan.search.settings_search import filter_fitting, list_alternatives, search_settings
from harness.plan.settings.checkpointed_layers import tiles_mlp
from harness.plan.settings.cluster_sizes import parse_size
from harness.plan.settings.plan_settings import PlanSettings, block_value, settings_of
from harness.plan.time.collective_traffic import CollectiveTraffic, list_collectives
from harness.plan.time.cost_range import CostRange, cost_range
from harness.plan.time.goodput import CheckpointCost, IntervalCost, checkpoint_cost
from harness.plan.time.rates import BadRate, Rates, override_links, parse_disks, parse_rate, rates_of
from harness.plan.time.step_time import StepTime, estimate_step_time
from harness.plan.trainer_loop import LoopMemory, estimate_loop, logits_bytes
from harness.plan.tuned_defaults.impact import DefaultImpact, compute_impacts
from harness.plan.tuned_defaults.rules import with_trainer, with_tuned_defaults
from harness.plan.weights.trainable_split import TrainableChoice, TrainableSplit, split_parameters
from harness.run.objective_facts import facts_of
from harness.run.resolved_run import ResolvedRun
from harness.spec.sections.cluster_spec import ClusterSpec
from harness.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from harness.plan.time.calibration import Calibration
    from harness.plan.time.calibration_file import Calibrations


@dataclass(frozen=True, slots=True)
class Plan:
    """Memory, time and alternatives of a run.

    `memory`, `fit`, `time` and `alternatives` are empty where the model, the ranks or the micro-batch are unknown;
    `findings` name the missing one. `time` is there for what does not fit too, `cost` is not. `fastest_fitting`: the
    fastest settings that fit, those of the same parallel sizes unless a search found them; `best_by_kind`: the fastest
    of each stage and offload.
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
    fastest_fitting: tuple[Alternative, ...] = ()
    best_by_kind: tuple[Alternative, ...] = ()
    is_capacity_local: bool = False
    """Is the host's memory that of this machine?"""
    async_offload: AsyncOffload | None = None
    """ZenFlow or SuperOffload, where the run has one."""
    tokens: float | None = None
    price: float | None = None
    """Of the whole run, and of a GPU and hour."""
    calibration: Calibration | None = None
    calibration_note: str = ""
    """Why a calibration of such GPUs is not of the machine of this plan."""
    other_loop: LoopMemory | None = None
    """The same settings in the loop of another trainer; of `harness launch` where the plan is that of a trainer."""
    own_states: OwnStates | None = None
    """Of a module of the user's own, which was built to be counted."""

    @property
    def cost(self) -> CostRange | None:
        """Hours and money of the whole run; None for a run that does not fit, and without tokens."""
        return None if self.fit.verdict is False else self.cost_at(self.time)

    def cost_at(self, time: StepTime | None) -> CostRange | None:
        """The same at another speed, that of an alternative."""
        if time is None or self.tokens is None or self.settings is None:
            return None
        return cost_range(self.tokens, time, self.settings, self.lost_share(time), self.price)

    def saves_at(self, time: StepTime | None) -> IntervalCost | None:
        """The loss with the run's own `save_steps`; None where it has none, and where the step's time is not known."""
        steps = self.run.spec.checkpoint.save_steps
        if self.checkpoint_cost is None or steps is None or time is None:
            return None
        return self.checkpoint_cost.at_interval(steps, time.seconds)

    def lost_share(self, time: StepTime | None) -> float:
        """Share of the time that saves and failures take: with the run's own interval, else with the best one."""
        saves = self.saves_at(time)
        best = self.checkpoint_cost.lost if self.checkpoint_cost else 0.0
        return best if saves is None else saves.lost

    @property
    def title(self) -> str:
        """The run in a few words: `ZeRO-3, optimizer on CPU`."""
        extra = f" with {self.async_offload.title}" if self.async_offload is not None else ""
        return title_of(self.settings) + extra if self.settings else f"ZeRO-{self.run.spec.zero.stage}"

    @property
    def trainable(self) -> TrainableSplit | None:
        """The trainable and the frozen parameters; None where the model is unknown. Computed at each call."""
        return split_parameters(self.model, TrainableChoice.from_spec(self.run.spec.model)) if self.model else None

    @property
    def async_offloads(self) -> tuple[Alternative, ...]:
        """The run with ZenFlow or SuperOffload, where DeepSpeed trains so. Computed at each call."""
        if self.model is None or self.settings is None or self.async_offload or not can_step_async(self.run.spec):
            return ()
        return list_async_offloads(self.model, self.settings, self.device, self.capacity, self.rates)

    @property
    def traffic(self) -> tuple[CollectiveTraffic, ...]:
        """The collectives of a step; none where the model or the ranks are unknown. Computed at each call."""
        if self.model is None or self.settings is None:
            return ()
        return list_collectives(self.model, self.settings, self.device, self.rates)

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
    with_alternatives: bool = True,
    with_search: bool = True,
    calibrations: Calibrations | None = None,
    build: bool = True,
    trainer: str = "",
    compare_with: str = "trainer",
    own_module: OwnModule | str = "",
    by_name: bool = False,
) -> Plan:
    """Plan a run; `base_dir` is the folder that a relative `model.name_or_path` starts from. `gpu` is
    the kind of device where the spec names none (`cpu`: this machine has no other). `tokens` of the whole run and
    `price` a GPU and hour give hours and money. `local_memory` is that of this machine: the capacity of a CPU run that
    names no hosts and no `cluster.host_memory`. Without alternatives the plan is that of the run alone; without a
    search it has no fastest ones. The one of `calibrations` that is of its machine scales its rates. Without `build`,
    for a run of somebody else, no program is started, a family without a formula is estimated. `trainer`: plan the loop
    of this one (`trainer_loop.TRAINERS`) beside ours, else ours beside that of `compare_with`. `own_module`: a
    module of the user's own, or the reason why it is not known. `by_name`: of a model that is not known here, plan
    what its name says. Raises nothing.
    """
    run = with_tuned_defaults(run, base_dir, by_name=by_name)
    spec = run.spec
    lookup = run.find_model(base_dir, build=build, estimate=not build, by_name=by_name)
    ours = run
    run = with_trainer(run, trainer, lookup.facts) if trainer else run
    device, rates, capacity, cluster_findings = _resolve_cluster(run, gpu)
    settings = settings_of(run)
    is_local = _is_local_cpu_run(run, device, capacity, settings)
    capacity = replace(capacity, host=local_memory) if is_local else capacity
    findings = (*_check_inputs(run, lookup, device, settings, own_module), *cluster_findings)
    plan = Plan(
        run, lookup.facts, lookup.source, device, capacity, settings, None, Fit(None, ""), None, (), findings, rates
    )
    plan = replace(
        plan, is_capacity_local=local_memory is not None and capacity.host == local_memory, tokens=tokens, price=price
    )
    if settings is not None and not isinstance(own_module, str):
        plan = replace(plan, own_states=count_own_states(own_module, settings))
    if lookup.facts is None or settings is None:
        return plan
    if calibrations is not None:
        chosen, note = calibrations.choose_for(device, settings, spec.cluster)
        rates = rates if chosen is None else replace(rates, scale=chosen.scale, spread=chosen.spread)
        findings = (*plan.findings, *([calibrations.finding] if calibrations.finding else []))
        plan = replace(plan, rates=rates, findings=findings, calibration=chosen, calibration_note=note)
    model = lookup.facts
    memory = estimate_memory(model, settings, device)
    fit = check_fit(memory, capacity)
    time = estimate_step_time(model, settings, device, rates)
    zero_block = spec.deepspeed.get("zero_optimization")
    offload = read_async_offload(settings, zero_block, spec.train.max_grad_norm)
    if offload is not None:
        memory, time = with_async_offload(memory, time, offload, model, settings)
        fit = check_fit(memory, capacity)
    (trainable, _), frozen = count_trainable(model, settings), count_frozen_bytes(model, settings)
    checkpoints = None if memory.pooled else checkpoint_cost(settings, trainable, rates, frozen, device)
    plan = replace(
        plan,
        memory=memory,
        fit=fit,
        time=time,
        async_offload=offload,
        findings=(
            *findings,
            *built_model_findings(lookup),
            *row_kernel_findings(run, device),
            *attention_findings(run, device),
            *untested_findings(settings, device),
            *_check_capacity(memory, capacity, fit),
            *_logits_findings(run, base_dir, model, device, capacity, memory),
        ),
        checkpoint_cost=checkpoints,
    )
    if not with_alternatives:
        return plan
    if ours.kind == "spec":
        other = estimate_loop(ours, "" if trainer else compare_with, model, device, capacity)
        plan = replace(plan, other_loop=other)
    alternatives = list_alternatives(run, model, device, capacity, rates)
    if offload is not None:
        alternatives = with_current_row(alternatives, offload, memory, time, fit)
    plan = replace(plan, alternatives=alternatives)
    if time is None or not with_search:
        return plan
    found = search_settings(run, model, device, capacity, rates, vary_parallel_dims=False)
    fitting = list(filter_fitting(found))
    return replace(plan, fastest_fitting=tuple(fitting[:3]), best_by_kind=tuple(best_of_each_kind(fitting)[:4]))


def _is_local_cpu_run(
    run: ResolvedRun, device: Device | None, capacity: Capacity, settings: PlanSettings | None
) -> bool:
    """Is it a CPU run on one host that nothing names, so that `harness launch` would start it on this machine?"""
    is_cpu = device is not None and device.is_cpu
    is_single = run.cluster is None and settings is not None and settings.num_hosts == 1
    return is_cpu and is_single and capacity.host is None


def _resolve_cluster(run: ResolvedRun, gpu: str | None) -> tuple[Device | None, Rates, Capacity, tuple[Finding, ...]]:
    """The device, the rates and the sizes of the spec. An unreadable figure is a finding and is left out."""
    cluster = run.spec.cluster
    host, findings = parse_size("cluster.host_memory", cluster.host_memory, parse_bytes)
    disks, disk_findings = parse_size("cluster.nvme", cluster.nvme, parse_disks)
    device, device_findings = _resolve_device(cluster, gpu)
    findings += (*disk_findings, *device_findings)
    rates = Rates()
    try:
        rates = rates_of(cluster)
        device = override_links(device, cluster)
    except BadRate as error:
        fix = Fix("write a rate such as `400GB/s`")
        findings += (Finding("MM004", "warning", str(error), key=error.key, fix=fix),)
    return device, rates, Capacity(device.memory or None if device else None, host, disks), findings


def _resolve_device(cluster: ClusterSpec, gpu: str | None) -> tuple[Device | None, tuple[Finding, ...]]:
    """The kind of GPU with the spec's own figures. An unreadable figure is a finding and is left out."""
    name = cluster.gpu or gpu or ""
    memory, findings = parse_size("cluster.gpu_memory", cluster.gpu_memory, parse_bytes)
    key, rate = "cluster.gpu_memory_bandwidth", cluster.gpu_memory_bandwidth
    bandwidth, rate_findings = parse_size(key, rate, lambda text: int(parse_rate(text)))
    flops = cluster.gpu_tflops and cluster.gpu_tflops * TERA
    return describe_device(name, memory, flops, bandwidth, find_device(name)), findings + rate_findings


def _logits_findings(
    run: ResolvedRun,
    base_dir: Path | None,
    model: ModelFacts,
    device: Device | None,
    capacity: Capacity,
    memory: MemoryEstimate,
) -> tuple[Finding, ...]:
    """A run whose `torch_autocast` switches the chunked loss off, where the chunks would save a tenth of a GPU."""
    if run.kind != "spec" or "torch_autocast" not in run.spec.deepspeed or capacity.gpu is None or memory.pooled:
        return ()
    block = {key: value for key, value in run.spec.deepspeed.items() if key != "torch_autocast"}
    is_half = block_value(run.spec.deepspeed, "torch_autocast", "dtype") in ("fp16", "float16", "torch.float16")
    name = "fp16" if is_half or run.spec.precision.fp16 else "bf16"
    precision = run.spec.precision.model_copy(update={"bf16": name == "bf16", "fp16": name == "fp16"})
    spec = run.spec.model_copy(update={"deepspeed": block, "precision": precision})
    other = run._replace(spec=spec, tuned_defaults=None)
    loop = estimate_loop(with_tuned_defaults(other, base_dir), "", model, device, capacity)
    if loop is None or memory.gpu_peak - loop.memory.gpu_peak < capacity.gpu // 10:
        return ()
    verdict = {True: "fits", False: "does not fit", None: "may fit"}[loop.fit.verdict]
    message = (
        f"`torch_autocast` switches the chunked loss off: logits take {format_bytes(logits_bytes(memory))};"
        f" in {name} without it a rank needs {format_bytes(loop.memory.gpu_peak)}, which {verdict}"
    )
    sets = {"deepspeed.torch_autocast": None, f"precision.{name}": True}
    fix = Fix(f"replace it by `precision.{name}: true`, which has fp32 masters too", sets)
    return (Finding("MM021", "warning", message, "deepspeed.torch_autocast", fix=fix),)


def _check_capacity(memory: MemoryEstimate, capacity: Capacity, fit: Fit) -> tuple[Finding, ...]:
    if fit.verdict is not False:
        return ()
    required, available, owner, key = {
        "host memory": (memory.host_peak, capacity.host, f"a host of {memory.ranks_per_host} ranks", "host_memory"),
        "NVMe": (memory.nvme_bytes, capacity.nvme, f"a host of {memory.ranks_per_host} ranks", "nvme"),
    }.get(fit.binding, (memory.gpu_peak, capacity.gpu, "a rank", "gpu"))
    message = (
        f"the plan needs {format_bytes(required)} {fit.binding} for {owner}, "
        f"and there are {format_bytes(available or 0)}"
    )
    if fit.fits_in_training:
        message += "; training itself fits"
    fix = Fix("choose a row of `Alternatives` that fits, or more ranks")
    return (Finding("MM005", "warning", message, f"cluster.{key}", notes=_rounding_note(memory, fit), fix=fix),)


def _rounding_note(memory: MemoryEstimate, fit: Fit) -> tuple[str, ...]:
    """The share of the host's memory that another allocator of pinned memory would not take."""
    size = memory.ranks_per_host * sum(item.bytes for item in memory.items_of("host") if item.kind == "rounding")
    if fit.binding != "host memory" or size < 1 << 30:
        return ()
    return (f"{format_bytes(size)} of it are rounding of pinned blocks: `zero.pin_memory_backend: native`",)


def _check_inputs(
    run: ResolvedRun,
    lookup: ModelLookup,
    device: Device | None,
    settings: PlanSettings | None,
    own_module: OwnModule | str,
) -> tuple[Finding, ...]:
    findings = []
    if not facts_of(run.spec.objective).loads_model:
        findings += own_module_findings(own_module, run)
    elif lookup.facts is None:
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
    findings += tower_findings(lookup)
    gpu = run.spec.cluster.gpu
    if gpu and device is None:
        similar = suggest_device(gpu)
        fix = Fix(f"set `cluster.gpu: {similar}`" if similar else "choose one of the known kinds")
        message = f"GPU kind `{gpu}` is not known"
        findings.append(Finding("MM003", "warning", message, "cluster.gpu", notes=notes_on_kind(gpu), fix=fix))
    return tuple(findings)


def untested_findings(settings: PlanSettings, device: Device | None) -> Iterator[Finding]:
    """MM019 for each of them, on a kind of GPU; EN022 for a kind on which no launch starts."""
    if device is None or device.is_cpu:
        return
    if not device.starts_ranks:
        message = f"`harness launch` starts no ranks on {device.name}: this plan is for a script of your own"
        fix = Fix("render its DeepSpeed JSON with `harness render`; a launch takes NVIDIA GPUs and the CPU")
        yield Finding("EN022", "warning", message, "cluster.gpu", fix=fix)
    keys = {
        "train.gradient_checkpointing.recompute_every": settings.checkpointing and settings.checkpoint_every > 1,
        "train.gradient_checkpointing.layers_per_segment": settings.checkpointing and settings.layers_per_segment > 1,
        "train.gradient_checkpointing.keep": settings.checkpointing and settings.keeps_attention,
        "train.mlp_tile_size": tiles_mlp(settings),
        "model.quantization": settings.quantization is not None,
    }
    for key, is_on in keys.items():
        if is_on:
            message = f"`{key}` has not run on CUDA: its memory and its time are estimates"
            fix = Fix("compare the first steps with the plan: `harness report`")
            yield Finding("MM019", "info", message, key, fix=fix)
