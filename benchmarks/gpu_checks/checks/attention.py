# SPDX-License-Identifier: Apache-2.0
"""Attention of packed rows: the mask that the harness makes, against causal attention of each document by itself.

Time and memory of scaled dot-product attention with and without a mask, and of flash attention where it is installed.
"""

from __future__ import annotations

from typing import Any

from benchmarks.gpu_checks.check import SEED, Figures, Scene
from benchmarks.gpu_checks.device import time_work, watch_peak

SHAPES = ((2, 64, 4096, 128), (1, 8, 65_536, 128))
TOY_SHAPES = ((2, 4, 64, 16), (1, 2, 256, 16))
"""Rows, heads, length, head size."""
MASK_BYTES = 2.1
"""Of one mask at its making, per pair of positions and row."""
LARGEST_ERROR = 0.03


def measure(scene: Scene) -> Figures:
    """Per shape: milliseconds and gigabytes of each way, bytes of the mask, the largest relative error."""
    import torch

    from harness.runtime.parallel.sequence_parallel import causal_mask

    device = scene.pick("cuda", "cpu")
    shapes: dict[str, Any] = {}
    for shape in scene.pick(SHAPES, TOY_SHAPES):
        rows, _, length, size = shape
        positions = torch.arange(length // 2, device=device).repeat(rows, 2)
        with watch_peak() as held:
            mask = causal_mask(positions, None)
        torch.manual_seed(SEED)
        q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        ways = {
            "causal": lambda q=q, k=k, v=v: _attend(q, k, v, None),
            "masked": lambda q=q, k=k, v=v, mask=mask: _attend(q, k, v, mask),
        }
        figures: dict[str, Any] = {"mask_bytes_per_pair": held["peak"] / (rows * length**2)}
        for name, work in (ways | _flash_way(q, k, v, length)).items():
            with watch_peak() as held:
                work()
            seconds = time_work(work, scene.pick(3, 1))
            flops = 14 * rows * shape[1] * length**2 * size / (2 if name != "masked" else 1)
            figures[name] = {"ms": 1e3 * seconds, "gb": held["peak"] / 1e9, "tflops": flops / seconds / 1e12}
        figures["error"] = _compare_documents(q, k, v, mask)
        shapes[" x ".join(map(str, shape))] = figures
        del q, k, v, mask, ways
    return {"shapes": shapes}


def _attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    import torch

    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    out.sum().backward()
    return out


def _flash_way(q: Any, k: Any, v: Any, length: int) -> dict[str, Any]:
    """Flash attention of documents by their borders, where its wheel is installed and the rows are on a GPU."""
    import torch

    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError:
        return {}
    if q.device.type != "cuda":
        return {}
    rows = q.shape[0]
    borders = torch.arange(0, 2 * rows + 1, device=q.device, dtype=torch.int32) * (length // 2)

    def work() -> None:
        flat = [t.transpose(1, 2).flatten(0, 1) for t in (q, k, v)]
        flash_attn_varlen_func(*flat, borders, borders, length // 2, length // 2, causal=True).sum().backward()

    return {"flash, documents": work}


def _compare_documents(q: Any, k: Any, v: Any, mask: Any) -> float:
    """Largest difference of the masked attention of the first head to each half by itself, over the largest value."""
    import torch

    half = q.shape[2] // 2
    with torch.no_grad():
        first = [t[:1, :1] for t in (q, k, v)]
        masked = torch.nn.functional.scaled_dot_product_attention(*first, attn_mask=mask[:1])
        parts = [
            torch.nn.functional.scaled_dot_product_attention(*(t[:, :, place] for t in first), is_causal=True)
            for place in (slice(0, half), slice(half, None))
        ]
        alone = torch.cat(parts, dim=2)
        return float((masked - alone).abs().max() / alone.abs().max())


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """The mask is a byte or two a pair, and keeps documents apart."""
    reasons = []
    for shape, found in figures["shapes"].items():
        if not 0 < found["mask_bytes_per_pair"] <= MASK_BYTES:
            reasons.append(f"{shape}: the mask takes {found['mask_bytes_per_pair']:.1f} bytes a pair of positions")
        if not found["error"] <= LARGEST_ERROR:
            reasons.append(f"{shape}: masked attention is {found['error']:.2g} off that of each document")
        if not rehearse and found["causal"]["tflops"] > 2500:
            reasons.append(f"{shape}: {found['causal']['tflops']:.0f} TFLOP/s is more than a GPU has")
    return reasons or ([] if figures["shapes"] else ["no shape was measured"])
