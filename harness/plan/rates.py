# SPDX-License-Identifier: Apache-2.0
"""Assumed rates where nobody measured: shares of data sheets, host memory, disks, failures.

Every figure has a source and can be overridden in the spec's `cluster` section; `harness doctor --measure` gives some.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from harness.facts.devices import Device
from harness.spec.run_spec import ClusterSpec
from harness.units import parse_bytes

CPU_ADAM_BYTES = 28
"""Host memory traffic of CPU Adam a parameter: reads of 4 fp32 tensors, writes of 3; 0.97 of a stream was measured."""
CPU_STEP_BYTES = 42
"""The same with unscaling (8) and the cast to 16 bits (6): runtime/zero/stage3.py `unscale_and_clip_grads`."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of the data sheet, and bytes a second: a host's memory, its disks, its network to other hosts (0: the
    share of each of its GPUs, `Device.network`, summed); hours between failures of one GPU.
    """

    efficiency: float = 0.45
    link_efficiency: float = 0.8
    host_memory: float = 400e9
    nvme_read: float = 10e9
    nvme_write: float = 5e9
    network: float = 0.0
    checkpoint_write: float = 5e9
    failure_hours: float = 50_700.0
    restart_seconds: float = 600.0

    def as_text(self) -> tuple[str, ...]:
        """One line a figure, with its source."""
        return (
            f"compute at {self.efficiency:.0%} of the dense peak, causal attention at half",
            f"links, network and PCIe at {self.link_efficiency:.0%} of their data sheet",
            "between hosts: the sum of a host's network cards"
            + (f", {self.network / 1e9:g} GB/s in each direction" if self.network else ", one per GPU"),
            f"host memory {self.host_memory / 1e9:.0f} GB/s per node; CPU Adam moves {CPU_ADAM_BYTES} bytes per"
            f" parameter, {CPU_STEP_BYTES} with unscaling and the cast, 6 more if the step casts its gradients",
            f"NVMe {self.nvme_read / 1e9:.0f} GB/s read and {self.nvme_write / 1e9:.0f} GB/s written per node",
            f"checkpoints written at {self.checkpoint_write / 1e9:.0f} GB/s per node",
            f"one failure in {self.failure_hours:,.0f} hours a GPU (Llama 3 paper, section 3.3.4),"
            f" {self.restart_seconds:.0f} s to restart",
        )


class BadRate(ValueError):
    """A figure of `cluster` that is no rate; `key` is its name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def parse_rate(text: str | int) -> float:
    """Bytes a second from `400GB/s`, `25 GB/s` or a plain number. Raises ValueError with a sentence for the user."""
    if isinstance(text, int):
        return float(parse_bytes(text))
    try:
        rate = parse_bytes(re.sub(r"\s*/\s*s(ec)?\s*$", "", text))
    except ValueError:
        raise ValueError(f"`{text}` is not a rate such as `400GB/s`") from None
    if rate <= 0:
        raise ValueError(f"`{text}` is not a rate above 0")
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
    overrides: dict[str, float] = {}
    for key, name in (
        ("host_memory_bandwidth", "host_memory"),
        ("nvme_read_bandwidth", "nvme_read"),
        ("nvme_write_bandwidth", "nvme_write"),
        ("network_bandwidth", "network"),
        ("checkpoint_write_bandwidth", "checkpoint_write"),
    ):
        value = getattr(cluster, key)
        if value is not None:
            overrides[name] = _parse_cluster_rate(key, value)
    for key, name in (("compute_efficiency", "efficiency"), ("failure_hours_per_gpu", "failure_hours")):
        if getattr(cluster, key) is not None:
            overrides[name] = getattr(cluster, key)
    return replace(Rates(), **overrides)


def override_links(device: Device | None, cluster: ClusterSpec) -> Device | None:
    """The device with the links of the spec, which count in full: no share is taken off."""
    if device is None:
        return None
    overrides = {}
    for key, name in (("link_bandwidth", "link"), ("pcie_bandwidth", "pcie")):
        value = getattr(cluster, key)
        if value is not None:
            overrides[name] = _parse_cluster_rate(key, value) / Rates().link_efficiency
    return replace(device, **overrides)  # type: ignore[arg-type]


def _parse_cluster_rate(key: str, value: str | int) -> float:
    try:
        return parse_rate(value)
    except ValueError as error:
        raise BadRate(f"cluster.{key}", str(error)) from None
