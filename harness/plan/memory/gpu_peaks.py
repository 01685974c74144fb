# SPDX-License-Identifier: Apache-2.0
"""Three figures of a GPU's peak: what torch has allocated, what its allocator has reserved, what `nvidia-smi` shows.

`torch.cuda.max_memory_allocated` counts tensors. `max_memory_reserved` adds blocks that the allocator keeps and gaps
between them; when a GPU is full it gives the free blocks back first, so a run may train with less than it reserves.
`nvidia-smi` adds the CUDA context and NCCL's buffers, which torch does not see.
"""

from __future__ import annotations

from typing import NamedTuple


class Share(NamedTuple):
    """A factor as measured in the middle, and where most measurements lie."""

    value: float
    low: float
    high: float

    def of(self, size: int) -> tuple[int, int]:
        """The range of a size."""
        return int(self.low * size), int(self.high * size)


ALLOCATED = Share(1.0, 0.85, 1.25)
"""Measured over planned tensors: 26 of 31 runs of DeepSpeed, and of LoRA on one or two GPUs (gist chenyaofo/d4cd6a20,
hpcaitech/OPT-Benchmark, fms-acceleration, litgpt, dlrover, ColossalAI with Lightning). States and buckets are counted;
activations are those of transformers 5 in eager mode, and losses before it keep 4 to 8 bytes more for each logit.
"""
RESERVED = Share(1.10, 1.04, 1.30)
"""Reserved over allocated memory below ZeRO-3: 1.05 to 1.29, half of them below 1.10, in 11 runs of 7B to 8B models on
one A100 (fms-acceleration, scripts/benchmarks/refs/a100_80gb.csv, full and LoRA, packed to 4096).
"""
RESERVED_ZERO3 = Share(1.25, 1.08, 1.50)
"""The same where parameters are gathered and freed all the time: 1.12 to 1.52 in 11 runs on two A100s (the same table,
FSDP), 1.26 to 1.35 in four (meta-llama/llama-cookbook#41, #165). A GPU that is full reserves all that there is: up to
2.4 with everything offloaded (hpcaitech/OPT-Benchmark).
"""
