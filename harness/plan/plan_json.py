# SPDX-License-Identifier: Apache-2.0
"""A plan as the content of `plan.json`. Formats nothing and counts nothing."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.memory_estimate import MemoryEstimate
from harness.plan.memory.memory_items import PHASES, MemoryItem
from harness.plan.memory_peaks import PEAK_NAMES, peaks_of, with_twice_the_gpus
from harness.plan.planner import Plan
from harness.plan.search.alternatives import Alternative
from harness.plan.settings.checkpointed_layers import checkpointing_value
from harness.plan.time.calibration import Calibration
from harness.plan.time.goodput import IntervalCost
from harness.plan.time.step_time import StepTime
from harness.plan.trainer_loop import LoopMemory, logits_bytes
from harness.plan.tuned_defaults.impact import DefaultImpact
from harness.plan.unknown_inputs import find_remedy, unknown_inputs

FORMAT_VERSION = 1


def plan_json(plan: Plan) -> dict[str, Any]:
    """Bytes and seconds; `gpu` values a rank, `host` and `nvme` values a node."""
    memory, model, device = plan.memory, plan.model, plan.device
    faster, twice = find_remedy(plan), with_twice_the_gpus(plan)
    return {
        "format_version": FORMAT_VERSION,
        "name": plan.run.name,
        "world": plan.run.parallel_dims.world_size,
        "ranks_per_host": memory.ranks_per_host if memory else None,
        "model": None if model is None else _model_json(model, plan.model_source),
        "own_module": plan.own_states.to_json() if plan.own_states else None,
        "trainable_parameters": plan.trainable.num_trainable if plan.trainable else None,
        "parameters_with_adapters": plan.trainable.num_parameters if plan.trainable else None,
        "device": device.name if device else None,
        "device_memory_is_host_memory": memory.pooled if memory else None,
        "bytes_per_parameter": asdict(plan.settings.bytes_per_parameter) if plan.settings else None,
        "model_states_per_rank_bytes": memory.model_state_bytes if memory else None,
        "gpu_peak_bytes": memory.gpu_peak if memory else None,
        **_peaks_json(memory, plan.capacity.gpu, plan.calibration),
        "with_twice_the_gpus": twice and {"gpu_peak_bytes": twice[0], "not_divided": list(map(_item_json, twice[1]))},
        "gpu_peak_phase": memory.gpu_peak_phase if memory else None,
        "host_peak_bytes": memory.host_peak if memory else None,
        "host_peak_phase": memory.host_peak_phase if memory else None,
        "nvme_bytes": memory.nvme_bytes if memory else None,
        "phases": _phases_json(memory) if memory else [],
        "gpu_capacity_bytes": plan.capacity.gpu,
        "host_capacity_bytes": plan.capacity.host,
        "nvme_capacity_bytes": plan.capacity.nvme,
        "fits": plan.fit.verdict,
        "gpu_training_bytes_range": list(memory.gpu_peak_range) if memory and not memory.pooled else None,
        "binding_constraint": plan.fit.binding or None,
        "headroom": plan.fit.headroom,
        "binding_phase": plan.fit.phase,
        "fits_in_training": plan.fit.verdict is not False or plan.fit.fits_in_training if memory else None,
        **_time_json(plan.time if plan.fit.verdict is not False else None),
        "faster": faster and {"change": faster[0], **step_json(faster[1])},
        "no_step_time_because": _no_time_reason(plan),
        "if_it_fitted": _time_json(plan.time) if plan.time and plan.fit.verdict is False else None,
        "trainer": plan.run.trainer or None,
        "other_loop": _loop_json(plan.other_loop) if plan.other_loop else None,
        "tokens_per_step": plan.settings.tokens_per_step if plan.settings else None,
        "traffic": [asdict(each) for each in plan.traffic],
        "checkpoint": asdict(plan.checkpoint_cost) if plan.checkpoint_cost else None,
        "saves": _saves_json(plan.saves_at(plan.time)),
        "cost": asdict(plan.cost) if plan.cost else None,
        "steps": math.ceil(plan.tokens / plan.settings.tokens_per_step) if plan.tokens and plan.settings else None,
        "max_length": plan.settings.seq_length if plan.settings else None,
        "rows": [_item_json(item) for item in memory.items] if memory else [],
        "alternatives": [_planned_alternative_json(plan, alternative) for alternative in plan.alternatives],
        "async_offloads": [_planned_alternative_json(plan, alternative) for alternative in plan.async_offloads],
        "fastest_that_fit": [_planned_alternative_json(plan, alternative) for alternative in plan.fastest_fitting],
        "chosen": [_impact_json(impact) for impact in plan.tuned_defaults_impact],
        "calibration": plan.calibration.summary() if plan.calibration else None,
        "calibration_note": plan.calibration_note or None,
        "unknown_inputs": [each._asdict() for each in unknown_inputs(plan)],
        "assumptions": list(plan.rates.as_text(plan.device)) if plan.time and plan.device else [],
        "findings": [
            {"gate": finding.gate, "severity": finding.severity, "message": finding.message, "key": finding.key}
            for finding in plan.findings
        ],
    }


def _saves_json(saves: IntervalCost | None) -> dict[str, Any] | None:
    return None if saves is None else {**asdict(saves), "lost": saves.lost}


def _no_time_reason(plan: Plan) -> str | None:
    if plan.fit.verdict is False:
        return f"it does not fit: {plan.fit.binding}"
    if plan.time is not None:
        return None
    return "the memory is not planned" if plan.memory is None else "the speed of the device is not known"


def _peaks_json(memory: MemoryEstimate | None, capacity: int | None, calibration: Calibration | None) -> dict[str, Any]:
    peaks = {peak.name: peak for peak in peaks_of(memory, capacity, calibration)} if memory else {}
    body: dict[str, Any] = {}
    for name in PEAK_NAMES:
        peak = peaks.get(name)
        body[f"gpu_{name}_bytes"] = peak.bytes if peak else None
        body[f"gpu_{name}_bytes_range"] = list(peak.range) if peak else None
    return body


def _loop_json(loop: LoopMemory) -> dict[str, Any]:
    return {
        "trainer": loop.trainer or None,
        "fits": loop.fit.verdict,
        "gpu_peak_bytes": loop.memory.gpu_peak,
        "gpu_training_bytes_range": list(loop.memory.gpu_peak_range),
        "host_peak_bytes": loop.memory.host_peak,
        "logits_bytes": logits_bytes(loop.memory),
    }


def _impact_json(impact: DefaultImpact) -> dict[str, Any]:
    return {
        **impact.tuned_default.to_json(),
        "gpu_bytes": impact.gpu_bytes,
        "host_bytes": impact.host_bytes,
        "wire_bytes_per_rank": impact.wire_bytes,
        "step_seconds": impact.step_seconds,
    }


def _phases_json(memory: MemoryEstimate) -> list[dict[str, Any]]:
    return [
        {"phase": phase, "gpu_bytes": memory.bytes_at("gpu", phase), "host_bytes": memory.host_bytes_at(phase)}
        for phase in PHASES
    ]


def _time_json(time: StepTime | None) -> dict[str, Any]:
    return {
        **step_json(time),
        "tokens_per_second": time.tokens_per_second if time else None,
        "tokens_per_second_range": [time.tokens_per_step / seconds for seconds in reversed(time.range)]
        if time
        else None,
        "bottleneck": time.bottleneck if time else None,
        "mfu": time.mfu if time else None,
        "step_parts_seconds": {part.name: part.seconds for part in time.parts} if time else None,
        "step_exposed_seconds": {part.name: part.exposed for part in time.parts} if time else None,
        "step_fixed_seconds": time.fixed_seconds if time else None,
        "break_even_tokens": time.break_even_tokens if time else None,
    }


def _model_json(model: ModelFacts, source: str) -> dict[str, Any]:
    return {
        "family": model.family,
        "source": source,
        "num_parameters": model.num_parameters,
        "active_parameters": model.active_parameters,
        "parameters_per_layer": model.largest_layer_parameters,
        "embedding_parameters": model.embedding_parameters,
        "largest_parameter": model.largest_parameter,
        "num_layers": model.num_layers,
        "num_experts": model.experts,
        "built_by_transformers": model.built,
        "estimated": model.estimated,
    }


def _item_json(item: MemoryItem) -> dict[str, Any]:
    return {
        "tier": item.tier,
        "kind": item.kind,
        "what": item.description,
        "bytes_per_rank": item.bytes,
        "formula": item.formula,
        "source": item.source,
        "phases": list(item.phases),
        "assumed": item.assumed,
        "shared_by_the_host": item.shared,
    }


def alternative_json(alternative: Alternative) -> dict[str, Any]:
    """One alternative: what it is, its bytes and its seconds."""
    s, time = alternative.settings, alternative.time if alternative.fit.verdict is not False else None
    return {
        "title": alternative.title,
        "zero_stage": s.stage,
        "offload_optimizer": s.optimizer_device,
        "offload_param": s.param_device,
        "micro_batch": s.rows,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_checkpointing": checkpointing_value(s),
        "tensor_parallel_size": s.tensor_parallel_size,
        "pipeline_parallel_size": s.pipeline_parallel_size,
        "sequence_parallel_size": s.sequence_parallel_size,
        "gpu_peak_bytes": alternative.gpu_peak,
        "host_peak_bytes": alternative.host_peak,
        "nvme_bytes": alternative.nvme_bytes,
        "fits": alternative.fit.verdict,
        "headroom": alternative.fit.headroom,
        **step_json(time),
        "bottleneck": time.bottleneck if time else None,
    }


def step_json(time: StepTime | None) -> dict[str, Any]:
    """Seconds of a step with their range."""
    return {
        "step_seconds": time.seconds if time else None,
        "step_seconds_range": list(time.range) if time else None,
    }


def _planned_alternative_json(plan: Plan, alternative: Alternative) -> dict[str, Any]:
    cost = plan.cost_at(alternative.time if alternative.fit.verdict is not False else None)
    return {
        **alternative_json(alternative),
        "binding_constraint": alternative.fit.binding or None,
        "cost": asdict(cost) if cost else None,
        "chosen": alternative.is_current,
        "gpu_by_kind": alternative.memory.bytes_by_group("gpu"),
        "host_by_kind": alternative.memory.bytes_by_group("host"),
        "nvme_by_kind": alternative.memory.bytes_by_group("nvme"),
    }
