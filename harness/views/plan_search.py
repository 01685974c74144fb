# SPDX-License-Identifier: Apache-2.0
"""The result of a search, the fewest GPUs, and a bare parameter count: as text and as JSON. Counts nothing itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from harness.check.auto_plan import MinGpusResult, SearchResult
from harness.plan.alternatives import Alternative, describe_checkpointing
from harness.plan.bare_count import ModelStates
from harness.plan.settings_search import filter_fitting
from harness.units import format_bytes, format_count, format_seconds
from harness.views.style import Style

_MAX_SHOWN = 8


def render_search(result: SearchResult, style: Style, width: int) -> str:
    """The number of settings, the fastest few, and those that the gates refused before the best."""
    fitting = list(filter_fitting(result.alternatives))
    lines = [f"Searched {len(result.alternatives):,} settings with the same batch; {len(fitting):,} fit with headroom."]
    if result.best is None:
        closest = result.alternatives[0] if result.alternatives else None
        if closest is not None and not fitting:
            lines.append(f"Nothing fits. Closest: {closest.title}, short of {closest.fit.binding}.")
        elif fitting:
            lines.append("The gates refuse all of them.")
    lines += [_format_alternative(each, each is result.best) for each in _select_listed(fitting, result.best)]
    for alternative, finding in result.refused[:4]:
        gate = style.paint(finding.gate, "yellow")
        lines.append(f"  refused by {gate}: {alternative.title} ({finding.message})"[: max(width, 60)])
    if result.best is not None and not result.launchable:
        lines.append("`harness launch` of this version refuses it; it can be validated, planned and rendered.")
    return "\n".join(lines)


def _select_listed(fits: Sequence[Alternative], best: Alternative | None) -> list[Alternative]:
    listed = list(fits[:_MAX_SHOWN])
    return listed if best is None or best in listed else [*listed[:-1], best]


def _format_alternative(alternative: Alternative, is_best: bool) -> str:
    time = format_seconds(alternative.time.seconds) if alternative.time else "-"
    s = alternative.settings
    batch = f"micro-batch {s.micro_batch}, {describe_checkpointing(s)}"
    name = _title_without_batch(alternative)
    mark = ">" if is_best else " "
    memory = f"{format_bytes(alternative.gpu_peak):>11} GPU  {format_bytes(alternative.host_peak):>11} host"
    return f"{mark} {time:>12}  {memory}  {name}, {batch}"


def _title_without_batch(alternative: Alternative) -> str:
    """The stage, offload and parallel degrees: the batch and the checkpointing follow in every line."""
    return alternative.title.split(", micro-batch")[0].removesuffix(f", {describe_checkpointing(alternative.settings)}")


def search_as_dict(result: SearchResult) -> dict[str, Any]:
    """`search` and `spec` of the JSON."""
    fitting = list(filter_fitting(result.alternatives))
    body = {
        "searched": len(result.alternatives),
        "fit": len(fitting),
        "chosen": result.best.title if result.best else None,
        "refused": [{"title": a.title, "gate": f.gate, "message": f.message} for a, f in result.refused],
        "fastest": [alternative_as_dict(alternative) for alternative in fitting[:_MAX_SHOWN]],
    }
    return {"search": body, "spec": dict(result.raw)}


def alternative_as_dict(alternative: Alternative | None) -> dict[str, Any]:
    """One alternative as values of JSON."""
    if alternative is None:
        return {"title": None}
    s = alternative.settings
    return {
        "title": alternative.title,
        "zero_stage": s.stage,
        "offload_optimizer": s.optimizer_device,
        "offload_param": s.param_device,
        "micro_batch": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_checkpointing": s.checkpointing,
        "tensor_parallel_size": s.tensor_parallel_size,
        "pipeline_parallel_size": s.pipeline_parallel_size,
        "sequence_parallel_size": s.sequence_parallel_size,
        "gpu_peak_bytes": alternative.gpu_peak,
        "host_peak_bytes": alternative.host_peak,
        "nvme_bytes": alternative.nvme_bytes,
        "fits": alternative.fit.fits,
        "headroom": alternative.fit.headroom,
        "step_seconds": alternative.time.seconds if alternative.time else None,
        "bottleneck": alternative.time.bottleneck if alternative.time else None,
    }


def min_gpus_as_json(result: MinGpusResult) -> str:
    """The smallest number of GPUs for programs."""
    body = {
        "gpus": result.gpus if result.best else None,
        "raw_floor_gpus": result.raw_floor_gpus,
        "state_bytes": result.state_bytes,
    }
    return json.dumps({"format_version": 1, **body, **alternative_as_dict(result.best)}, indent=2)


def render_min_gpus(model: str, gpu: str, result: MinGpusResult) -> str:
    """The smallest number of GPUs, and the number that would hold the states alone."""
    states = f"{result.state_bytes / 1e9:,.1f} GB"
    raw = f"The states alone are {states}, which {result.raw_floor_gpus:,} x {gpu} would hold without anything else."
    best = result.best
    if best is None:
        return f"{model} does not fit on up to {result.gpus:,} x {gpu}.\n{raw}"
    time = f", {format_seconds(best.time.seconds)} per step" if best.time else ""
    where = f"{format_bytes(best.gpu_peak)} per GPU, {format_bytes(best.host_peak)} per host"
    where += f", {format_bytes(best.nvme_bytes)} NVMe per host" if best.nvme_bytes else ""
    s = best.settings
    batch = f"micro-batch {s.micro_batch}, {describe_checkpointing(s)}"
    name = _title_without_batch(best)
    return f"{model} fits on {result.gpus:,} x {gpu}: {name}, {batch}{time}\n{where}\n{raw}"


def model_states_as_json(states: ModelStates) -> str:
    """A bare count for programs."""
    body = {
        "format_version": 1,
        "parameters": states.parameters,
        "gpus": states.gpus,
        "zero_stage": states.stage,
        "bytes_per_parameter": asdict(states.recipe),
        "model_states_per_rank_bytes": states.by_stage[3 if states.stage is None else states.stage],
        "by_stage_bytes": dict(states.by_stage),
        "raw_floor_gpus": states.raw_floor_gpus,
    }
    return json.dumps(body, indent=2)


def render_model_states(states: ModelStates) -> str:
    """Table 1 of the ZeRO paper for these numbers."""
    gpus = f"{states.gpus:,} GPU{'' if states.gpus == 1 else 's'}"
    lines = [
        f"{format_count(states.parameters)} parameters on {gpus}, 16-bit weights and Adam",
        f"States   {states.recipe}, {states.parameters * states.recipe.total / 1e9:,.2f} GB in all",
        "",
    ]
    for stage, size in states.by_stage.items():
        mark = ">" if stage == states.stage else " "
        lines.append(f"{mark} ZeRO-{stage}  {size / 1e9:>12,.2f} GB per rank")
    if states.raw_floor_gpus is not None:
        lines += ["", f"{states.raw_floor_gpus:,} x {states.gpu} would hold the states without anything else."]
    lines += ["", "No buffers, activations or offload: `harness plan --model NAME` counts those."]
    return "\n".join(lines)
