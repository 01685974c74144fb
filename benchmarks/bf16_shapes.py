# SPDX-License-Identifier: Apache-2.0
"""Memory that torch's CPU kernels keep for each new shape, in bf16 and fp32: attention and a linear layer, forward and
backward, on rows of 8, 16 ... 256 tokens.

    python benchmarks/bf16_shapes.py

Prints the bytes that malloc has in use after the first pass over all lengths and after the second, above those before.
The rise of the first pass is kept for each shape; a cache of bounded size would not hold it. Ten seconds, no DeepSpeed.
"""

from __future__ import annotations

import ctypes
import os

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

MIB = 1 << 20
LENGTHS = range(8, 257, 8)


class _MallocInfo(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def allocated() -> int:
    """Bytes that malloc has given out and not got back."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _MallocInfo
    return int(libc.mallinfo2().uordblks)


def attend(length: int, dtype: torch.dtype) -> None:
    rows = torch.randn(4, 6, length, 64, dtype=dtype, requires_grad=True)
    out = scaled_dot_product_attention(rows, rows, rows, is_causal=True)
    out.backward(torch.ones_like(out))


def project(length: int, dtype: torch.dtype) -> None:
    rows = torch.randn(4 * length, 384, dtype=dtype, requires_grad=True)
    weight = torch.randn(1536, 384, dtype=dtype, requires_grad=True)
    out = linear(rows, weight)
    out.backward(torch.ones_like(out))


def main() -> None:
    torch.set_num_threads(1)
    capacity = os.environ.get("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "default")
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, oneDNN's cache: {capacity}")
    for dtype in (torch.float32, torch.bfloat16):
        for compute in (attend, project):
            for length in (8, 256):
                compute(length, dtype)
            before = allocated()
            kept = []
            for _ in range(2):
                for length in LENGTHS:
                    compute(length, dtype)
                kept.append(allocated() - before)
            first, second = (f"{size / MIB:6.1f}" for size in kept)
            print(f"{dtype!s:>15} {compute.__name__:8} {first} MiB, again {second} MiB, {len(LENGTHS)} lengths")


if __name__ == "__main__":
    main()
