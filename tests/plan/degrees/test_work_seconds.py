# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step's work: they add up, hide where they may, and grow with the work. Needs nothing; milliseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.facts.devices import DEVICES
from harness.plan.degrees.gpu_work import (
    AttentionWork,
    CollectiveKind,
    GpuWork,
    GroupKind,
    MatrixProduct,
    Traffic,
    Window,
)
from harness.plan.degrees.work_seconds import WorkSeconds, work_seconds
from harness.plan.time.rates import Rates

H100 = DEVICES["H100-80GB"]
PRODUCT = MatrixProduct("mlp", 8192, 8192, 8192, 1000)


def work(*traffic: Traffic, **changes: object) -> GpuWork:
    """A step of large products, with these collectives."""
    base = GpuWork(
        precision="bf16",
        products=(PRODUCT,),
        attention=AttentionWork(8192, 8, 128, 8192 * 8192 / 2 * 100),
        traffic=traffic,
        micro_batches=8,
        layer_passes=80,
        bubble=0.0,
        elementwise_bytes=1e11,
        optimizer_bytes=1e10,
        tokens=8192 * 8 * 64,
        world_size=64,
        model_flops=1e18,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def traffic(
    window: Window, link: float = 0.0, network: float = 0.0, group: GroupKind = "tensor", kind: CollectiveKind = "ring"
) -> Traffic:
    """One kind of traffic with so many bytes."""
    return Traffic(f"{group} {window}", group, kind, 8, 8, link + network, link, network, 10, window)


def seconds_of(time: WorkSeconds, name: str) -> tuple[float, float]:
    """(seconds, exposed) of a part."""
    return next((seconds, exposed) for part, seconds, exposed in time.parts if part == name)


def test_exposed_parts_add_up() -> None:
    time = work_seconds(work(traffic("none", 1e11), traffic("step", 0, 1e11), bubble=0.25), H100, Rates())
    assert time.seconds == pytest.approx(sum(exposed for _, _, exposed in time.parts))
    assert time.low < time.seconds < time.high


def test_what_nothing_hides_is_added_in_full() -> None:
    without = work_seconds(work(), H100, Rates()).seconds
    each = traffic("none", 4.5e11)
    time = work_seconds(work(each), H100, Rates())
    seconds, exposed = seconds_of(time, each.purpose)
    assert exposed == seconds == pytest.approx(4.5e11 / (H100.link * Rates().link_efficiency), rel=0.01)
    assert time.seconds == pytest.approx(without + seconds)


def test_traffic_hides_under_its_window_and_no_further() -> None:
    small, large = traffic("step", 0, 1e10), traffic("step", 0, 1e13)
    assert seconds_of(work_seconds(work(small), H100, Rates()), small.purpose)[1] < 0.3 * 1e10 / 4e10
    seconds, exposed = seconds_of(work_seconds(work(large), H100, Rates()), large.purpose)
    assert 0.8 * seconds < exposed < seconds


def test_two_kinds_share_one_window() -> None:
    """Each alone would hide; together they are longer than what they hide under."""
    compute = work_seconds(work(), H100, Rates()).seconds
    size = 0.9 * compute * 4e10
    pair = traffic("step", 0, size), traffic("step", 0, size, "expert")
    alone = work_seconds(work(pair[0]), H100, Rates()).seconds - compute
    both = work_seconds(work(*pair), H100, Rates()).seconds - compute
    assert both > alone + 0.5 * compute


def test_the_slower_of_links_and_network_counts() -> None:
    ring = traffic("none", 1e11, 1e11)
    assert seconds_of(work_seconds(work(ring), H100, Rates()), ring.purpose)[0] == pytest.approx(1e11 / 4e10, rel=0.01)


def test_the_bubble_is_a_share_of_the_passes() -> None:
    """Gradients and the optimizer's step come once a step: nothing waits for them in a pipeline."""
    once = traffic("none", 0, 1e11, "data")
    flat, waiting = (work_seconds(work(once, bubble=bubble), H100, Rates()) for bubble in (0.0, 0.5))
    bubble = seconds_of(waiting, "pipeline bubble")[0]
    assert waiting.seconds - flat.seconds == pytest.approx(bubble)
    assert bubble <= 0.5 * (flat.seconds - seconds_of(flat, once.purpose)[0])


def test_precision_sets_the_peak() -> None:
    times = [work_seconds(work(precision=each), H100, Rates()).seconds for each in ("fp8", "bf16", "fp32")]
    assert times == sorted(times)
    head = work(products=(replace(PRODUCT, part="head"),))
    assert work_seconds(replace(head, precision="fp8"), H100, Rates()).seconds == pytest.approx(
        work_seconds(head, H100, Rates()).seconds
    )
