# SPDX-License-Identifier: Apache-2.0
"""GPU kinds: names and sanity of the figures. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.facts.devices import DEVICES, device_by_driver_name, find_device


@pytest.mark.parametrize("name", DEVICES)
def test_each_kind_is_found_by_its_name_in_any_case(name: str) -> None:
    assert find_device(name.lower()) is DEVICES[name]


@pytest.mark.parametrize(
    ("short", "name"), [("H100", "H100-80GB"), (" a100 ", "A100-80GB"), ("RTX 4090", "RTX4090-24GB")]
)
def test_short_names(short: str, name: str) -> None:
    assert find_device(short) is DEVICES[name]


@pytest.mark.parametrize("name", ["", "H101", "80GB", "h100-40gb"])
def test_unknown_kinds(name: str) -> None:
    assert find_device(name) is None


def test_only_the_cpu_has_no_peak() -> None:
    assert [name for name, device in DEVICES.items() if not device.flops_16] == ["cpu"]
    assert DEVICES["cpu"].is_cpu


@pytest.mark.parametrize("name", [name for name in DEVICES if name != "cpu"])
def test_figures_are_in_the_right_unit_and_name_holds_the_memory(name: str) -> None:
    device = DEVICES[name]
    gigabytes = int(name.rsplit("-", 1)[1].removesuffix("GB"))
    assert 0.98 < device.memory / 2**30 / gigabytes < 1.06 or 0.98 < device.memory / 1e9 / gigabytes < 1.1
    assert 1e13 < device.flops_32 < device.flops_16 < 3e15
    assert 1e9 < device.network <= device.pcie * 2
    assert device.source


@pytest.mark.parametrize(
    ("said", "gib", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", 80, "H100-80GB"),
        ("NVIDIA H100 PCIe", 80, "H100-PCIe-80GB"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", 40, "A100-40GB"),
        ("NVIDIA H200", 140, "H200-141GB"),
        ("Tesla V100-SXM2-32GB", 32, "V100-32GB"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX4090-24GB"),
        ("AMD Instinct MI300X", 192, "MI300X-192GB"),
        ("NVIDIA L40S", 45, "L40S-48GB"),
        ("NVIDIA GeForce GTX 1080", 8, None),
        ("NVIDIA H100 NVL", 94, None),
        ("NVIDIA GB200", 180, None),
        ("NVIDIA H20", 96, None),
    ],
)
def test_kinds_by_the_names_of_their_drivers(said: str, gib: int, kind: str | None) -> None:
    device = device_by_driver_name(said, gib << 30)
    assert (device.name if device else None) == kind
