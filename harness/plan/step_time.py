# SPDX-License-Identifier: Apache-2.0
"""Time of one optimizer step on a known kind of GPU: compute, collectives, CPU Adam, PCIe and NVMe, with their overlap.

The slowest part is the bottleneck. An estimate from stated rates, not a measurement; no figure for an unknown device.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan import comm_volume
from harness.plan.flops import hardware_flops_per_token, model_flops_per_token
from harness.plan.pipeline_schedule import bubble_fraction
from harness.plan.plan_settings import PlanSettings
from harness.plan.rates import Rates
from harness.plan.zero_partitions import count_trainable, local_num_parameters

_MESSAGE_LATENCY = 20e-6
"""Seconds of one message between pipeline stages, without its bytes."""


@dataclass(frozen=True, slots=True)
class TimePart:
    """One kind of work: its seconds, and those of them that nothing else hides."""

    name: str
    seconds: float
    exposed: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by part. `fixed_seconds`: those that do not depend on the batch. `mfu` is that of
    `model_flops_per_token`.
    """

    seconds: float
    bottleneck: str
    parts: tuple[TimePart, ...]
    fixed_seconds: float
    tokens_per_step: int
    mfu: float
    fast_seconds: float = 0.0
    slow_seconds: float = 0.0

    @property
    def range(self) -> tuple[float, float]:
        """Seconds of a fast and of a slow machine of this kind: four of five measured runs lie between."""
        return self.fast_seconds, self.slow_seconds

    @property
    def tokens_per_second(self) -> float:
        """Over all ranks."""
        return self.tokens_per_step / self.seconds

    @property
    def break_even_tokens(self) -> float:
        """Tokens a step at which half of the time goes to what does not depend on the batch."""
        variable = self.seconds - self.fixed_seconds
        return self.tokens_per_step * self.fixed_seconds / variable if variable > 0 else 0.0

    def seconds_of(self, name: str) -> float:
        """Seconds of a part, hidden ones included; 0 where there is none."""
        return next((part.seconds for part in self.parts if part.name == name), 0.0)


def estimate_step_time(
    model: ModelFacts, settings: PlanSettings, device: Device | None, rates: Rates | None = None
) -> StepTime | None:
    """The estimate, or None without a device whose peak is known."""
    if device is None or device.is_cpu:
        return None
    rates = rates or Rates()
    size = float(local_num_parameters(model, settings))
    trainable, whole = count_trainable(model, settings)
    stepped = size * trainable / whole
    compute = _compute_seconds(model, settings, device, rates)
    parts = [
        TimePart("compute", compute, compute),
        *_communication_parts(model, settings, device, rates, (size, stepped), compute),
        # parameters on the host move whole, so that with them the frozen ones count for the optimizer, too
        *_offload_parts(settings, device, rates, stepped if settings.param_device == "none" else size, compute),
    ]
    parts = [part for part in parts if part.seconds > 0]
    seconds = sum(part.exposed for part in parts)
    bottleneck = max(parts, key=lambda part: part.exposed).name
    peak = device.flops_16 if settings.mixed_precision else device.flops_32
    mfu = (
        settings.tokens_per_step
        * model_flops_per_token(model, settings.seq_length)
        / (seconds * peak * settings.world_size)
    )
    fixed = sum(part.exposed for part in parts if part.name in _BATCH_INDEPENDENT_PARTS)
    return StepTime(
        seconds, bottleneck, tuple(parts), fixed, settings.tokens_per_step, mfu, seconds / 1.25, seconds * 1.25
    )


_BATCH_INDEPENDENT_PARTS = ("CPU optimizer", "NVMe", "PCIe at the step", "parameters gathered after the step")


def _compute_seconds(model: ModelFacts, settings: PlanSettings, device: Device, rates: Rates) -> float:
    """Seconds of forward and backward at the stated efficiency, with the bubble of 1F1B."""
    peak = device.flops_16 if settings.mixed_precision else device.flops_32
    tokens = settings.micro_batch * settings.accumulation * settings.seq_length
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size * settings.sequence_parallel_size
    seconds = (
        tokens
        * hardware_flops_per_token(model, settings.seq_length, settings.checkpointing)
        / (peak * rates.efficiency * ranks)
    )
    return seconds / (1 - bubble_fraction("1f1b", settings.pipeline_parallel_size, settings.accumulation))


def _communication_parts(
    model: ModelFacts, settings: PlanSettings, device: Device, rates: Rates, sizes: tuple[float, float], compute: float
) -> list[TimePart]:
    """Ring collectives: payload x (N - 1) / N over the slowest edge; overlapped ones count where they exceed. `sizes`:
    all parameters and the trainable ones. Stages 1 and 2 gather what was stepped.
    """
    size, stepped = sizes
    bandwidth = _ring_bandwidth(settings, device, rates, settings.zero_world_size, settings.tensor_parallel_size)
    ring_share = (settings.zero_world_size - 1) / settings.zero_world_size
    overlapped = compute if settings.overlap_comm else 0.0
    gather, hpz_gather = _gather_seconds(
        model,
        settings,
        size if settings.stage == 3 else stepped,
        bandwidth,
        _ring_bandwidth(settings, device, rates, settings.hpz_partition_size, settings.tensor_parallel_size),
    )
    data = gather + hpz_gather + comm_volume.gradient_reduction_bytes(stepped, settings) * ring_share / bandwidth
    inside = comm_volume.tensor_parallel_bytes(model, settings) / _ring_bandwidth(
        settings, device, rates, settings.tensor_parallel_size, 1
    )
    inside += comm_volume.sequence_parallel_bytes(model, settings) / _peer_to_peer_bandwidth(
        settings, device, rates, settings.sequence_parallel_size
    )
    messages = (
        2 * (settings.accumulation + settings.pipeline_parallel_size - 2) * _MESSAGE_LATENCY
        if settings.pipeline_parallel_size > 1
        else 0.0
    )
    between = (
        comm_volume.pipeline_bytes(model, settings)
        / _peer_to_peer_bandwidth(settings, device, rates, settings.world_size)
        + messages
    )
    after = gather if settings.stage in (1, 2) else 0.0
    return [
        TimePart("collectives", data - after, max(0.0, data - after - overlapped)),
        TimePart("parameters gathered after the step", after, after),
        TimePart("tensor and sequence parallelism", inside, inside),
        TimePart("pipeline messages", between, between),
    ]


