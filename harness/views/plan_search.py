# SPDX-License-Identifier: Apache-2.0
"""The result of a search, and the fewest GPUs: as text and as JSON. Counts nothing itself."""

from __future__ import annotations

from typing import Any

from harness.check.auto_plan import MinGpusResult, SearchResult
from harness.check.plan_report import PlanReport
from harness.plan.plan_json import plan_json
from harness.plan.search.alternatives import Alternative
from harness.plan.search.settings_search import HEADROOM, filter_fitting
from harness.plan.search.way_out import WayOut
from harness.plan.settings.checkpointed_layers import checkpointing_value
from harness.units import format_bytes
from harness.views.plan_numbers import format_time
from harness.views.plan_screen import name_of_choice

_MAX_SHOWN = 8


def search_as_dict(result: SearchResult) -> dict[str, Any]:
    """`search` and `spec` of the JSON."""
    fitting = list(filter_fitting(result.alternatives))
    body = {
        "searched": len(result.alternatives),
        "fit": len(fitting),
        "usable": len(result.usable),
        "chosen": result.best.title if result.best else None,
        "refused": [{"title": a.title, "gate": f.gate, "message": f.message} for a, f in result.refused],
        "fastest": [alternative_as_dict(alternative) for alternative in result.usable[:_MAX_SHOWN]],
    }
    return {"search": body, "spec": dict(result.raw)}


def report_as_dict(report: PlanReport) -> dict[str, Any]:
    """The plan as in `plan.json`, the search and the spec that it found, and what would do where nothing fits."""
    body = plan_json(report.plan)
    if report.searched is not None:
        body |= search_as_dict(report.searched)
        for row, each in zip(body["alternatives"], report.plan.alternatives, strict=True):
            refusal = report.searched.refusal_of(each)
            row["refused_by"] = refusal.gate if refusal else None
    if report.way_out is not None:
        body["way_out"] = _way_out_as_dict(report.way_out)
    return body


def _way_out_as_dict(way_out: WayOut) -> dict[str, Any]:
    return {
        "closest": alternative_as_dict(way_out.closest),
        "ranks": way_out.ranks,
        "ranks_per_host": way_out.ranks_per_host,
        "host_bytes": way_out.host_bytes,
        "nvme_bytes": way_out.nvme_bytes,
    }


def alternative_as_dict(alternative: Alternative | None) -> dict[str, Any]:
    """One alternative as values of JSON."""
    if alternative is None:
        return {"title": None}
    s = alternative.settings
    time = alternative.time if alternative.fit.fits is not False else None
    return {
        "title": alternative.title,
        "zero_stage": s.stage,
        "offload_optimizer": s.optimizer_device,
        "offload_param": s.param_device,
        "micro_batch": s.micro_batch,
        "gradient_accumulation_steps": s.accumulation,
        "gradient_checkpointing": checkpointing_value(s),
        "tensor_parallel_size": s.tensor_parallel_size,
        "pipeline_parallel_size": s.pipeline_parallel_size,
        "sequence_parallel_size": s.sequence_parallel_size,
        "gpu_peak_bytes": alternative.gpu_peak,
        "host_peak_bytes": alternative.host_peak,
        "nvme_bytes": alternative.nvme_bytes,
        "fits": alternative.fit.fits,
        "headroom": alternative.fit.headroom,
        "step_seconds": time.seconds if time else None,
        "step_seconds_range": list(time.range) if time else None,
        "bottleneck": time.bottleneck if time else None,
    }


def min_gpus_as_dict(result: MinGpusResult) -> dict[str, Any]:
    """The smallest number of GPUs for programs."""
    body = {
        "gpus": result.gpus if result.best else None,
        "tight_gpus": result.tight[0] if result.tight else None,
        "raw_floor_gpus": result.raw_floor_gpus,
        "state_bytes": result.state_bytes,
    }
    return {"format_version": 1, **body, **alternative_as_dict(result.best)}


def render_min_gpus(model: str, gpu: str, result: MinGpusResult) -> str:
    """The smallest number of GPUs, and the number that would hold the states alone."""
    states = f"{result.state_bytes / 1e9:,.1f} GB"
    raw = f"The states alone are {states}, which {result.raw_floor_gpus:,} x {gpu} would hold without anything else."
    best = result.best
    if result.tight is not None:
        gpus, tight = result.tight
        headroom = tight.fit.headroom or 0.0
        word, free = ("barely " if headroom < HEADROOM else ""), f"{100 * headroom:.1f}% of the memory free"
        raw = f"It {word}fits on {gpus:,} x {gpu}: {name_of_choice(tight.settings)}, with {free}.\n{raw}"
    if best is None:
        return f"{model} does not fit on up to {result.gpus:,} x {gpu}.\n{raw}"
    time = f", {format_time(best.time.seconds, best.time.range)} per step" if best.time else ""
    where = f"{format_bytes(best.gpu_peak)} per GPU, {format_bytes(best.host_peak)} per host"
    where += f", {format_bytes(best.nvme_bytes)} NVMe per host" if best.nvme_bytes else ""
    s = best.settings
    return f"{model} fits on {result.gpus:,} x {gpu}: {name_of_choice(s)}{time}\n{where}\n{raw}"
