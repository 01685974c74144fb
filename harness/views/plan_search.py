# SPDX-License-Identifier: Apache-2.0
"""The result of a search as JSON. Counts nothing itself."""

from __future__ import annotations

from typing import Any

from harness.check.auto_plan import SearchResult
from harness.check.plan_report import PlanReport
from harness.plan.plan_json import alternative_json, plan_json
from harness.plan.search.settings_search import filter_fitting

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
        "fastest": [alternative_json(alternative) for alternative in result.usable[:_MAX_SHOWN]],
    }
    return {"search": body, "spec": dict(result.raw)}


def report_as_dict(report: PlanReport) -> dict[str, Any]:
    """The plan as in `plan.json`, the search and the spec that it found, and what would do where nothing fits."""
    body = plan_json(report.plan) | {"assumed_options": list(report.assumed), "epochs": report.epochs}
    if report.without_offload is not None:
        other = alternative_json(report.without_offload)
        body["without_offload"] = other | {"gpus_that_would_do": report.gpus_without_offload}
    if report.searched is not None:
        body |= search_as_dict(report.searched) | {
            "largest_micro_batches": [alternative_json(each) for each in report.largest_micro_batches]
        }
        for row, each in zip(body["alternatives"], report.plan.alternatives, strict=True):
            refusal = report.searched.refusal_of(each)
            row["refused_by"] = refusal.gate if refusal else None
    if report.nearest_fit is not None:
        fewest = None if report.fit_table is None else report.fit_table.fewest_for(report.plan.run)
        sizes = {
            name: getattr(report.nearest_fit, name)
            for name in ("host_bytes", "sure_host_bytes", "nvme_bytes", "length")
        }
        closest = report.nearest_fit.closest
        sizes["closest"] = {"title": None} if closest is None else alternative_json(closest)
        sizes["ranks"] = fewest.gpus if fewest else None
        body["nearest_fit"] = sizes
    return body
