"""Time of one optimizer step on a known kind of GPU: compute, collectives, CPU Adam, PCIe and NVMe, with what overlaps.

What takes longest is the bottleneck. An estimate from stated rates, not a measurement; no figure is made up for an
unknown device.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan import traffic
from harness.plan.flops import flops_per_token, model_flops_per_token
from harness.plan.pipeline import bubble
from harness.plan.rates import Rates
from harness.plan.settings import Settings
from harness.plan.shards import local_size

_MESSAGE = 20e-6
"""Seconds of one message between pipeline stages beside its bytes."""


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of work: seconds that it takes, and those of them that nothing else hides."""

    name: str
    seconds: float
    exposed: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one optimizer step, by part. `fixed`: seconds that do not depend on the batch. `mfu` is that of
    `model_flops_per_token`.
    """

    seconds: float
    bottleneck: str
    parts: tuple[Part, ...]
    fixed: float
    tokens_per_step: int
    mfu: float

    @property
    def tokens_per_second(self) -> float:
        """Over all ranks."""
        return self.tokens_per_step / self.seconds

    @property
    def break_even_tokens(self) -> float:
        """Tokens a step at which half of the time goes to what does not depend on the batch."""
        variable = self.seconds - self.fixed
        return self.tokens_per_step * self.fixed / variable if variable > 0 else 0.0

    def of(self, name: str) -> float:
        """Seconds of a part, hidden ones included; 0 where there is none."""
        return next((part.seconds for part in self.parts if part.name == name), 0.0)


def step_time(model: ModelFacts, s: Settings, device: Device | None, rates: Rates | None = None) -> StepTime | None:
    """The estimate, or None without a device whose peak is known."""
    if device is None or device.is_cpu:
        return None
    rates = rates or Rates()
    size = float(local_size(model, s))
    compute = _compute(model, s, device, rates)
    parts = [
        Part("compute", compute, compute),
        *_communication(model, s, device, rates, size, compute),
        *_offload(s, device, rates, size, compute),
    ]
    parts = [part for part in parts if part.seconds > 0]
    seconds = sum(part.exposed for part in parts)
    bottleneck = max(parts, key=lambda part: part.exposed).name
    peak = device.flops_16 if s.mixed else device.flops_32
    useful = s.tokens_per_step * model_flops_per_token(model, s.sequence) / (seconds * peak * s.world)
    fixed = sum(part.exposed for part in parts if part.name in _FIXED)
    return StepTime(seconds, bottleneck, tuple(parts), fixed, s.tokens_per_step, useful)


_FIXED = ("CPU optimizer", "NVMe", "PCIe at the step", "parameters gathered after the step")


def _compute(m: ModelFacts, s: Settings, device: Device, rates: Rates) -> float:
    """Seconds of forward and backward at the stated efficiency, with the bubble of 1F1B."""
    peak = device.flops_16 if s.mixed else device.flops_32
    tokens = s.micro_batch * s.accumulation * s.sequence
    ranks = s.tensor * s.pipeline * s.sequence_parallel
    seconds = tokens * flops_per_token(m, s.sequence, s.checkpointing) / (peak * rates.efficiency * ranks)
    return seconds / (1 - bubble("1f1b", s.pipeline, s.accumulation))


def _communication(m: ModelFacts, s: Settings, device: Device, rates: Rates, size: float, compute: float) -> list[Part]:
    """Ring collectives: payload x (N - 1) / N over the slowest edge; overlapped ones count where they exceed."""
    wide = _ring(s, device, rates, s.shards, s.tensor)
    turn = (s.shards - 1) / s.shards
    hidden = compute if s.overlap else 0.0
    gather, again = _gather_seconds(m, s, size, wide, _ring(s, device, rates, s.secondary, s.tensor))
    data = gather + again + traffic.reductions(size, s) * turn / wide
    inside = traffic.tensor_parallel(m, s) / _ring(s, device, rates, s.tensor, 1)
    inside += traffic.sequence_parallel(m, s) / _pairs(s, device, rates, s.sequence_parallel)
    messages = 2 * (s.accumulation + s.pipeline - 2) * _MESSAGE if s.pipeline > 1 else 0.0
    between = traffic.pipeline_messages(m, s) / _pairs(s, device, rates, s.world) + messages
    after = gather if s.stage in (1, 2) else 0.0
    return [
        Part("collectives", data - after, max(0.0, data - after - hidden)),
        Part("parameters gathered after the step", after, after),
        Part("tensor and sequence parallelism", inside, inside),
        Part("pipeline messages", between, between),
    ]


def _ring(s: Settings, device: Device, rates: Rates, ranks: int, apart: int) -> float:
    """Bytes a second of a ring over so many ranks, each `apart` ranks from the next.

    Every edge of a ring carries payload x (N - 1) / N. Inside a host that is the link between two GPUs. A ring leaves a
    host once, but NCCL runs many at once, each over another network card, so that the edge between hosts has the cards
    of all of the group's GPUs there: two hosts with eight cards of 100 Gb/s reach 600 Gb/s of bus bandwidth
    (github.com/NVIDIA/nccl/issues/495), and a card of 400 Gb/s adds 46 to 48 GB/s to it
    (github.com/NVIDIA/nccl-tests/issues/290). Groups that leave a host side by side share its cards.
    """
    near = device.link * rates.link_efficiency
    if s.hosts == 1 or ranks * apart <= s.ranks_per_host:
        return near
    inside = max(1, s.ranks_per_host // apart)
    return min(near, _host_network(s, device, rates) * inside / s.ranks_per_host)


def _pairs(s: Settings, device: Device, rates: Rates, ranks: int) -> float:
    """Bytes a second of a rank that sends to another, as all its neighbours do: its share of the host's network."""
    if s.hosts == 1 or ranks <= s.ranks_per_host:
        return device.link * rates.link_efficiency
    return _host_network(s, device, rates) / s.ranks_per_host


