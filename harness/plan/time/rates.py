# SPDX-License-Identifier: Apache-2.0
"""Assumed rates where nobody measured: shares of data sheets, host memory, disks, failures.

Every figure has a source and can be overridden in the spec's `cluster` section; `harness doctor --measure` gives some.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from harness.facts.devices import Device
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.fitted_rates import FITTED, MEASURED_HOST_SPREAD, UNSCALED, Scale, Spread
from harness.spec.run_spec import ClusterSpec
from harness.units import parse_bytes, pluralize

CPU_ADAM_BYTES = 28
"""Host memory traffic of CPU Adam a parameter: reads of 4 fp32 tensors, writes of 3; 0.97 of a stream was measured."""
CPU_STEP_BYTES = 44
"""The same with unscaling (8) and the cast to 16 bits (8, with the lines that are read before torch writes them):
runtime/zero/stage3.py `unscale_and_clip_grads`.
"""
MEASURED_SHARE = 0.45
"""Of a stream, what the CPU optimizer reaches: 0.28 and 0.45 on published hosts of two sockets whose ranks shared the
cores, about 0.8 on two cores that had nothing else to do.
"""
THREAD_BANDWIDTH = 11.9e9
"""Bytes a second of one thread of DeepSpeed's order: 8 ranks of a thread each, DeepCompile's 70B on 16 H100."""
PAGEABLE_COPY = 6.9e9
"""Bytes a second of a copy between the device and host memory that is not page-locked
(benchmarks/results/gpu-h100-2026-11-26.md); locked ones were 6 times faster in DeepSpeed's pull request 5301.
"""
_DISK_BYTES, _DISK_READ, _DISK_WRITE = 3.84e12, 2.5e9, 1.25e9
"""Of a disk of GPU hosts: four reached 10 and 5 GB/s (DeepSpeed's blogs/deepnvme)."""
LARGEST_FILE_SYSTEM = 2e12
"""Bytes a second that all hosts together write to one file system, at most: the sustained rate of the largest that was
published, 7,500 servers (arXiv 2407.21783, section 3.3.1). A file system that is not named is not known to reach it, so
that a checkpoint is never planned faster than this.
"""


_HOST_BANDWIDTH = ((16e9, 230e9), (32e9, 380e9), (64e9, 580e9))
"""Memory bandwidth of a host of two sockets by the PCIe rate of its GPUs: six channels of DDR4-2666, eight of
DDR4-3200, eight of DDR5-4800 a socket, at 0.9 of the arithmetic. A guess of the generation; `doctor --measure` measures
it.
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second: a host's memory (0: `host_bandwidth` guesses it), its disks, its network to other hosts (0: the
    share of each of its GPUs, `Device.network`, summed); hours between failures of one GPU. `efficiency`: share of the
    peak of all executed operations where the spec gives it, 0 for the fitted shares. `scale` and `spread`: those of a
    calibration by a run on the same machines.
    """

    efficiency: float = 0.0
    link_efficiency: float = 0.8
    host_memory: float = 0.0
    nvme_read: float = 10e9
    nvme_write: float = 5e9
    network: float = 0.0
    checkpoint_write: float = 5e9
    checkpoint_shared: float = LARGEST_FILE_SYSTEM
    failure_hours: float = 50_700.0
    restart_seconds: float = 600.0
    scale: Scale = UNSCALED
    spread: Spread = FITTED.spread

    def host_bandwidth(self, device: Device) -> float:
        """Bytes a second of a host's memory: the given one, else that of the hosts that such GPUs are sold in."""
        if self.host_memory:
            return self.host_memory
        return next((host for pcie, host in _HOST_BANDWIDTH if device.pcie <= pcie), _HOST_BANDWIDTH[-1][1])

    def as_text(self, device: Device) -> tuple[str, ...]:
        """One line a figure, with its source."""
        forward, backward = FITTED.attention_shares(device.name)
        large = FITTED.matmul_share(device.name, 8192, 8192)
        compute = (
            f"compute at {self.efficiency:.0%} of the dense peak, causal attention at half"
            if self.efficiency
            else f"compute: matrix products at up to {large:.0%} of the dense peak, fused attention at {forward:.0%}"
            f" forward and {backward:.0%} backward, fitted to published runs (docs/plan.md)"
        )
        return (
            compute,
            f"links, network and PCIe at {self.link_efficiency:.0%} of their data sheet",
            "between hosts: the sum of a host's network cards"
            + (f", {self.network / 1e9:g} GB/s in each direction" if self.network else ", one per GPU"),
            f"host memory {self.host_bandwidth(device) / 1e9:.0f} GB/s per node, of which the CPU optimizer reaches"
            f" {MEASURED_SHARE if self.host_memory else FITTED.host_memory_share:.0%} (published hosts); CPU Adam moves"
            f" {CPU_ADAM_BYTES} bytes per parameter, {CPU_STEP_BYTES} with unscaling and the cast, 10 more if it casts"
            f" gradients; {CPU_ADAM_BYTES} in all in one pass over memory",
            f"NVMe {self.nvme_read / 1e9:.0f} GB/s read and {self.nvme_write / 1e9:.0f} GB/s written per node",
            f"checkpoints written at {self.checkpoint_write / 1e9:.0f} GB/s per node, by all nodes together at"
            f" {self.checkpoint_shared / 1e9:,.0f} GB/s at most",
            f"one failure in {self.failure_hours:,.0f} hours a GPU (Llama 3 paper, section 3.3.4),"
            f" {self.restart_seconds:.0f} s to restart",
        )


class BadRate(ValueError):
    """A figure of `cluster` that is no rate; `key` is its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


_BITS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTkmgt]?)(?:(?<=[KMGT])b\s*/\s*s(?:ec)?|[Bb]ps|[Bb]it\s*/\s*s(?:ec)?)\s*")
"""Network cards are sold in bits: `400Gb/s`, `400Gbps`, `400 Gbit/s`. `gb/s` in small letters stays bytes."""
_LEAST_RATE = 10**6
"""Bytes a second: below, the unit was forgotten (`--network 200`)."""


def parse_rate(text: str | int) -> float:
    """Bytes a second from `400GB/s`, `400Gb/s` (bits), `200Gbps` or a plain number. Raises ValueError with a sentence
    for the user, also for a rate whose unit was forgotten.
    """
    words = str(text)
    if match := _BITS.fullmatch(words):
        words = f"{float(match[1]) / 8:f}{match[2]}B/s"
    try:
        rate = parse_bytes(re.sub(r"\s*/\s*s(ec)?\s*$", "", words))
    except ValueError:
        raise ValueError(f"`{text}` is not a rate such as `400GB/s`") from None
    if rate < _LEAST_RATE:
        raise ValueError(f"`{text}` is {pluralize(rate, 'byte')} a second, a rate that no such machine has")
    return float(rate)


def parse_disks(text: str | int) -> int:
    """Bytes from `8x3.5TB`, `28TB` or a plain number. Raises ValueError with a sentence for the user."""
    if isinstance(text, int):
        return parse_bytes(text)
    number, times, size = text.lower().partition("x")
    if not times:
        return parse_bytes(text)
    if not number.strip().isdigit():
        raise ValueError(f"`{text}` is not a size such as `28TB` or `8x3.5TB`")
    try:
        return int(number) * parse_bytes(size.strip())
    except ValueError:
        raise ValueError(f"`{text}` is not a size such as `28TB` or `8x3.5TB`") from None


def rates_of(cluster: ClusterSpec) -> Rates:
    """The assumed rates with those of the spec. Raises BadRate at the first that is no rate."""
    overrides: dict[str, float] = _disk_rates(cluster.nvme)
    for name in ("host_memory", "nvme_read", "nvme_write", "network", "checkpoint_write", "checkpoint_shared"):
        key = f"{name}_bandwidth"
        if (value := getattr(cluster, key)) is not None:
            overrides[name] = _parse_cluster_rate(key, value)
    for key, name in (("compute_efficiency", "efficiency"), ("failure_hours_per_gpu", "failure_hours")):
        if (value := getattr(cluster, key)) is not None:
            overrides[name] = value
    rates = replace(Rates(), **overrides)  # type: ignore[arg-type]
    if not rates.host_memory:
        return rates
    return replace(rates, spread=replace(rates.spread, cpu_optimizer=MEASURED_HOST_SPREAD))


def _disk_rates(disks: str | int | None) -> dict[str, float]:
    """The rates of disks by their number: as it is written, or that of the usual size."""
    try:
        size = parse_disks(disks or 0)
    except ValueError:  # `resolve_cluster` says so
        return {}
    named = str(disks).lower().partition("x")
    count = int(named[0]) if named[1] else math.ceil(size / _DISK_BYTES)
    return {"nvme_read": count * _DISK_READ, "nvme_write": count * _DISK_WRITE} if count else {}


def override_links(device: Device | None, cluster: ClusterSpec) -> Device | None:
    """The device with the links of the spec, which count in full: no share is taken off."""
    if device is None:
        return None
    overrides = {}
    for name in ("link", "pcie"):
        if (value := getattr(cluster, f"{name}_bandwidth")) is not None:
            overrides[name] = _parse_cluster_rate(f"{name}_bandwidth", value) / Rates().link_efficiency
    return replace(device, **overrides)  # type: ignore[arg-type]


def _parse_cluster_rate(key: str, value: str | int) -> float:
    try:
        return parse_rate(value)
    except ValueError as error:
        raise BadRate(f"cluster.{key}", str(error)) from None


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Bytes a second of a ring over the ranks of ZeRO, of ZeRO++'s second shard and of tensor parallelism; of each rank
    to its peers where all send at once: sequence parallelism, pipeline stages.
    """

    zero: float
    hpz: float
    tensor: float
    sequence: float
    pipeline: float


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Bytes a second between two GPUs of a host (`link`), and of all network cards of a host together (`network`)."""

    link: float
    network: float
    ranks_per_host: int

    def leaves_host(self, ranks: int, stride: int = 1) -> bool:
        """Has a group of so many ranks, each `stride` ranks from the next, ranks on several hosts?"""
        return ranks * stride > self.ranks_per_host

    def ring(self, ranks: int, stride: int = 1) -> float:
        """Bytes a second of a ring over so many ranks, each `stride` ranks from the next.

        Every edge of a ring carries payload x (N - 1) / N. Inside a host that is the link between two GPUs. A ring
        leaves a host once, but NCCL runs many at once, each over another network card, so that the edge between hosts
        has the cards of all of the group's GPUs there: two hosts with eight cards of 100 Gb/s reach 600 Gb/s of bus
        bandwidth (github.com/NVIDIA/nccl/issues/495), and a card of 400 Gb/s adds 46 to 48 GB/s to it
        (github.com/NVIDIA/nccl-tests/issues/290). Groups that leave a host at the same time share its cards.
        """
        if not self.leaves_host(ranks, stride):
            return self.link
        ranks_inside = max(1, self.ranks_per_host // stride)
        return min(self.link, self.network * ranks_inside / self.ranks_per_host)

    def peer_to_peer(self, ranks: int) -> float:
        """Bytes a second of a rank that sends to another, as all its neighbours do: its share of the host's network."""
        return self.network / self.ranks_per_host if self.leaves_host(ranks) else self.link


def link_rates(settings: PlanSettings, device: Device, rates: Rates) -> LinkRates:
    """The links of a run's hosts."""
    network = rates.network or device.network * rates.link_efficiency * settings.ranks_per_host
    return LinkRates(device.link * rates.link_efficiency, network, settings.ranks_per_host)


def group_rates(settings: PlanSettings, device: Device, rates: Rates) -> GroupRates:
    """The rates of a run's groups; tensor-parallel ranks are neighbours, data-parallel ones are that far apart."""
    stride, links = settings.tensor_parallel_size, link_rates(settings, device, rates)
    return GroupRates(
        zero=links.ring(settings.zero_world_size, stride),
        hpz=links.ring(settings.hpz_partition_size, stride),
        tensor=links.ring(settings.tensor_parallel_size),
        sequence=links.peer_to_peer(settings.sequence_parallel_size),
        pipeline=links.peer_to_peer(settings.world_size),
    )
