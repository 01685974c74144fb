# SPDX-License-Identifier: Apache-2.0
"""On-demand prices of rented GPUs in US dollars a GPU and hour, each with its page and the day on which it was read.

List prices before tax, without storage and traffic; one seller a kind. Prices move: a table older than a year is not
used (`harness.plan.search.price_list`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

_GB, _GIB = 10**9, 2**30


@dataclass(frozen=True, slots=True)
class GpuPrice:
    """Dollars a GPU and hour of one kind. `host_memory`: bytes of host memory a GPU that are sold with it; where the
    page did not show it (`is_memory_assumed`), as many as the GPU's own.
    """

    kind: str
    dollars: float
    host_memory: int
    seller: str
    page: str
    read_on: date
    is_memory_assumed: bool = False


_LAMBDA = ("Lambda", "https://lambda.ai/instances", date(2026, 9, 20))
_HYPERSTACK = ("Hyperstack", "https://www.hyperstack.cloud/gpu-pricing", date(2026, 8, 26))
_RUNPOD = ("RunPod Secure Cloud", "https://www.runpod.io/pricing", date(2026, 9, 25))
_DIGITALOCEAN = ("DigitalOcean", "https://www.digitalocean.com/pricing/gpu-droplets", date(2026, 10, 8))

# Lambda: hosts of 8 GPUs with 1,800 GiB (B200: 2,900 GiB). Hyperstack: `max_ram_gb_per_gpu` of the rate card, 1,440 GB
# for 8 H100 PCIe joined by NVLink. The figures were read in dated public transcriptions of these pages.
GPU_PRICES: tuple[GpuPrice, ...] = (
    GpuPrice("A100-40GB", 1.99, 225 * _GIB, *_LAMBDA),
    GpuPrice("A100-80GB", 2.79, 225 * _GIB, *_LAMBDA),
    GpuPrice("H100-80GB", 3.99, 225 * _GIB, *_LAMBDA),
    GpuPrice("H100-PCIe-80GB", 2.60, 180 * _GB, *_HYPERSTACK),
    GpuPrice("H200-141GB", 3.99, 225 * _GB, *_HYPERSTACK),
    GpuPrice("B200-180GB", 6.69, 2900 * _GIB // 8, *_LAMBDA),
    GpuPrice("MI300X-192GB", 2.59, 192 * _GB, *_DIGITALOCEAN, is_memory_assumed=True),
    GpuPrice("L40S-48GB", 1.09, 48 * _GB, *_RUNPOD, is_memory_assumed=True),
    GpuPrice("RTX4090-24GB", 0.74, 24 * _GB, *_RUNPOD, is_memory_assumed=True),
)
