# SPDX-License-Identifier: Apache-2.0
"""Fields of the line `run` about ranks, device and model: the reference of later figures."""

from __future__ import annotations

from typing import Any

from harness.plan import comm_volume
from harness.plan.plan_settings import settings_of
from harness.plan.resolved_run import ResolvedRun
from harness.plan.zero_partitions import local_num_parameters
from harness.runtime.telemetry.flops_counter import FlopsCounter
from harness.runtime.telemetry.peak_flops import DevicePeak
from harness.runtime.topology import Topology


def run_header_fields(
    run: ResolvedRun, topology: Topology, flops_counter: FlopsCounter, device_peak: DevicePeak
) -> dict[str, Any]:
    """The fields; None for unknown ones."""
    return {
        "data_parallel": topology.data_parallel_size,
        "tensor_parallel": topology.tensor_parallel_size,
        "pipeline_parallel": topology.pipeline_parallel_size,
        "sequence_parallel": topology.sequence_parallel_size,
        "device": device_peak.device,
        "device_memory_bytes": device_peak.memory,
        "device_peak_flops": device_peak.flops,
        "device_peak_source": device_peak.source,
        "flops_source": flops_counter.source,
        "matmul_parameters": int(flops_counter.sizes.matmul) if flops_counter.sizes else None,
        **_offload_fields(run, flops_counter),
    }


def _offload_fields(run: ResolvedRun, flops_counter: FlopsCounter) -> dict[str, Any]:
    """Bytes that a rank moves between device and host memory in a step, by the plan. They are not measured."""
    settings = settings_of(run)
    if settings is None or flops_counter.facts is None or settings.optimizer_device == settings.param_device == "none":
        return {}
    num_parameters = local_num_parameters(flops_counter.facts, settings) / settings.zero_world_size
    return {
        "offload_to_host_bytes": float(round(sum(comm_volume.device_to_host_bytes(num_parameters, settings)))),
        "offload_to_device_bytes": float(round(sum(comm_volume.host_to_device_bytes(num_parameters, settings)))),
    }
