# SPDX-License-Identifier: Apache-2.0
"""Rates and sizes of the cluster section: what is assumed, what overrides it, what cannot be read. Milliseconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.plan.plan_json import plan_json
from harness.plan.time.rates import parse_disks, parse_rate
from tests.support.plan_inputs import offload, plan_of


@pytest.mark.parametrize(
    ("text", "rate"), [("400GB/s", 400e9), ("25 GB/s", 25e9), ("1GiB/s", 2**30), ("3e9", None), (5_000_000_000, 5e9)]
)
def test_rates(text: Any, rate: float | None) -> None:
    if rate is None:
        with pytest.raises(ValueError, match="not a rate"):
            parse_rate(text)
    else:
        assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["0GB/s", "-1GB/s", "fast", "", "GB/s", "200", "400G-b/s", 200, 0])
def test_what_is_no_rate(text: Any) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "size"), [("8x3.5TB", 28e12), ("28TB", 28e12), ("2 x 1TiB", 2**41), (7, 7)])
def test_disks(text: Any, size: float) -> None:
    assert parse_disks(text) == size


@pytest.mark.parametrize("text", ["x3TB", "8x", "8xlots", "ax3TB", "-1"])
def test_what_is_no_disk(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|negative"):
        parse_disks(text)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("host_memory_bandwidth", "100GB/s", "CPU optimizer"),
        ("nvme_read_bandwidth", "5GB/s", "NVMe"),
        ("nvme_write_bandwidth", "2GB/s", "NVMe"),
        ("compute_efficiency", 0.3, "compute"),
        ("link_bandwidth", "100GB/s", "collectives"),
        ("pcie_bandwidth", "12GB/s", "PCIe"),
    ],
)
def test_a_measured_rate_replaces_the_assumed_one(key: str, value: Any, part: str) -> None:
    zero = offload("nvme", sub_group_size=100_000_000)
    before, after = plan_of(zero=zero).time, plan_of(zero=zero, cluster={key: value}).time
    assert before is not None
    assert after is not None
    assert after.seconds_of(part) > before.seconds_of(part)


def test_measured_links_are_taken_as_they_are() -> None:
    device = plan_of(cluster={"link_bandwidth": "360GB/s"}).device
    assert device is not None
    assert device.link * 0.8 == pytest.approx(360e9)


@pytest.mark.parametrize(("disks", "count"), [("8x3.5TB", 8), ("16x1.9TB", 16), ("1TB", 1), ("28TB", 8), (None, 4)])
def test_disks_are_as_fast_as_there_are_many(disks: str | None, count: int) -> None:
    rates = plan_of(cluster={"nvme": disks}).rates
    assert (rates.nvme_read, rates.nvme_write) == (count * 2.5e9, count * 1.25e9)


@pytest.mark.parametrize("key", ["host_memory_bandwidth", "nvme_read_bandwidth", "network_bandwidth", "nvme"])
def test_what_cannot_be_read_is_a_finding_at_its_key(key: str) -> None:
    findings = [f for f in plan_of(cluster={key: "lots"}).findings if f.gate == "MM004"]
    assert [f.key for f in findings] == [f"cluster.{key}"]
    assert "lots" in findings[0].message


def test_every_assumption_is_told() -> None:
    text = " ".join(plan_json(plan_of())["assumptions"])
    for word in ("compute", "links", "between hosts", "host memory", "NVMe", "checkpoints", "failure"):
        assert word in text


def test_a_measured_host_narrows_the_range_of_its_cpu_optimizer() -> None:
    assumed, measured = (
        plan_of(zero=offload("cpu"), cluster=cluster).time for cluster in ({}, {"host_memory_bandwidth": "185.6GB/s"})
    )
    assert assumed is not None
    assert measured is not None
    assert assumed.seconds == pytest.approx(measured.seconds), "0.45 of it are 0.144 of 580 GB/s"
    assert assumed.fast_seconds < measured.fast_seconds
    assert measured.slow_seconds < assumed.slow_seconds
