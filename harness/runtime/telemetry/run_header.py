# SPDX-License-Identifier: Apache-2.0
"""The line `run`: the model, the data, the ranks and the device of a run, the reference of later figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness import __version__
from harness.facts.devices import device_by_driver_name
from harness.hostinfo import machine
from harness.plan.memory.zero_partitions import local_num_parameters
from harness.plan.settings.plan_settings import settings_of
from harness.plan.time import comm_volume
from harness.run.resolved_run import ResolvedRun
from harness.runtime.metrics import FORMAT_VERSION
from harness.runtime.parallel import tensor_parallel
from harness.runtime.pipeline import pipeline_module
from harness.runtime.telemetry.flops_counter import FlopsCounter
from harness.runtime.train_context import TrainContext
from harness.runtime.train_state import TrainState
from harness.spec.run_spec import RunSpec


def write_run_header(
    ctx: TrainContext,
    state: TrainState,
    resume: Path | None,
    *,
    attempt: int,
    hosts: list[str],
    clock: str,
    gather_steps: int | None,
    flops_counter: FlopsCounter,
    device_peak: DevicePeak,
) -> tuple[int, int]:
    """Write the line. `attempt` counts the starts of this run; `hosts` has one name a rank. A collective.

    Returns the elements of the model, and the trainable ones.
    """
    run, topology, geometry = ctx.run_config.run, ctx.topology, ctx.train_data.geometry
    parameters, trainable = count_parameters(ctx)
    ctx.metrics.write(
        "run",
        format_version=FORMAT_VERSION,
        name=run.name,
        world=ctx.distributed.world_size,
        steps=ctx.total_steps,
        start_step=state.step,
        resumed_from=str(resume) if resume else None,
        parameters=parameters,
        trainable_parameters=trainable,
        micro_batch=geometry.micro_batch_size,
        accumulation=geometry.accumulation_steps,
        global_batch=geometry.global_batch_size,
        max_length=run.spec.data.max_length,
        train_tokens=ctx.prepared_data.train_tokens,
        eval_tokens=ctx.prepared_data.eval_tokens,
        records_left_out=ctx.prepared_data.skipped,
        records_cut=ctx.prepared_data.truncated,
        unigram_entropy=ctx.prepared_data.unigram_entropy,
        steps_per_epoch=ctx.train_data.steps_per_epoch,
        zero_stage=ctx.engine.zero_optimization_stage(),
        patches=ctx.patches.to_json(),
        run_sha256=ctx.run_config.sha256,
        attempt=attempt,
        hosts=hosts,
        clock=clock,
        logging_steps=run.spec.logging.logging_steps,
        gather_steps=gather_steps,
        data_parallel=topology.data_parallel_size,
        tensor_parallel=topology.tensor_parallel_size,
        pipeline_parallel=topology.pipeline_parallel_size,
        sequence_parallel=topology.sequence_parallel_size,
        machine=describe_machine(),
        device=device_peak.device,
        device_memory_bytes=device_peak.memory,
        device_peak_flops=device_peak.flops,
        device_peak_source=device_peak.source,
        flops_source=flops_counter.source,
        matmul_parameters=int(flops_counter.sizes.matmul) if flops_counter.sizes else None,
        **_offload_fields(run, flops_counter),
    )
    return parameters, trainable


def describe_machine() -> dict[str, Any]:
    """The machine that this run measures, without its devices."""
    versions = {name: machine.package_version(name) for name in ("torch", "deepspeed")}
    memory = machine.host_memory().total
    return {"cpu": machine.cpu_model(), "host_memory_bytes": memory, **versions, "harness": __version__}


def count_parameters(ctx: TrainContext) -> tuple[int, int]:
    """(all, trainable) elements of the whole model, however it is sharded. A collective."""
    if ctx.topology.pipeline_parallel_size > 1:
        return pipeline_module.count_parameters(ctx.engine.module, ctx.distributed, ctx.topology)
    return tensor_parallel.count_parameters(ctx.engine)


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


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """A device. `flops` and `source` are None where no peak is known."""

    device: str
    memory: int | None
    flops: float | None
    source: str | None


def find_device_peak(spec: RunSpec) -> DevicePeak:
    """The peak of this rank's device, in the number format of the run. `telemetry.peak_flops` overrides it."""
    accelerator = get_accelerator()
    name, memory = accelerator.device_name(), None
    device = None
    if name != "cpu":
        memory = int(accelerator.total_memory())
        name = _driver_device_name(name)
        device = device_by_driver_name(name, memory)
    if spec.telemetry.peak_flops is not None:
        return DevicePeak(name, memory, spec.telemetry.peak_flops, "`telemetry.peak_flops`")
    if device is None:
        return DevicePeak(name, memory, None, None)
    if spec.precision.bf16 or spec.precision.fp16:
        return DevicePeak(name, memory, device.flops_16, f"{device.source}, 16 bit")
    return DevicePeak(name, memory, device.flops_32, f"{device.source}, fp32")


def _driver_device_name(device_type: str) -> str:
    import torch

    module = getattr(torch, device_type, None)  # torch.cuda, torch.xpu ...
    get_name = getattr(module, "get_device_name", None)
    return device_type if get_name is None else str(get_name())
