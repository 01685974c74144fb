# SPDX-License-Identifier: Apache-2.0
"""Accelerator kinds: memory, peak arithmetic, links. Figures of data sheets, each with its source; no measurements.

A source that begins with `not opened: ` was not at hand when the row was written: check such a row if you rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

MIB = 2**20
TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of accelerator. Bytes; FLOP/s without sparsity; bytes/s in one direction.

    `memory` is what torch reports as the total (`torch.cuda.get_device_properties(0).total_memory`), which is what a
    process can use: NVIDIA's driver keeps some of what `nvidia-smi` shows. `flops_16` and `flops_32` are peaks of dense
    matrix products with 16-bit and with 32-bit inputs (no TF32), `flops_8` with 8-bit floats (0: not supported).
    `bandwidth` is that of its memory. `link` is to the other devices of a host, `pcie` to host memory, `network` is one
    device's share of its host's network cards as such machines are usually built (an assumption, not a data sheet's
    figure).
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

    @property
    def starts_ranks(self) -> bool:
        """Does `harness launch` start ranks on it? On AMD's GPUs it does not (EN022)."""
        return "AMD" not in self.source


_TORCH_GIB = {
    "V100-16GB": 15.77,
    "V100-32GB": 31.75,
    "A100-40GB": 39.50,
    "A100-80GB": 79.33,
    "A800-80GB": 79.33,
    "H100-80GB": 79.11,
    "H100-NVL-94GB": 93.11,
    "H20-96GB": 95.00,
    "H200-141GB": 139.80,
    "B200-180GB": 178.35,
    "L40S-48GB": 44.40,
    "A6000-48GB": 47.53,
    "RTX6000-Ada-48GB": 47.50,
    "A40-48GB": 44.40,
    "A10G-24GB": 22.18,
    "L4-24GB": 22.03,
    "T4-16GB": 14.56,
    "RTX3090-24GB": 23.69,
    "RTX4090-24GB": 23.64,
    "RTX5090-32GB": 31.36,
}
"""GiB of the line "total capacity of" in messages of full GPUs (threads, 2026-11-28); some drivers leave 0.1 more."""
_DRIVER_RESERVE = 512
"""MiB that NVIDIA's driver keeps of kinds that are not in the table: 250 to 690 of those that are."""


def _torch_memory(name: str, mib: int, source: str) -> int:
    """Bytes that torch reports, of a kind whose driver reports so many MiB."""
    if name in _TORCH_GIB:
        return round(_TORCH_GIB[name] * 1024) * MIB
    return (mib - (_DRIVER_RESERVE if "NVIDIA" in source else 0)) * MIB


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
    memory = _torch_memory(name, mib, source)
    return Device(name, memory, flops_16, flops_32, flops_8, bandwidth * GIGA, link, pcie, network, source)


