# SPDX-License-Identifier: Apache-2.0
"""The loss in chunks of tokens: time, memory, and gradients against those of whole logits in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu_checks.check import SEED, Figures, Scene
from benchmarks.gpu_checks.device import time_work, watch_peak


def measure(scene: Scene) -> Figures:
    """Per width and way: milliseconds, gigabytes, relative error of the gradients."""
    import torch

    from harness.runtime.chunked_cross_entropy import chunked_cross_entropy

    tokens, vocabulary = scene.pick(8192, 96), scene.pick(128_256, 1000)
    chunks = scene.pick((512, 1024, 2048, 4096), (16, 48))
    device, widths = scene.pick("cuda", "cpu"), {}
    for width in scene.pick((4096, 8192), (32,)):
        torch.manual_seed(SEED)
        hidden = torch.randn(tokens, width, device=device, dtype=torch.bfloat16).requires_grad_()
        weight = (torch.randn(vocabulary, width, device=device, dtype=torch.bfloat16) / width**0.5).requires_grad_()
        targets = torch.randint(0, vocabulary, (tokens,), device=device)

        def whole(hidden: Any = hidden, weight: Any = weight, targets: Any = targets) -> Any:
            logits = (hidden @ weight.T).float()
            return torch.nn.functional.cross_entropy(logits, targets, reduction="sum") / tokens

        def in_chunks(size: int, hidden: Any = hidden, weight: Any = weight, targets: Any = targets) -> Any:
            return chunked_cross_entropy(hidden, weight, targets, float(tokens), size)

        exact = _exact_gradients(hidden, weight, targets)
        ways: dict[str, Callable[[], Any]] = {"whole": whole}
        ways |= {f"chunks of {size}": lambda size=size, run=in_chunks: run(size) for size in chunks}
        widths[str(width)] = {name: _measure_way(scene, way, hidden, weight, exact) for name, way in ways.items()}
        del hidden, weight, targets, exact, ways
    return {"widths": widths}


def _exact_gradients(hidden: Any, weight: Any, targets: Any) -> tuple[Any, Any]:
    """By fp32 weights and whole fp32 logits."""
    import torch

    a, b = hidden.detach().float().requires_grad_(), weight.detach().float().requires_grad_()
    torch.nn.functional.cross_entropy(a @ b.T, targets).backward()
    return a.grad, b.grad


def _measure_way(scene: Scene, way: Callable[[], Any], hidden: Any, weight: Any, exact: tuple[Any, Any]) -> Figures:
    def work() -> None:
        hidden.grad = weight.grad = None
        way().backward()

    with watch_peak() as held:
        work()
    pairs = zip((hidden.grad, weight.grad), exact, strict=True)
    error = max(float((mine.float() - right).norm() / right.norm()) for mine, right in pairs)
    hidden.grad = weight.grad = None
    return {"ms": 1e3 * time_work(work, scene.pick(3, 1)), "gb": held["peak"] / 1e9, "error": error}


def judge(figures: Figures, _rehearse: bool) -> list[str]:
    """Chunks are about as exact as whole logits, and take less memory."""
    reasons = []
    for width, ways in figures["widths"].items():
        whole = ways["whole"]
        for name, found in ways.items():
            if not found["error"] <= 2 * whole["error"] + 1e-3:
                reasons.append(
                    f"width {width}, {name}: gradients are {found['error']:.2g} off, whole {whole['error']:.2g}"
                )
        smallest = next(found for name, found in ways.items() if name != "whole")
        if not 0 < smallest["gb"] < whole["gb"]:
            reasons.append(f"width {width}: {smallest['gb']:.2g} GB in chunks, {whole['gb']:.2g} GB whole")
    return reasons or ([] if figures["widths"] else ["no width was measured"])
