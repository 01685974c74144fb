# SPDX-License-Identifier: Apache-2.0
"""The links between the GPUs of this host, as nvidia-smi names them: nominal rates, nothing is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.hostinfo.machine import run_for_output

_SECONDS = 5.0
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\s*(\d+)")
_LINK_RATE = re.compile(r"Link \d+:\s*([\d.]+) GB/s")


@dataclass(frozen=True, slots=True)
class GpuLinks:
    """`pairs`: the kind of each pair of GPUs, such as `NV18` (18 NVLinks), `PIX`, `NODE` or `SYS` (PCIe, nearer or
    farther). `nvlink`: bytes a second of one direction of all NVLinks of the GPU that has least; 0 for none.
    """

    pairs: dict[tuple[int, int], str]
    nvlink: float = 0.0

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of pairs that there are."""
        return tuple(sorted(set(self.pairs.values())))

    @property
    def is_without_nvlink(self) -> bool:
        """Are there pairs, none of them with NVLink?"""
        return bool(self.pairs) and not any(kind.startswith("NV") for kind in self.pairs.values())

    def as_text(self) -> str:
        """One line: `NV18 between all GPUs, NVLink 478 GB/s in one direction`."""
        if not self.pairs:
            between = "no other GPU"
        else:
            between = (
                f"{self.kinds[0]} between all GPUs" if len(self.kinds) == 1 else f"pairs by {', '.join(self.kinds)}"
            )
        rate = f"NVLink {self.nvlink / 1e9:.0f} GB/s in one direction" if self.nvlink else "no NVLink"
        return f"{between}, {rate}"


def find_gpu_links() -> GpuLinks:
    """The links, from `nvidia-smi topo -m` and `nvidia-smi nvlink -s`; none where it does not answer."""
    topology = run_for_output(["nvidia-smi", "topo", "-m"], _SECONDS)
    status = run_for_output(["nvidia-smi", "nvlink", "-s"], _SECONDS)
    return GpuLinks(parse_topology(topology), min(parse_nvlink_status(status).values(), default=0.0))


def parse_topology(text: str) -> dict[tuple[int, int], str]:
    """The kind of each pair of GPUs, from the matrix of `nvidia-smi topo -m`; columns of network cards are left out."""
    columns: list[int | None] = []
    pairs = {}
    for line in _ESCAPES.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        row = _GPU.fullmatch(cells[0])
        if not columns and "GPU0" in cells[1:]:
            matches = [_GPU.fullmatch(cell) for cell in cells[1:]]
            columns = [int(match[1]) if match else None for match in matches]
        elif row is not None:
            for column, kind in zip(columns, cells[1:], strict=False):
                if column is not None and int(row[1]) < column:
                    pairs[int(row[1]), column] = kind
    return pairs


def find_numa_nodes_of_gpus() -> dict[int, int]:
    """The NUMA node of each GPU, from `nvidia-smi topo -m`; of none where it does not say."""
    return parse_numa_affinity(run_for_output(["nvidia-smi", "topo", "-m"], _SECONDS))


def parse_numa_affinity(text: str) -> dict[int, int]:
    """The NUMA node of each GPU, where its column of the matrix has one number."""
    column, nodes = None, {}
    for line in _ESCAPES.sub("", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        row = _GPU.fullmatch(cells[0])
        if column is None and "NUMA Affinity" in cells:
            column = cells.index("NUMA Affinity")
        elif row is not None and column is not None and column < len(cells) and cells[column].isdigit():
            nodes[int(row[1])] = int(cells[column])
    return nodes


def parse_nvlink_status(text: str) -> dict[int, float]:
    """Bytes a second of one direction of each GPU's active links, from `nvidia-smi nvlink -s`."""
    rates: dict[int, float] = {}
    gpu = None
    for line in text.splitlines():
        head, link = _GPU.match(line), _LINK_RATE.search(line)
        if head is not None:
            gpu = int(head[1])
            rates[gpu] = 0.0
        elif link is not None and gpu is not None:
            rates[gpu] += float(link[1]) * 1e9
    return rates
