# SPDX-License-Identifier: Apache-2.0
"""Bytes a second between the ranks of a group: links inside a host, network cards between hosts."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.devices import Device
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time.rates import Rates


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
