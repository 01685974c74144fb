"""A plan as the content of `plan.json`. Formats nothing and counts nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.facts.models import ModelFacts
from harness.plan.choices.predicted import Difference
from harness.plan.ladder import Rung
from harness.plan.memory import Memory
from harness.plan.rows import PHASES, Row
from harness.plan.time import StepTime

if TYPE_CHECKING:
    from harness.plan.plan import Plan

FORMAT_VERSION = 1


def plan_json(plan: Plan) -> dict[str, Any]:
    """Bytes and seconds; `gpu` values a rank, `host` and `nvme` values a node."""
    memory, model, device = plan.memory, plan.model, plan.device
    return {
        "format_version": FORMAT_VERSION,
        "name": plan.run.name,
        "world": plan.run.degrees.world,
        "ranks_per_host": memory.ranks_per_host if memory else None,
        "model": None if model is None else _model_json(model, plan.model_source),
        "device": device.name if device else None,
        "device_memory_is_host_memory": memory.pooled if memory else None,
        "bytes_per_parameter": asdict(plan.settings.recipe) if plan.settings else None,
        "model_states_per_rank_bytes": memory.model_states if memory else None,
        "gpu_peak_bytes": memory.gpu_peak if memory else None,
        "gpu_peak_phase": memory.gpu_peak_phase if memory else None,
        "host_peak_bytes": memory.host_peak if memory else None,
        "host_peak_phase": memory.host_peak_phase if memory else None,
        "nvme_bytes": memory.nvme if memory else None,
        "phases": _phases_json(memory) if memory else [],
        "gpu_capacity_bytes": plan.capacity.gpu,
        "host_capacity_bytes": plan.capacity.host,
        "nvme_capacity_bytes": plan.capacity.nvme,
        "fits": plan.fit.fits,
        "binding_constraint": plan.fit.binding or None,
        "headroom": plan.fit.headroom,
        **_time_json(plan.time),
        "tokens_per_step": plan.settings.tokens_per_step if plan.settings else None,
        "checkpoint": asdict(plan.saved) if plan.saved else None,
        "cost": asdict(plan.cost) if plan.cost else None,
        "rows": [_row_json(row) for row in memory.rows] if memory else [],
        "alternatives": [_rung_json(rung) for rung in plan.rungs],
        "fastest_that_fit": [_rung_json(rung) for rung in plan.best],
        "chosen": [_chosen_json(difference) for difference in plan.chosen],
        "assumptions": list(plan.rates.as_text()) if plan.time else [],
        "findings": [
            {"gate": f.gate, "severity": f.severity, "message": f.message, "key": f.key} for f in plan.findings
        ],
    }


def _chosen_json(difference: Difference) -> dict[str, Any]:
    return {
        **difference.choice.to_json(),
        "gpu_bytes": difference.gpu,
        "host_bytes": difference.host,
        "wire_bytes_per_rank": difference.wire,
        "step_seconds": difference.seconds,
    }


def _phases_json(memory: Memory) -> list[dict[str, Any]]:
    return [
        {"phase": phase, "gpu_bytes": memory.at("gpu", phase), "host_bytes": memory.host_at(phase)} for phase in PHASES
    ]


def _time_json(time: StepTime | None) -> dict[str, Any]:
    return {
        "step_seconds": time.seconds if time else None,
        "tokens_per_second": time.tokens_per_second if time else None,
        "bottleneck": time.bottleneck if time else None,
        "mfu": time.mfu if time else None,
        "step_parts_seconds": {part.name: part.seconds for part in time.parts} if time else None,
        "step_exposed_seconds": {part.name: part.exposed for part in time.parts} if time else None,
        "step_fixed_seconds": time.fixed if time else None,
        "break_even_tokens": time.break_even_tokens if time else None,
    }


def _model_json(model: ModelFacts, source: str) -> dict[str, Any]:
    return {
        "family": model.family,
        "source": source,
        "num_parameters": model.num_parameters,
        "active_parameters": model.active_parameters,
        "parameters_per_layer": model.per_layer,
        "embedding_parameters": model.embeddings,
        "largest_parameter": model.largest_parameter,
        "num_layers": model.num_layers,
        "num_experts": model.experts,
        "built_by_transformers": model.built,
    }


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "tier": row.tier,
        "kind": row.kind,
        "what": row.what,
        "bytes_per_rank": row.bytes,
        "formula": row.formula,
        "source": row.source,
        "phases": list(row.phases),
        "assumed": row.assumed,
        "shared_by_the_host": row.shared,
    }


def _rung_json(rung: Rung) -> dict[str, Any]:
    return {
        "title": rung.title,
        "gpu_peak_bytes": rung.gpu,
        "host_peak_bytes": rung.host,
        "nvme_bytes": rung.nvme,
        "fits": rung.fit.fits,
        "binding_constraint": rung.fit.binding or None,
        "step_seconds": rung.time.seconds if rung.time else None,
        "bottleneck": rung.time.bottleneck if rung.time else None,
        "micro_batch": rung.settings.micro_batch,
        "gradient_checkpointing": rung.settings.checkpointing,
        "chosen": rung.chosen,
        "gpu_by_kind": rung.memory.groups("gpu"),
        "host_by_kind": rung.memory.groups("host"),
        "nvme_by_kind": rung.memory.groups("nvme"),
    }
