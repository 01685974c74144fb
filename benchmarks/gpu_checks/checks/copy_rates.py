# SPDX-License-Identifier: Apache-2.0
"""Copies between host and device in GB/s: memory that torch pins, that DeepSpeed's own allocator pins, pageable."""

from __future__ import annotations

from benchmarks.gpu_checks import device
from benchmarks.gpu_checks.check import Figures, Scene
from harness.hostinfo.machine import memlock_limit

SLOWEST, FASTEST = 1.0, 1000.0
KINDS = ("pinned", "native", "pageable")
"""GB/s of a pinned copy, from PCIe 3 with few lanes to NVLink-C2C and more."""


def measure(scene: Scene) -> Figures:
    """The fastest of several copies each way. Without DeepSpeed's allocator where a process may not lock so much."""
    import torch
    from deepspeed.utils.pin_memory import get_native_pinned_memory

    device.require_device(scene.rehearse)
    size = scene.pick(1 << 29, 1 << 22)
    on_device = torch.zeros(size, dtype=torch.uint8, device=scene.pick("cuda", "cpu"))
    found: Figures = {"bytes": size}
    limit = memlock_limit()
    if limit is not None and limit < size:
        found["memlock_limit"] = limit
    for name in KINDS:
        if name == "native" and "memlock_limit" in found:
            continue
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=name == "pinned" and scene.pick(True, False))
        if name == "native":
            host = get_native_pinned_memory().pin(host)
        pairs = {"to_device": (on_device, host), "to_host": (host, on_device)}
        for way, (target, source) in pairs.items():
            seconds = device.time_work(lambda a=target, b=source: a.copy_(b, non_blocking=True), 5)
            found[f"{name}_{way}_gb_per_second"] = size / 1e9 / seconds
    return found


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Rates that a bus can have, pinned memory that pays, and DeepSpeed's allocator as fast as torch's."""
    reasons = []
    if "memlock_limit" in figures and not rehearse:
        reasons.append(
            f"a process may lock {figures['memlock_limit']:,} bytes (`ulimit -l`): no copies of native memory"
        )
    for way in ("to_device", "to_host"):
        pinned, pageable = (figures[f"{name}_{way}_gb_per_second"] for name in ("pinned", "pageable"))
        if not (0.01 if rehearse else SLOWEST) < pinned < FASTEST:
            reasons.append(f"{pinned:.3g} GB/s pinned {way.replace('_', ' ')} is not the rate of a bus")
        if not rehearse and pinned < 0.9 * pageable:
            reasons.append(f"pinned memory is slower {way.replace('_', ' ')}: {pinned:.1f} against {pageable:.1f} GB/s")
        native = figures.get(f"native_{way}_gb_per_second", pinned)
        if not rehearse and native < 0.9 * pinned:
            reasons.append(
                f"DeepSpeed's pinned memory is slower {way.replace('_', ' ')}: {native:.1f} against {pinned:.1f} GB/s"
            )
    return reasons