def _host_network(s: Settings, device: Device, rates: Rates) -> float:
    """Bytes a second that a host sends to others, all its network cards together."""
    return rates.network or device.network * rates.link_efficiency * s.ranks_per_host


def _gather_seconds(m: ModelFacts, s: Settings, size: float, wide: float, group: float) -> tuple[float, float]:
    """Gathers over all ranks, and those that ZeRO++'s second shard keeps inside a group of ranks."""
    payload, turn = traffic.gathers(size, s, m.per_layer), (s.shards - 1) / s.shards
    if s.secondary == 1:
        return payload * turn / wide, 0.0
    return payload / 2 * turn / wide, payload / 2 * (s.secondary - 1) / s.secondary / group


def _offload(s: Settings, device: Device, rates: Rates, size: float, compute: float) -> list[Part]:
    """Copies during the passes hide behind compute; the CPU step and what follows it hide behind nothing."""
    part, node = size / s.shards, size / s.shards * s.ranks_per_host
    pcie = device.pcie * rates.link_efficiency
    down, boundary = traffic.to_host(part, s)
    up, after = traffic.to_device(part, s)
    during = max(down, up) / pcie
    step = traffic.cpu_step(node, s) / rates.host_memory
    moved = traffic.disk(node, s)
    fetched = moved.parameters_read / rates.nvme_read
    swapped = _swap_seconds(moved, s, rates, step)
    written = (moved.gradients_write + moved.parameters_write) / rates.nvme_write
    return [
        Part("PCIe", during, max(0.0, during - compute)),
        Part("PCIe at the step", (boundary + after) / pcie, (boundary + after) / pcie),
        Part("CPU optimizer", step, step),
        Part("NVMe", swapped + written, swapped + written),
        Part("parameters from NVMe", fetched, max(0.0, fetched - compute) if s.prefetch else fetched),
    ]


def _swap_seconds(moved: traffic.Disk, s: Settings, rates: Rates, step: float) -> float:
    """Seconds beyond the CPU step: a pipelined read or write runs beside Adam (pipelined_optimizer_swapper.py)."""
    read, write = moved.optimizer_read / rates.nvme_read, moved.optimizer_write / rates.nvme_write
    beside = (read if s.pipeline_read else 0.0) + (write if s.pipeline_write else 0.0)
    return read + write - beside + max(0.0, beside - step)
