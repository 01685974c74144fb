"""What the line `run` tells of the ranks, the device and the model: what later figures are measured against."""

from __future__ import annotations

from typing import Any

from harness.plan import traffic
from harness.plan.run import Run
from harness.plan.settings import settings_of
from harness.plan.shards import local_size
from harness.runtime.telemetry.device import Peak
from harness.runtime.telemetry.work import Work
from harness.runtime.topology import Topology


def facts(run: Run, topology: Topology, work: Work, peak: Peak) -> dict[str, Any]:
    """Fields of the line; None for what is not known."""
    return {
        "data_parallel": topology.data_size,
        "tensor_parallel": topology.tensor_size,
        "pipeline_parallel": topology.pipeline_size,
        "sequence_parallel": topology.sequence_size,
        "device": peak.device,
        "device_memory_bytes": peak.memory,
        "device_peak_flops": peak.flops,
        "device_peak_source": peak.source,
        "flops_source": work.source,
        "matmul_parameters": int(work.sizes.matmul) if work.sizes else None,
        **_offloaded(run, work),
    }


def _offloaded(run: Run, work: Work) -> dict[str, Any]:
    """Bytes a rank moves between device and host memory in a step, as the plan counts them; nothing measures them."""
    settings = settings_of(run)
    if settings is None or work.facts is None or settings.optimizer_at == settings.parameters_at == "none":
        return {}
    part = local_size(work.facts, settings) / settings.shards
    return {
        "offload_to_host_bytes": float(round(sum(traffic.to_host(part, settings)))),
        "offload_to_device_bytes": float(round(sum(traffic.to_device(part, settings)))),
    }
