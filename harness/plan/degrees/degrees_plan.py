# SPDX-License-Identifier: Apache-2.0
"""The plan of a run of any degrees: memory of the fullest stage, work and seconds of the slowest, hours and money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.errors import ExitCode, UserError
from harness.facts.devices import Device, find_device
from harness.facts.model_lookup import ModelFacts, find_model
from harness.findings import Finding, Fix
from harness.plan.degrees.degrees_request import DegreesRequest, validate_degrees
from harness.plan.degrees.gpu_work import AttentionWork, GpuWork, MatrixProduct
from harness.plan.degrees.local_matrices import head_products, layer_products
from harness.plan.degrees.rank_groups import StageLayers, assign_layers
from harness.plan.degrees.stage_memory import StageMemory, estimate_stage
from harness.plan.degrees.step_traffic import stage_traffic
from harness.plan.degrees.work_seconds import WorkSeconds, work_seconds
from harness.plan.plan_usage import unknown_model
from harness.plan.time.goodput import CheckpointCost, cost_of_size
from harness.plan.time.pipeline_schedule import PassCost, bubble_overhead
from harness.plan.time.rates import Rates

_NODE_LIMITED = {"deepseek_v3": 4}
"""Groups of experts, one a host, that a token is routed to at most (`topk_group`, DeepSeek-V3 section 2.1.2)."""


@dataclass(frozen=True, slots=True)
class DegreesPlan:
    """`memory`: every stage; `work` and `time` those of the slowest one. `notes`: what the reader must know."""

    request: DegreesRequest
    model: ModelFacts
    device: Device
    memory: tuple[StageMemory, ...]
    slowest: StageLayers
    work: GpuWork
    time: WorkSeconds
    notes: tuple[str, ...]
    rates: Rates

    @property
    def fullest(self) -> StageMemory:
        """The stage whose GPUs hold most."""
        return max(self.memory, key=lambda stage: stage.total)

    @property
    def fits(self) -> bool:
        """Does the fullest stage fit?"""
        return self.fullest.total <= self.device.memory

    @property
    def checkpointed_bytes(self) -> float:
        """The fullest stage where every layer is computed again."""
        request = replace(self.request, checkpointing="full")
        return max(estimate_stage(self.model, stage.stage, request).total for stage in self.memory)

    @property
    def mfu(self) -> float:
        """Share of the peak (of 8-bit products under FP8) that the model's own operations are."""
        peak = {"fp32": self.device.flops_32, "fp8": self.device.flops_8 or self.device.flops_16}.get(
            self.request.precision, self.device.flops_16
        )
        return self.work.model_flops / (self.time.seconds * peak * self.work.world_size)

    @property
    def checkpoint(self) -> CheckpointCost:
        """A checkpoint of masters and states; weights too below stage 3, and where there are no masters. The run stops
        where one GPU fails.
        """
        recipe, degrees = self.request.recipe, self.request.degrees
        weights = recipe.parameters if self.request.zero_stage < 3 or not recipe.master else 0
        size = self.model.num_parameters * (weights + recipe.master + recipe.states)
        return cost_of_size(size, -(-degrees.world_size // degrees.gpus_per_host), degrees.world_size, self.rates)

    def gpu_hours(self, tokens: float) -> tuple[float, float, float]:
        """GPU hours of a run over so many tokens: as planned, fast, slow. No failures and no restarts."""
        steps = tokens / self.work.tokens * self.work.world_size / 3600
        return self.time.seconds * steps, self.time.low * steps, self.time.high * steps


def plan_degrees(request: DegreesRequest, rates: Rates | None = None) -> DegreesPlan:
    """The plan. Raises UserError with everything that is wrong."""
    lookup = find_model(request.model, by_name=True)
    findings = validate_degrees(request, lookup.facts)
    if lookup.facts is None:
        findings.append(unknown_model(lookup.why_not))
    device = find_device(request.gpu)
    if device is not None and device.is_cpu:
        findings.append(
            Finding("MM003", "error", "the speed of a step on CPUs is not known", fix=Fix("give a kind of GPU"))
        )
    if findings or lookup.facts is None or device is None:
        raise UserError(findings, ExitCode.USAGE)
    return plan_degrees_of(lookup.facts, request, device, rates, lookup.config)


def plan_degrees_of(
    model: ModelFacts,
    request: DegreesRequest,
    device: Device,
    rates: Rates | None = None,
    config: Mapping[str, Any] | None = None,
) -> DegreesPlan:
    """The plan of a request that was checked, for a known model and device."""
    stages = assign_layers(model.num_layers, request.degrees)
    memory = tuple(estimate_stage(model, stage, request) for stage in stages)
    limit = (config or {}).get("topk_group", _NODE_LIMITED.get(model.family, 0))
    expert_hosts = limit if isinstance(limit, int) else 0
    works = {}
    for each in memory:
        kind = (_layer_kinds(model, each.stage), each.stage.has_embedding, each.stage.has_head)
        if kind not in works:
            works[kind] = (each.stage, _stage_work(model, each, request, expert_hosts))
    slowest, work = max(works.values(), key=lambda each: each[1].product_flops + each[1].attention.flops)
    rates = rates or Rates()
    time = work_seconds(work, device, rates)
    notes = _notes(model, request, stages, device)
    return DegreesPlan(request, model, device, memory, slowest, work, time, notes, rates)


def _layer_kinds(model: ModelFacts, stage: StageLayers) -> tuple[tuple[int, int], ...]:
    counts: dict[int, int] = {}
    for index in stage.layers:
        counts[id(model.layers[index])] = counts.get(id(model.layers[index]), 0) + 1
    return tuple(sorted(counts.items()))


def _stage_work(model: ModelFacts, memory: StageMemory, request: DegreesRequest, expert_hosts: int) -> GpuWork:
    """The work of one GPU of a stage. A DualPipe rank does half of the micro-batches in each of its two chunks."""
    degrees, stage = request.degrees, memory.stage
    is_dual = degrees.schedule == "dualpipe" and degrees.pipeline > 1
    micro_batches = request.micro_batches / 2 if is_dual else request.micro_batches
    tokens = request.micro_batch * request.seq_length / degrees.context
    is_full = request.checkpointing == "full"
    products: list[MatrixProduct] = []
    by_id = {id(layer): layer for layer in model.layers}
    for key, count in _layer_kinds(model, stage):
        passes = round(count * micro_batches)
        products += layer_products(model, by_id[key], degrees, tokens, passes, 3.0 if is_full else 2.0)
    if stage.has_head:
        products += head_products(model, degrees, tokens, round(micro_batches))
    layer_passes = round(len(stage.layers) * micro_batches)
    heads = model.heads / degrees.tensor
    cost = PassCost(1.0, 3.0 if is_full else 2.0, 1.0)  # the forward pass may be computed again in the backward one
    pairs = layer_passes * request.micro_batch * request.seq_length**2 / 2 / degrees.context
    attention = AttentionWork(request.seq_length, round(heads), model.head_dim, pairs, 1.0 if is_full else 0.0)
    tokens_of_step = request.planned_tokens
    flops = 6 * model.matmul_parameters + 6 * model.num_layers * model.heads * model.head_dim * request.seq_length
    return GpuWork(
        precision=request.precision,
        products=tuple(products),
        attention=attention,
        traffic=stage_traffic(model, stage, request, memory.parameters, expert_hosts),
        micro_batches=request.micro_batches,
        layer_passes=layer_passes,
        bubble=bubble_overhead(degrees.schedule, degrees.pipeline, request.micro_batches, degrees.virtual_stages, cost),
        elementwise_bytes=_elementwise_bytes(model, request, layer_passes * tokens)
        + (_loss_bytes(model, request, micro_batches * tokens) if stage.has_head else 0.0),
        optimizer_bytes=_optimizer_bytes(memory, request),
        tokens=tokens_of_step,
        world_size=degrees.world_size,
        model_flops=float(flops) * tokens_of_step,
        is_moe=model.experts > 0,
        gpus_per_host=min(degrees.gpus_per_host, degrees.world_size),
    )


def _elementwise_bytes(model: ModelFacts, request: DegreesRequest, layer_tokens: float) -> float:
    """Memory traffic of norms, residuals, rotary positions and activations: each reads and writes its tensors once,
    and backward moves twice as much. Two norms (2 h each), two residual sums (3 h each), queries and keys (2 each), a
    gated MLP (3 f for each active expert).
    """
    degrees = request.degrees
    whole = 10 * model.hidden / degrees.sequence_share
    columns = model.intermediate * (model.experts_per_token or 1) + model.shared
    divided = (2 * (model.heads + model.kv_heads) * model.head_dim + 3 * columns) / degrees.tensor
    return 3 * request.element_bytes * layer_tokens * (whole + divided)


def _loss_bytes(model: ModelFacts, request: DegreesRequest, tokens: float) -> float:
    """Logits written and read, their softmax in fp32 written, read and turned into a gradient."""
    return tokens * model.vocab / request.degrees.tensor * (3 * request.element_bytes + 3 * 4)


def _optimizer_bytes(memory: StageMemory, request: DegreesRequest) -> float:
    """Bytes that an update moves on one GPU: gradients read, masters and states read and written, weights written."""
    recipe, degrees, parameters = request.recipe, request.degrees, memory.parameters
    share = parameters.total
    if request.zero_stage:
        share = round(parameters.dense / degrees.data_group + parameters.experts / degrees.expert_data_group)
    master = recipe.master or recipe.parameters
    return float(share * (recipe.gradients + 2 * (master + recipe.states) + recipe.parameters))


def _notes(
    model: ModelFacts, request: DegreesRequest, stages: tuple[StageLayers, ...], device: Device
) -> tuple[str, ...]:
    degrees = request.degrees
    notes = []
    asked = request.tokens_per_step
    if abs(request.planned_tokens - asked) >= 1:
        per_micro_batch = request.micro_batch * degrees.data * request.seq_length
        notes.append(
            f"{asked:,.0f} tokens are no whole number of micro-batches of {per_micro_batch:,} tokens:"
            f" planned with {request.planned_tokens:,}"
        )
    counts = [len(stage.layers) for stage in stages]
    if len(set(counts)) > 1:
        notes.append(
            f"{model.num_layers} layers do not divide into {degrees.pipeline * degrees.virtual_stages} chunks:"
            f" stages hold {min(counts)} to {max(counts)}, and the fullest one sets the pace"
        )
    for kind, name in (("tensor", "tensor"), ("context", "context"), ("expert", "expert")):
        ranks, inside = degrees.group(kind)  # type: ignore[arg-type]
        if inside < ranks:
            article = "an" if kind == "expert" else "a"
            notes.append(f"{article} {name} group of {ranks} spans {-(-ranks // inside)} hosts")
    if request.precision == "fp8" and not device.flops_8:
        notes.append(f"{device.name} has no FP8 units: matrix products run at the 16-bit rate")
    return tuple(notes)
