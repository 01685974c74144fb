# SPDX-License-Identifier: Apache-2.0
"""Accelerator kinds: memory, peak arithmetic, links. The figures and their sources are in `devices.txt`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches

from harness.facts.data_rows import read_rows

MIB = 2**20
TERA = 1e12
GIGA = 1e9
_SLOT_NETWORK = 12.5 / 8
"""GB/s: the share of a GPU without NVLink, of eight behind one card of 100 Gbit/s, as AWS's G5 and G6 are sold."""


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


def is_before_ampere(name: str) -> bool:
    """Is it a kind without bf16 units, which torch emulates slower than fp32: V100, T4, P100, RTX 20?"""
    return name.lower().startswith(("v100", "t4", "p100", "rtx 20", "rtx20", "titan"))


_DRIVER_RESERVE = 512
"""MiB that NVIDIA's driver keeps of kinds of which torch's figure is not known: 250 to 690 of the others."""


def _read_devices() -> Iterator[Device]:
    """The lines of `devices.txt`, which describes the columns."""
    for _, row in read_rows("devices.txt"):
        name, mib, of_torch, *words, source = row.split(maxsplit=10)
        reserve = _DRIVER_RESERVE if "NVIDIA" in source else 0
        memory = (int(mib) - reserve if of_torch == "-" else int(of_torch)) * MIB
        numbers = [_SLOT_NETWORK if word == "-" else float(word) for word in words]
        flops_16, flops_32, flops_8 = (each * TERA for each in numbers[:3])
        bandwidth, link, pcie, network = (each * GIGA for each in numbers[3:])
        yield Device(name, memory, flops_16, flops_32, flops_8, bandwidth, link, pcie, network, source)


_TABLE = tuple(_read_devices())
CPU = Device("cpu", 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, "the host's own memory")

DEVICES: Mapping[str, Device] = {device.name: device for device in (*_TABLE, CPU)}

_USUAL_MEMORY = {"v100": "32gb", "a100": "80gb", "h100": "80gb", "gh200": "96gb", "rtx3080": "10gb"}
"""Of the kinds that come with more than one memory, the one that a name without memory means."""

_DRIVER_PATTERNS = {
    "A5000": r"rtx ?a5000",
    "A6000": r"rtx ?a6000",
    "Gaudi2": r"gaudi ?2|hl-225",
    "Gaudi3": r"gaudi ?3|hl-325",
    "RTX-PRO-6000": r"rtx pro 6000 blackwell",
}
"""Driver names that follow from no rule."""
_OTHER_BOARDS = re.compile(
    r"laptop|max-q|30[689]0 ti|4080 super|[45]090 d|h20-3e|h800 pcie|h800 nvl|h20 nvl|p100-(?:sxm2|pcie-12gb)"
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
    one, and so may its memory be written as in `A100 80` or `80G`.
    """
    plain_name = _plain(name)
    plain_name = f"rtx{plain_name}" if re.match(r"[2345]0[6-9]0", plain_name) else plain_name
    plain_name += _USUAL_MEMORY.get(plain_name, "")

    def names(device: Device) -> tuple[str, ...]:
        whole = _plain(device.name)
        return whole, whole.removesuffix("b"), whole.removesuffix("gb"), _plain(_stem(device))

    return next((device for device in DEVICES.values() if plain_name and plain_name in names(device)), None)


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
    same = [c for c in chips if plain_name.startswith(c) and _BOARD.fullmatch(plain_name.removeprefix(c))]
    chip = max(same, key=len, default="")
    return (find_device(chip) or chips[chip]).name if chip else None


def notes_on_kind(name: str) -> tuple[str, ...]:
    """For a name that is no kind: the kinds with similar names, all of them where there is none; what else to give."""
    kinds = {_plain(_stem(device)): device.name for device in _TABLE}
    near = [kinds[plain] for plain in get_close_matches(_plain(name).removesuffix("gb"), kinds, n=4, cutoff=0.6)]
    return (
        f"{'similar' if near else 'known'} kinds: {', '.join(near or DEVICES)}",
        "of any other kind give `cluster.gpu_memory` (`80GB`) and `cluster.gpu_tflops` (dense, 16 bit), with `--set`",
    )


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
        return Device(name, memory, flops_16, flops_16 / 8, 0.0, rate, link, link, _SLOT_NETWORK * GIGA, "`cluster`")
    figures = {"memory": memory, "flops_16": flops_16, "bandwidth": bandwidth}
    changes = {key: value for key, value in figures.items() if value is not None}
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
    stem = _stem(device).lower()
    is_card = "rtx" in stem  # whose driver name has all of its words
    words = re.sub(r"^rtx(?=\d)", "rtx ?", stem).replace("-", " ").replace("0ti", "0 ti")
    pattern = _DRIVER_PATTERNS.get(_stem(device), words if is_card else stem.split("-")[0])
    return rf"(?<![a-z0-9])(?:{pattern})(?![a-z0-9])"
