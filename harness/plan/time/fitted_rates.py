# SPDX-License-Identifier: Apache-2.0
"""Rates that were fitted to published measurements: shares of data sheets, costs of launches, and how far runs scatter.

`python benchmarks/plan_published.py --fit` fits them to the sources that `benchmarks/published/set_aside.py` leaves in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

_GENERATIONS = (
    ("pascal", ("P100",)),
    ("volta", ("V100",)),
    ("turing", ("T4", "RTX20", "TITAN")),
    ("ampere", ("A100", "A800", "A6000", "A5000", "A40", "A30", "A16", "A10", "A2", "RTX30")),
    ("ada", ("L4", "L20", "RTX40", "RTX4500-Ada", "RTX5000-Ada", "RTX6000-Ada")),
    ("hopper", ("H100", "H800", "H200", "H20", "GH200")),
    ("blackwell", ("B200", "B300", "GB200", "GB300", "RTX5080", "RTX5090", "RTX-PRO")),
    ("cdna2", ("MI210", "MI250")),
    ("cdna3", ("MI300X", "MI325X", "MI355X")),
    ("gaudi", ("Gaudi",)),
)

_MATMUL: Mapping[str, float] = MappingProxyType(
    {
        "pascal": 0.45,
        "volta": 0.504,
        "turing": 0.45,
        "ampere": 0.687,
        "ada": 0.877,
        "hopper": 0.566,
        "blackwell": 0.577,
        "cdna2": 0.45,
        "cdna3": 0.45,
        "gaudi": 0.6,
        "other": 0.6,
    }
)
_ATTENTION: Mapping[str, float] = MappingProxyType(
    {
        "pascal": 0.25,
        "volta": 0.249,
        "turing": 0.25,
        "ampere": 0.503,
        "ada": 0.551,
        "hopper": 0.433,
        "blackwell": 0.493,
        "cdna2": 0.35,
        "cdna3": 0.35,
        "gaudi": 0.35,
        "other": 0.4,
    }
)


def generation_of(device: str) -> str:
    """The architecture of a kind of GPU: `hopper` for `H100-80GB`; `other` for one that is not known here."""
    matches = [
        (len(prefix), name) for name, prefixes in _GENERATIONS for prefix in prefixes if device.startswith(prefix)
    ]
    return max(matches)[1] if matches else "other"


@dataclass(frozen=True, slots=True)
class Spread:
    """Factors by which a fast and a slow run of the same setting differ from the middle, by what takes the time.
    `cpu_optimizer` is that of a host whose memory was not measured: published hosts reach 0.06 to 0.39 of the assumed
    bandwidth (`benchmarks/published/offload_notes.json`), the H100 of 2026-11-26 reached 0.09.
    `experts`: the further factor of a slow run of a model with experts, by which 1.25 reaches the median of the sources
    that were set aside, 3.77 on 2026-11-29; a calibration by own runs has none.
    """

    compute: float = 1.25
    attention: float = 1.55
    collectives: float = 1.5
    cpu_optimizer: float = 3.0
    nvme: float = 1.6
    pcie: float = 1.5
    gpu_optimizer: float = 1.5
    experts: float = 3.02


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors on the seconds of the parts of a step: 1 unless a run on the same machines was measured."""

    compute: float = 1.0
    collectives: float = 1.0
    cpu_optimizer: float = 1.0
    nvme: float = 1.0
    pcie: float = 1.0
    gpu_optimizer: float = 1.0


UNSCALED = Scale()
MEASURED_HOST_SPREAD, THREAD_SPREAD = 2.0, 1.7
"""`Spread.cpu_optimizer` where the spec gives the bandwidth of the host's memory, and where the threads are known."""


@dataclass(frozen=True, slots=True)
class FittedRates:
    """Shares of the peak, seconds and bytes.

    `matmul`: share of the dense 16-bit peak that large products reach, by generation; `width` and `rows`: side of a
    product and number of its tokens at which half of that is lost; `expert_share`: what products of experts reach.
    `attention`: share of the peak of fused attention, forward; `attention_length`: positions at which half of it is
    lost; `attention_backward`: the backward pass by the forward one.

    `activation_passes`: times that saved activations cross the GPU's memory; `logit_bytes`: the same for an element of
    the logits; `memory_share`: share of the data sheet's bandwidth. `launch_seconds`: host time of one pass through one
    layer, `hook_seconds`: what ZeRO-3's hooks add. `gather_seconds`: issue of one gather; `reduction_seconds`: of one
    parameter tensor's reduction at stages 1 and 2. `overlap`: share of the shorter of compute and collectives that the
    other hides.

    `optimizer_bytes`: GPU memory traffic of an element's step; `step_seconds`: what a step costs besides.
    `host_memory_share`: share of a host's memory bandwidth that DeepSpeed's CPU optimizer reaches, unscaling and copies
    included; `bound_cores`: the gain of `bind_cores_to_rank`. `pcie_exposed`: share of the copies during the passes
    that nothing hides.
    """

    matmul: Mapping[str, float] = field(default_factory=lambda: _MATMUL)
    attention: Mapping[str, float] = field(default_factory=lambda: _ATTENTION)
    width: float = 269.0
    rows: float = 424.0
    expert_share: float = 0.644
    attention_length: float = 388.0
    attention_backward: float = 0.704
    activation_passes: float = 3.09
    logit_bytes: float = 14.8
    launch_seconds: float = 270e-6
    hook_seconds: float = 250e-6
    gather_seconds: float = 420e-6
    reduction_seconds: float = 550e-6
    overlap: float = 0.993
    optimizer_bytes: float = 69.4
    host_memory_share: float = 0.144
    bound_cores: float = 1.17
    pcie_exposed: float = 0.561
    step_seconds: float = 0.0232
    memory_share: float = 0.85
    spread: Spread = Spread()

    def matmul_share(self, device: str, width: float, rows: float) -> float:
        """Share of the peak of products `width` wide over `rows` tokens."""
        large = self.matmul.get(generation_of(device), self.matmul["other"])
        return large / (1 + self.width / width + self.rows / rows)

    def attention_shares(self, device: str, length: float = 8192) -> tuple[float, float]:
        """Shares of the peak that fused attention over rows of `length` reaches, forward and backward."""
        forward = self.attention.get(generation_of(device), self.attention["other"])
        forward /= 1 + self.attention_length / length
        return forward, forward * self.attention_backward


FITTED = FittedRates()
