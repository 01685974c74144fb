# SPDX-License-Identifier: Apache-2.0
"""Rates of the host that the plan depends on: memory, DeepSpeed's CPU Adam, the disk of temporary files, in GB/s."""

from __future__ import annotations

from benchmarks.gpu_checks.check import Figures, Scene

ADAM_BYTES = 28
"""That CPU Adam moves for a parameter in fp32: weight, gradient and two moments are read, three of them written."""
RANGES = {
    "host_memory": (1.0, 5000.0),
    "cpu_adam": (0.5, 5000.0),
    "disk_read": (0.01, 500.0),
    "disk_write": (0.01, 500.0),
}


def measure(scene: Scene) -> Figures:
    """By the program that `harness doctor --measure` runs, on all cores."""
    from harness.runtime import hardware_benchmark as bench

    if scene.rehearse:
        bench.ELEMENTS, bench.DISK_BYTES = 500_000, 16 << 20
        bench.SHARES = dict.fromkeys(bench.SHARES, 0.2)
        bench.last_level_cache = lambda: 0
    disk = bench.bench_disk(scene.folder)
    rates = {name: float(disk[name]) / 1e9 for name in ("disk_read", "disk_write")}
    rates |= {"host_memory": bench.bench_host_memory() / 1e9, "cpu_adam": ADAM_BYTES * bench.bench_cpu_adam() / 1e9}
    return {**{f"{name}_gb_per_second": rate for name, rate in rates.items()}, "disk_way": disk["disk_way"]}


def judge(figures: Figures, rehearse: bool) -> list[str]:
    """Rates that hosts have."""
    reasons = []
    for name, (low, high) in RANGES.items():
        rate = figures[f"{name}_gb_per_second"]
        if not low / (100 if rehearse else 1) < rate < high:
            reasons.append(f"{name.replace('_', ' ')}: {rate:.3g} GB/s is not within {low} and {high}")
    return reasons
