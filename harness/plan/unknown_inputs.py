# SPDX-License-Identifier: Apache-2.0
"""Inputs that decide a step, are assumed, and can be given in `cluster`: the reason of a wide range. Also the change
that would shorten it most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from harness.facts.devices import DEVICES
from harness.plan.planner import Plan
from harness.plan.time.step_time import StepTime, estimate_step_time

_MIN_SHARE = 0.2
"""Of the step's exposed seconds, for an input to decide it."""
_MEASURE, _NCCL = "harness doctor --measure", "all_gather_perf"
_LEAST_GAIN = 0.1
_NVLINK = DEVICES["A100-80GB"].link
_COLLECTIVES = ("collectives", "parameters gathered after the step", "tensor and sequence parallelism")


class UnknownInput(NamedTuple):
    """A key of the spec; the share of the step that goes by it, 0 to 1; what measures it."""

    key: str
    share: float
    measured_by: str


def unknown_inputs(plan: Plan) -> list[UnknownInput]:
    """The inputs that decide the step of a plan and are assumed, the largest share first. None for a calibrated plan,
    which has its machine's own rates.
    """
    time, settings, cluster = plan.time, plan.settings, plan.run.spec.cluster
    if time is None or settings is None or plan.calibration is not None or not time.seconds:
        return []
    exposed = {part.name: part.exposed / time.seconds for part in time.parts}
    links = "network_bandwidth" if settings.num_hosts > 1 else "link_bandwidth"
    shares: Mapping[str, tuple[float, str]] = {
        "host_memory_bandwidth": (exposed.get("CPU optimizer", 0.0), _MEASURE),
        "nvme_read_bandwidth": (exposed.get("NVMe", 0.0) + exposed.get("parameters from NVMe", 0.0), _MEASURE),
        "nvme_write_bandwidth": (exposed.get("NVMe", 0.0), _MEASURE),
        "pcie_bandwidth": (exposed.get("PCIe", 0.0) + exposed.get("PCIe at the step", 0.0), _MEASURE),
        links: (sum(exposed.get(name, 0.0) for name in _COLLECTIVES), _NCCL),
    }
    unknown = [
        UnknownInput(f"cluster.{key}", share, how)
        for key, (share, how) in shares.items()
        if share >= _MIN_SHARE and getattr(cluster, key) is None
    ]
    return sorted(unknown, key=lambda each: -each.share)


def find_remedy(plan: Plan) -> tuple[str, StepTime] | None:
    """The change that would shorten the step most, in a few words: links and kernels that the run has not, the fastest
    settings that fit. None where none saves a tenth.
    """
    settings, device, model = plan.settings, plan.device, plan.model
    if plan.time is None or settings is None or device is None or model is None:
        return None
    tried = {each.title: each.time for each in plan.fastest_fitting if not each.is_current and not each.fit.uncertain}
    if settings.attention == "eager":
        fused = settings.with_values(attention="sdpa")
        tried["fused attention (`sdpa`)"] = estimate_step_time(model, fused, device, plan.rates)
    if device.link <= device.pcie and settings.ranks_per_host > 1:
        faster = replace(device, link=_NVLINK)
        tried[f"NVLink ({_NVLINK / 1e9:.0f} GB/s)"] = estimate_step_time(model, settings, faster, plan.rates)
    least = plan.time.seconds * (1 - _LEAST_GAIN)
    found = [(change, time) for change, time in tried.items() if time and time.seconds <= least]
    return min(found, key=lambda each: each[1].seconds, default=None)
