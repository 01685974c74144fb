# SPDX-License-Identifier: Apache-2.0
"""The reader of `plan.json`. It accepts only files as `harness.plan.plan_json` writes them: no view checks types."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.run_records.run_files import read_json

PLAN = "plan.json"
Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _MemoryItem(_StrictModel):
    tier: str = ""
    kind: str = ""
    what: str = ""
    bytes_per_rank: Bytes = 0
    formula: str = ""
    source: str = ""


class _Alternative(_StrictModel):
    title: str = ""
    gpu_peak_bytes: Bytes = 0
    host_peak_bytes: Bytes = 0
    nvme_bytes: Bytes = 0
    step_seconds: Seconds | None = None
    chosen: bool = False
    gpu_by_kind: dict[str, Bytes] = {}
    host_by_kind: dict[str, Bytes] = {}
    nvme_by_kind: dict[str, Bytes] = {}


class _Plan(_StrictModel):
    name: str = ""
    world: Bytes | None = None
    ranks_per_host: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    device: str | None = None
    device_memory_is_host_memory: bool | None = None
    gpu_peak_bytes: Bytes | None = None
    gpu_peak_phase: str | None = None
    host_peak_bytes: Bytes | None = None
    nvme_bytes: Bytes | None = None
    gpu_capacity_bytes: Bytes | None = None
    host_capacity_bytes: Bytes | None = None
    nvme_capacity_bytes: Bytes | None = None
    rows: list[_MemoryItem] = []
    alternatives: list[_Alternative] = []


def read_plan(run_dir: Path) -> tuple[Mapping[str, Any], str]:
    """The plan of a run directory, and the reason that it cannot be used; both empty without a plan. Raises nothing."""
    body, reason = read_json(run_dir / PLAN)
    if not reason:
        reason = _validation_error(body)
    return ({}, reason) if reason else (body, "")


def _validation_error(body: Mapping[str, Any]) -> str:
    try:
        _Plan.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"its `{'.'.join(map(str, first['loc']))}` cannot be used: {first['msg'].lower()}"
    return ""