_UNREAD = "not opened: "
# Columns: MiB as the driver reports them; TFLOP/s with 16-bit, 32-bit and 8-bit inputs; GB/s of memory; GB/s in one
# direction: link, PCIe, network share. Vendors print NVLink as the sum of both directions and TFLOP/s with sparsity:
# both are halved here. GeForce and RTX: with fp32 accumulation. Where NVLink-C2C joins GPU and host, it stands for
# PCIe; two GPUs of a GB200 share one.
_TABLE = (
    _device("V100-16GB", 16160, (125, 15.7, 0), 900, (150, 16, 12.5), _UNREAD + "NVIDIA V100 data sheet"),
    _device("V100-32GB", 32768, (125, 15.7, 0), 900, (150, 16, 12.5), "NVIDIA V100 data sheet"),
    _device("V100S-32GB", 32768, (130, 16.4, 0), 1134, (16, 16, 12.5), _UNREAD + "NVIDIA V100S data sheet"),
    _device("P100-16GB", 16280, (18.7, 9.3, 0), 732, (16, 16, 12.5), _UNREAD + "NVIDIA P100 PCIe data sheet"),
    _device("A100-40GB", 40960, (312, 19.5, 0), 1555, (300, 32, 25), "NVIDIA A100 data sheet"),
    _device("A100-80GB", 81920, (312, 19.5, 0), 2039, (300, 32, 25), "NVIDIA A100 data sheet"),
    _device("A800-80GB", 81920, (312, 19.5, 0), 2039, (200, 32, 25), "NVIDIA A800 data sheet"),
    _device("H100-80GB", 81559, (989, 67, 1979), 3350, (450, 64, 50), "NVIDIA H100 SXM data sheet"),
    _device("H100-96GB", 97871, (989, 67, 1979), 3350, (450, 64, 50), _UNREAD + "NVIDIA H100 SXM data sheet, 96 GB"),
    _device("H100-PCIe-80GB", 81559, (756, 51, 1513), 2000, (300, 64, 25), "NVIDIA H100 PCIe data sheet"),
    _device("H100-NVL-94GB", 95830, (835, 60, 1671), 3938, (300, 64, 25), _UNREAD + "NVIDIA H100 NVL data sheet"),
    _device("H800-80GB", 81559, (989, 67, 1979), 3350, (200, 64, 50), "NVIDIA H800 data sheet"),
    _device("H20-96GB", 97871, (148, 44, 296), 4000, (450, 64, 50), _UNREAD + "NVIDIA H20 data sheet"),
    _device("H200-141GB", 143771, (989, 67, 1979), 4800, (450, 64, 50), "NVIDIA H200 SXM data sheet"),
    _device("H200-NVL-141GB", 143771, (835, 60, 1671), 4800, (450, 64, 25), _UNREAD + "NVIDIA H200 NVL data sheet"),
    _device("GH200-96GB", 97871, (990, 67, 1979), 4000, (450, 450, 50), _UNREAD + "NVIDIA GH200 data sheet"),
    _device("GH200-144GB", 146831, (990, 67, 1979), 4900, (450, 450, 50), _UNREAD + "NVIDIA GH200 data sheet"),
    _device("B200-180GB", 183359, (2250, 80, 4500), 8000, (900, 64, 50), "NVIDIA DGX B200 data sheet"),
    _device("B300-288GB", 275040, (2250, 75, 4500), 8000, (900, 128, 100), _UNREAD + "NVIDIA HGX B300 data sheet"),
    _device("GB200-186GB", 189471, (2500, 80, 5000), 8000, (900, 225, 50), _UNREAD + "NVIDIA GB200 NVL72 data sheet"),
    _device("GB300-288GB", 284208, (2500, 80, 5000), 8000, (900, 225, 100), _UNREAD + "NVIDIA GB300 NVL72 data sheet"),
    _device("MI210-64GB", 65520, (181, 45.3, 0), 1638, (150, 32, 12.5), _UNREAD + "AMD MI210 data sheet"),
    # One of the two dies of a board, which the driver counts as a GPU.
    _device("MI250X-64GB", 65520, (191.5, 47.9, 0), 1638, (200, 32, 12.5), _UNREAD + "AMD MI250X data sheet, halved"),
    _device("MI300X-192GB", 196592, (1307, 163.4, 2615), 5300, (448, 64, 50), "AMD MI300X data sheet"),
    _device("MI325X-256GB", 262128, (1307, 163.4, 2615), 6000, (448, 64, 50), _UNREAD + "AMD MI325X data sheet"),
    _device("MI355X-288GB", 294896, (2516, 157.3, 5033), 8000, (538, 64, 50), _UNREAD + "AMD MI355X data sheet"),
    _device(
        "Gaudi2-96GB", 98304, (432, 108, 865), 2450, (262.5, 32, 37.5), _UNREAD + "Intel Gaudi 2 and 3 white papers"
    ),
    _device("Gaudi3-128GB", 131072, (1678, 229, 1678), 3700, (525, 64, 75), _UNREAD + "Intel Gaudi 3 white paper"),
    _device("L40S-48GB", 46068, (362, 91.6, 733), 864, (32, 32, 12.5), "NVIDIA L40S data sheet"),
    _device("A6000-48GB", 49140, (154.8, 38.7, 0), 768, (32, 32, 3), _UNREAD + "NVIDIA RTX A6000 data sheet"),
    _device(
        "RTX6000-Ada-48GB", 49140, (364.2, 91.1, 728.5), 960, (32, 32, 3), _UNREAD + "NVIDIA RTX 6000 Ada data sheet"
    ),
    _device(
        "RTX5000-Ada-32GB", 32760, (261.1, 65.3, 522.2), 576, (32, 32, 3), _UNREAD + "NVIDIA RTX 5000 Ada data sheet"
    ),
    _device(
        "RTX4500-Ada-24GB", 24570, (158.5, 39.6, 317), 432, (32, 32, 3), _UNREAD + "NVIDIA RTX 4500 Ada data sheet"
    ),
    _device("A40-48GB", 46068, (149.7, 37.4, 0), 696, (32, 32, 12.5), _UNREAD + "NVIDIA A40 data sheet"),
    _device("A30-24GB", 24576, (165, 10.3, 0), 933, (32, 32, 12.5), _UNREAD + "NVIDIA A30 data sheet"),
    _device("A5000-24GB", 24564, (111.1, 27.8, 0), 768, (32, 32, 3), _UNREAD + "NVIDIA RTX A5000 data sheet"),
    # One of the four GPUs of a board, which share its slot.
    _device("A16-16GB", 15356, (17.9, 4.5, 0), 200, (8, 8, 1.6), _UNREAD + "NVIDIA A16 data sheet"),
    _device("A10G-24GB", 23028, (70, 31.2, 0), 600, (32, 32, 1.6), _UNREAD + "AWS EC2 G5 and NVIDIA A10G figures"),
    _device("L4-24GB", 23034, (121, 30.3, 242), 300, (32, 32, 3), _UNREAD + "NVIDIA L4 data sheet"),
    _device("T4-16GB", 15360, (65, 8.1, 0), 320, (16, 16, 1.6), _UNREAD + "NVIDIA T4 data sheet"),
    _device("RTX3080-10GB", 10240, (59.5, 29.8, 0), 760, (32, 32, 3), _UNREAD + "NVIDIA GA102 white paper"),
    _device("RTX3080-12GB", 12288, (61.3, 30.6, 0), 912, (32, 32, 3), _UNREAD + "NVIDIA GA102 white paper"),
    _device("RTX3090-24GB", 24576, (71, 35.6, 0), 936, (32, 32, 3), _UNREAD + "NVIDIA GA102 white paper"),
    _device(
        "RTX4080-16GB", 16376, (97.5, 48.7, 195), 717, (32, 32, 3), _UNREAD + "NVIDIA Ada architecture white paper"
    ),
    _device("RTX4090-24GB", 24564, (165, 82.6, 330), 1008, (32, 32, 3), "NVIDIA Ada architecture white paper"),
    _device(
        "RTX5090-32GB", 32607, (209.5, 104.8, 419), 1792, (64, 64, 3), _UNREAD + "NVIDIA RTX Blackwell white paper"
    ),
    _device(
        "RTX-PRO-6000-96GB",
        97887,
        (503.8, 125, 1007),
        1792,
        (64, 64, 12.5),
        _UNREAD + "NVIDIA RTX PRO Blackwell white paper",
    ),
)
CPU = Device("cpu", 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "the host's own memory")

