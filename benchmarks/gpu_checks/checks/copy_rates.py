# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device, pinned and pageable, in GB/s."""

from __future__ import annotations

from benchmarks.gpu_checks import device
from benchmarks.gpu_checks.check import Figures, Scene

SLOWEST, FASTEST = 1.0, 1000.0
"""GB/s of a pinned copy, from PCIe 3 with few lanes to NVLink-C2C and more."""


def measure(scene: Scene) -> Figures:
    """The fastest of several copies each way."""
    import torch

    device.require_device(scene.rehearse)
    size = scene.pick(1 << 29, 1 << 22)
    on_device = torch.zeros(size, dtype=torch.uint8, device=scene.pick("cuda", "cpu"))
    found: Figures = {"bytes": size}
    for name, pinned in (("pinned", scene.pick(True, False)), ("pageable", False)):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
        pairs = {"to_device": (on_device, host), "to_host": (host, on_device)}
        for way, (target, source) in pairs.items():
            seconds = device.time_work(lambda a=target, b=source: a.copy_(b, non_blocking=True), 5)
            found[f"{name}_{way}_gb_per_second"] = size / 1e9 / seconds
    return found


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Rates that a bus can have, and pinned memory that pays."""
    reasons = []
    for way in ("to_device", "to_host"):
        pinned, pageable = (figures[f"{name}_{way}_gb_per_second"] for name in ("pinned", "pageable"))
        if not (0.01 if rehearse else SLOWEST) < pinned < FASTEST:
            reasons.append(f"{pinned:.3g} GB/s pinned {way.replace('_', ' ')} is not the rate of a bus")
        if not rehearse and pinned < 0.9 * pageable:
            reasons.append(f"pinned memory is slower {way.replace('_', ' ')}: {pinned:.1f} against {pageable:.1f} GB/s")
    return reasons
