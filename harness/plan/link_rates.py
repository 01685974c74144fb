# SPDX-License-Identifier: Apache-2.0
"""Bytes a second between the ranks of a group: links inside a host, network cards between hosts."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.plan.plan_settings import PlanSettings
from harness.plan.rates import Rates


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


def group_rates(settings: PlanSettings, device: Device, rates: Rates) -> GroupRates:
    """The rates of a run's groups; tensor-parallel ranks are neighbours, data-parallel ones are that far apart."""
    stride = settings.tensor_parallel_size
    return GroupRates(
        zero=_ring_bandwidth(settings, device, rates, settings.zero_world_size, stride),
        hpz=_ring_bandwidth(settings, device, rates, settings.hpz_partition_size, stride),
        tensor=_ring_bandwidth(settings, device, rates, settings.tensor_parallel_size, 1),
        sequence=_peer_to_peer_bandwidth(settings, device, rates, settings.sequence_parallel_size),
        pipeline=_peer_to_peer_bandwidth(settings, device, rates, settings.world_size),
    )


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