DEVICES: Mapping[str, Device] = {device.name: device for device in (*_TABLE, CPU)}

_USUAL_MEMORY = {"v100": "32gb", "a100": "80gb", "h100": "80gb", "gh200": "96gb", "rtx3080": "10gb"}
"""Of the kinds that come with more than one memory, the one that a name without memory means."""

_DRIVER_PATTERNS = {
    "A5000": r"rtx ?a5000",
    "A6000": r"rtx ?a6000",
    "Gaudi2": r"gaudi ?2|hl-225",
    "Gaudi3": r"gaudi ?3|hl-325",
    "RTX3080": r"rtx ?3080",
    "RTX3090": r"rtx ?3090",
    "RTX4080": r"rtx ?4080",
    "RTX4500-Ada": r"rtx ?4500 ada",
    "RTX5000-Ada": r"rtx ?5000 ada",
    "RTX6000-Ada": r"rtx ?6000 ada",
    "RTX4090": r"rtx ?4090",
    "RTX5090": r"rtx ?5090",
    "RTX-PRO-6000": r"rtx pro 6000 blackwell",
}
"""Driver names that do not hold the kind's own name as one word."""
_OTHER_BOARDS = re.compile(
    r"laptop|max-q|30[89]0 ti|4080 super|[45]090 d|h20-3e|h800 pcie|h800 nvl|h20 nvl|p100-(?:sxm2|pcie-12gb)"
)
"""Boards of other peaks whose driver names hold that of a kind here."""


