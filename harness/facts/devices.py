# SPDX-License-Identifier: Apache-2.0
"""Accelerator kinds: memory, peak arithmetic, links. Figures of data sheets, each with its source.

No measurements.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MIB = 2**20
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of accelerator. Bytes; FLOP/s without sparsity; bytes/s in one direction.

    `memory` is the total that the driver reports. `flops_16` and `flops_32` are peaks of dense matrix products with
    16-bit and with 32-bit inputs (no TF32), `flops_8` with 8-bit floats (0: it has none). `bandwidth` is that of its
    memory. `link` is to the other devices of a host, `pcie` to host memory, `network` is one device's share of its
    host's network cards as such machines are usually built (an assumption, not a data sheet's figure).
    """

    name: str
    memory: int
    flops_16: float
    flops_32: float
    flops_8: float
    bandwidth: float
    link: float
    pcie: float
    network: float
    source: str

    @property
    def is_cpu(self) -> bool:
        """The CPU accelerator: what would be GPU memory is host memory, and no peak is known."""
        return self.name == "cpu"


def _device(
    name: str,
    mib: int,
    tera_flops: tuple[float, float, float],
    bandwidth: float,
    links: tuple[float, float, float],
    source: str,
) -> Device:
    """`tera_flops`: 16, 32 and 8 bits. `bandwidth` and `links` (NVLink or its like, PCIe, network) in GB/s."""
    flops_16, flops_32, flops_8 = (flops * TERA for flops in tera_flops)
    link, pcie, network = (rate * GIGA for rate in links)
    return Device(name, mib * MIB, flops_16, flops_32, flops_8, bandwidth * GIGA, link, pcie, network, source)


# Columns: MiB; TFLOP/s with 16-bit, 32-bit and 8-bit inputs; GB/s of memory; GB/s in one direction: link, PCIe, network
# share. Vendors print NVLink as the sum of both directions and TFLOP/s with sparsity: both are halved here.
_TABLE = (
    _device("V100-32GB", 32768, (125, 15.7, 0), 900, (150, 16, 12.5), "NVIDIA V100 data sheet"),
    _device("A100-40GB", 40960, (312, 19.5, 0), 1555, (300, 32, 25), "NVIDIA A100 data sheet"),
    _device("A100-80GB", 81920, (312, 19.5, 0), 2039, (300, 32, 25), "NVIDIA A100 data sheet"),
    _device("H100-80GB", 81559, (989, 67, 1979), 3350, (450, 64, 50), "NVIDIA H100 SXM data sheet"),
    _device("H100-PCIe-80GB", 81559, (756, 51, 1513), 2000, (300, 64, 25), "NVIDIA H100 PCIe data sheet"),
    _device("H200-141GB", 143771, (989, 67, 1979), 4800, (450, 64, 50), "NVIDIA H200 SXM data sheet"),
    _device("B200-180GB", 183359, (2250, 80, 4500), 8000, (900, 64, 50), "NVIDIA DGX B200 data sheet"),
    _device("MI300X-192GB", 196592, (1307, 163.4, 2615), 5300, (448, 64, 50), "AMD MI300X data sheet"),
    _device("L40S-48GB", 46068, (362, 91.6, 733), 864, (32, 32, 12.5), "NVIDIA L40S data sheet"),
    _device("RTX4090-24GB", 24564, (165, 82.6, 330), 1008, (32, 32, 3), "NVIDIA Ada architecture white paper"),
)
CPU = Device("cpu", 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "the host's own memory")

DEVICES: Mapping[str, Device] = {device.name: device for device in (*_TABLE, CPU)}

_SHORT_NAMES = {
    "v100": "V100-32GB",
    "a100": "A100-80GB",
    "h100": "H100-80GB",
    "h200": "H200-141GB",
    "b200": "B200-180GB",
    "mi300x": "MI300X-192GB",
    "l40s": "L40S-48GB",
    "rtx4090": "RTX4090-24GB",
}


def find_device(name: str) -> Device | None:
    """The kind of this name, whatever its case; a name without memory, such as `H100`, is the usual one."""
    kind = name.strip().lower().replace(" ", "").replace("_", "-")
    kind = _SHORT_NAMES.get(kind, kind).lower()
    return next((device for device in DEVICES.values() if device.name.lower() == kind), None)


def device_by_driver_name(name: str, memory: int) -> Device | None:
    """The kind that a driver calls `NVIDIA A100-SXM4-80GB`, `NVIDIA H100 PCIe` or `AMD Instinct MI300X`; of those that
    differ in memory alone the one nearest to `memory` bytes. None for an unknown kind.
    """
    lower_name = name.lower()
    if "nvl" in lower_name:  # another board, with other clocks
        return None
    joined = lower_name.replace("rtx ", "rtx")
    kinds = [
        device for device in _TABLE if re.search(rf"(?<![a-z0-9]){device.name.split('-')[0].lower()}(?![0-9])", joined)
    ]
    if any("pcie" in device.name.lower() for device in kinds):
        kinds = [device for device in kinds if ("pcie" in device.name.lower()) == ("pcie" in lower_name)]
    return min(kinds, key=lambda device: abs(device.memory - memory), default=None)
