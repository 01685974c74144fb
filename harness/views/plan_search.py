# SPDX-License-Identifier: Apache-2.0
"""The result of a search as JSON. Counts nothing itself."""

from __future__ import annotations

from typing import Any

from harness.check.auto_plan import SearchResult
from harness.check.plan_report import PlanReport
from harness.plan.plan_json import plan_json
from harness.plan.search.alternatives import Alternative
from harness.plan.search.settings_search import filter_fitting
from harness.plan.settings.checkpointed_layers import checkpointing_value

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
    if report.nearest_fit is not None:
        fewest = None if report.fit_table is None else report.fit_table.fewest_of_all or report.fit_table.tight
        sizes = {name: getattr(report.nearest_fit, name) for name in ("host_bytes", "nvme_bytes", "length")}
        sizes |= {"closest": alternative_as_dict(report.nearest_fit.closest), "ranks": fewest.gpus if fewest else None}
        body["nearest_fit"] = sizes
    return body


def alternative_as_dict(alternative: Alternative | None) -> dict[str, Any]:
    """One alternative as values of JSON."""
    if alternative is None:
        return {"title": None}
    s = alternative.settings
    time = alternative.time if alternative.fit.verdict is not False else None
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
        "step_seconds": time.seconds if time else None,
        "step_seconds_range": list(time.range) if time else None,
        "bottleneck": time.bottleneck if time else None,
    }