_VENDORS = re.compile(r"^(?:nvidia|amd|geforce|tesla|quadro|instinct)+")
_BOARD = re.compile(r"(?:pcie|sxm\d?|nvl\d*|hbm\d?e?)*(?:\d{1,3}gi?b?)?")
"""What may follow the chip in a name: the board and the memory."""


def _plain(name: str) -> str:
    plain = re.sub(r"[-_\s]", "", name.lower())
    plain = _VENDORS.sub("", plain).replace("adageneration", "ada")
    plain = re.sub(r"^rtx(?=a\d000)", "", plain)
    return re.sub(r"^(gb[23]00)nvl\d*", r"\1", plain)  # a rack of them has the same GPUs


def _stem(device: Device) -> str:
    return device.name.rpartition("-")[0]


def find_device(name: str) -> Device | None:
    """The kind of this name, whatever its case, blanks and dashes; a name without memory, such as `H100`, is the usual
    one.
    """
    plain_name = _plain(name)
    plain_name += _USUAL_MEMORY.get(plain_name, "")
    return next(
        (
            device
            for device in DEVICES.values()
            if plain_name and plain_name in (_plain(device.name), _plain(_stem(device)))
        ),
        None,
    )


def usual_gpus_per_host(name: str | None) -> int:
    """GPUs of a host as such machines are usually built: 4 in a tray of GB200 or GB300, one with each Grace of a GH200,
    else 8, also for an unknown kind.
    """
    plain_name = _plain(name or "")
    return 1 if plain_name.startswith("gh200") else 4 if plain_name.startswith(("gb200", "gb300")) else 8


def suggest_device(name: str) -> str | None:
    """The kind of the same chip for a name that is none, such as `A100-80GB` for `A100-60GB`; None for another chip,
    which has other memory and peaks.
    """
    plain_name = _plain(name)
    chips = {_BOARD.sub("", _plain(_stem(device))): device for device in _TABLE}
    chips = {
        chip: device
        for chip, device in chips.items()
        if plain_name.startswith(chip) and _BOARD.fullmatch(plain_name.removeprefix(chip))
    }
    chip = max(chips, key=len, default="")
    return (find_device(chip) or chips[chip]).name if chip else None


def describe_device(
    name: str, memory: int | None, flops_16: float | None, bandwidth: float | None, known: Device | None = None
) -> Device | None:
    """A kind with the user's own figures: bytes, dense FLOP/s with 16 bits, bytes/s. What is not given is that of the
    `known` kind. Without one, memory and FLOP/s are needed, else None; the rest are those of a card on a PCIe 4 slot,
    with a byte of bandwidth for 200 operations and fp32 at an eighth.
    """
    if known is None:
        if not memory or not flops_16:
            return None
        link = 32 * GIGA
        rate = bandwidth or flops_16 / 200
        return Device(name, memory, flops_16, flops_16 / 8, 0.0, rate, link, link, 12.5 * GIGA, "`cluster`")
    changes = {"memory": memory, "flops_16": flops_16, "bandwidth": bandwidth}
    changes = {key: value for key, value in changes.items() if value is not None}
    if not changes or known.is_cpu:
        return known
    return replace(known, **changes, source=f"{known.source}, with figures of `cluster`")  # type: ignore[arg-type]


def device_by_driver_name(name: str, memory: int) -> Device | None:
    """The kind that a driver calls `NVIDIA A100-SXM4-80GB`, `NVIDIA H100 PCIe` or `AMD Instinct MI300X`; of those that
    differ in memory alone the one nearest to `memory` bytes. None for an unknown kind.
    """
    lower_name = name.lower()
    if _OTHER_BOARDS.search(lower_name):
        return None
    kinds = [device for device in _TABLE if re.search(_driver_pattern(device), lower_name)]
    for board in ("pcie", "nvl"):
        if any(board in device.name.lower() for device in kinds):
            kinds = [device for device in kinds if (board in device.name.lower()) == (board in lower_name)]
    return min(kinds, key=lambda device: abs(device.memory - memory), default=None)


def _driver_pattern(device: Device) -> str:
    stem = _stem(device)
    return rf"(?<![a-z0-9])(?:{_DRIVER_PATTERNS.get(stem, stem.split('-')[0].lower())})(?![a-z0-9])"