def _ring_bandwidth(settings: PlanSettings, device: Device, rates: Rates, ranks: int, stride: int) -> float:
    """Bytes a second of a ring over so many ranks, each `stride` ranks from the next.

    Every edge of a ring carries payload x (N - 1) / N. Inside a host that is the link between two GPUs. A ring leaves a
    host once, but NCCL runs many at once, each over another network card, so that the edge between hosts has the cards
    of all of the group's GPUs there: two hosts with eight cards of 100 Gb/s reach 600 Gb/s of bus bandwidth
    (github.com/NVIDIA/nccl/issues/495), and a card of 400 Gb/s adds 46 to 48 GB/s to it
    (github.com/NVIDIA/nccl-tests/issues/290). Groups that leave a host at the same time share its cards.
    """
    link_bandwidth = device.link * rates.link_efficiency
    if settings.num_hosts == 1 or ranks * stride <= settings.ranks_per_host:
        return link_bandwidth
    ranks_inside = max(1, settings.ranks_per_host // stride)
    return min(
        link_bandwidth, _host_network_bandwidth(settings, device, rates) * ranks_inside / settings.ranks_per_host
    )


def _peer_to_peer_bandwidth(settings: PlanSettings, device: Device, rates: Rates, ranks: int) -> float:
    """Bytes a second of a rank that sends to another, as all its neighbours do: its share of the host's network."""
    if settings.num_hosts == 1 or ranks <= settings.ranks_per_host:
        return device.link * rates.link_efficiency
    return _host_network_bandwidth(settings, device, rates) / settings.ranks_per_host


def _host_network_bandwidth(settings: PlanSettings, device: Device, rates: Rates) -> float:
    """Bytes a second that a host sends to others, all its network cards together."""
    return rates.network or device.network * rates.link_efficiency * settings.ranks_per_host


def _gather_seconds(
    model: ModelFacts, settings: PlanSettings, size: float, bandwidth: float, hpz_bandwidth: float
) -> tuple[float, float]:
    """Gathers over all ranks, and those that ZeRO++'s second shard keeps inside a group of ranks."""
    payload, ring_share = (
        comm_volume.all_gather_bytes(size, settings, model.largest_layer_parameters),
        (settings.zero_world_size - 1) / settings.zero_world_size,
    )
    if settings.hpz_partition_size == 1:
        return payload * ring_share / bandwidth, 0.0
    return payload / 2 * ring_share / bandwidth, payload / 2 * (
        settings.hpz_partition_size - 1
    ) / settings.hpz_partition_size / hpz_bandwidth


def _offload_parts(settings: PlanSettings, device: Device, rates: Rates, size: float, compute: float) -> list[TimePart]:
    """Copies during the passes overlap with compute; the CPU step and the copies after it overlap with nothing."""
    partition, host_parameters = (
        size / settings.zero_world_size,
        size / settings.zero_world_size * settings.ranks_per_host,
    )
    pcie = device.pcie * rates.link_efficiency
    down, boundary = comm_volume.device_to_host_bytes(partition, settings)
    up, after = comm_volume.host_to_device_bytes(partition, settings)
    during = max(down, up) / pcie
    step = comm_volume.cpu_optimizer_bytes(host_parameters, settings) / rates.host_memory
    nvme = comm_volume.nvme_bytes(host_parameters, settings)
    read_seconds = nvme.parameters_read / rates.nvme_read
    swap_seconds = _swap_seconds(nvme, settings, rates, step)
    write_seconds = (nvme.gradients_write + nvme.parameters_write) / rates.nvme_write
    return [
        TimePart("PCIe", during, max(0.0, during - compute)),
        TimePart("PCIe at the step", (boundary + after) / pcie, (boundary + after) / pcie),
        TimePart("CPU optimizer", step, step),
        TimePart("NVMe", swap_seconds + write_seconds, swap_seconds + write_seconds),
        TimePart(
            "parameters from NVMe",
            read_seconds,
            max(0.0, read_seconds - compute) if settings.prefetch_bucket_size else read_seconds,
        ),
    ]


def _swap_seconds(nvme: comm_volume.NvmeBytes, settings: PlanSettings, rates: Rates, step: float) -> float:
    """Seconds beyond the CPU step: a pipelined read or write overlaps with Adam (pipelined_optimizer_swapper.py)."""
    read, write = nvme.optimizer_read / rates.nvme_read, nvme.optimizer_write / rates.nvme_write
    overlapped = (read if settings.pipeline_read else 0.0) + (write if settings.pipeline_write else 0.0)
    return read + write - overlapped + max(0.0, overlapped - step)
