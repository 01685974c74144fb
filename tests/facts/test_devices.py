# SPDX-License-Identifier: Apache-2.0
"""GPU kinds: names and sanity of the figures. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.facts.devices import DEVICES, device_by_driver_name, find_device, notes_on_kind, suggest_device


@pytest.mark.parametrize("name", DEVICES)
def test_each_kind_is_found_by_its_name_in_any_case(name: str) -> None:
    assert find_device(name.lower()) is DEVICES[name]


@pytest.mark.parametrize(
    ("short", "name"),
    [
        ("H100", "H100-80GB"),
        (" a100 ", "A100-80GB"),
        ("V100", "V100-32GB"),
        ("gh200", "GH200-96GB"),
        ("RTX 4090", "RTX4090-24GB"),
        ("A100 80GB", "A100-80GB"),
        ("NVIDIA H20", "H20-96GB"),
        ("h100-nvl", "H100-NVL-94GB"),
        ("RTX A6000", "A6000-48GB"),
        ("RTX PRO 6000", "RTX-PRO-6000-96GB"),
        ("gb300", "GB300-288GB"),
        ("Gaudi 2", "Gaudi2-96GB"),
        ("l4", "L4-24GB"),
        ("A40", "A40-48GB"),
        ("a30", "A30-24GB"),
        ("A16", "A16-16GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000-Ada-48GB"),
        ("RTX 5000 Ada", "RTX5000-Ada-32GB"),
        ("rtx4500-ada", "RTX4500-Ada-24GB"),
        ("A5000", "A5000-24GB"),
        ("A100 80", "A100-80GB"),
        ("A100 80G", "A100-80GB"),
        ("V100 32", "V100-32GB"),
        ("4090", "RTX4090-24GB"),
        ("3090", "RTX3090-24GB"),
        ("A4000", "A4000-16GB"),
        ("RTX A5000", "A5000-24GB"),
        ("RTX 3080", "RTX3080-10GB"),
        ("GeForce RTX 4080", "RTX4080-16GB"),
        ("Tesla V100S", "V100S-32GB"),
        ("P100", "P100-16GB"),
        ("Instinct MI210", "MI210-64GB"),
        ("MI250X", "MI250X-64GB"),
        ("H200 NVL", "H200-NVL-141GB"),
        ("H200", "H200-141GB"),
        ("GB200 NVL72", "GB200-186GB"),
        ("GB200 NVL", "GB200-186GB"),
        ("L40", "L40-48GB"),
        ("NVIDIA A10", "A10-24GB"),
        ("A2", "A2-16GB"),
        ("L20", "L20-48GB"),
        ("MI250", "MI250-64GB"),
    ],
)
def test_short_names(short: str, name: str) -> None:
    assert find_device(short) is DEVICES[name]


@pytest.mark.parametrize(
    "name",
    [
        "A800-80GB",
        "H800-80GB",
        "GB200-186GB",
        "GB300-288GB",
        "B300-288GB",
        "RTX3090-24GB",
        "Gaudi2-96GB",
        "H100-96GB",
    ],
)
def test_kinds_that_published_runs_name(name: str) -> None:
    assert name in DEVICES


@pytest.mark.parametrize(
    ("name", "kind"), [("3060", "RTX3060-12GB"), ("Titan RTX", "TITAN-RTX-24GB"), ("2080Ti", "RTX2080Ti-11GB")]
)
def test_cards_as_people_name_them(name: str, kind: str) -> None:
    found = find_device(name)
    assert found is not None
    assert found.name == kind


@pytest.mark.parametrize("name", ["", "-", "NVIDIA", "H101", "80GB", "h100-40gb", "RTX6000", "A11", "H200-96GB"])
def test_unknown_kinds(name: str) -> None:
    assert find_device(name) is None


def test_only_the_cpu_has_no_peak() -> None:
    assert [name for name, device in DEVICES.items() if not device.flops_16] == ["cpu"]
    assert DEVICES["cpu"].is_cpu


@pytest.mark.parametrize("name", [name for name in DEVICES if name != "cpu"])
def test_figures_are_in_the_right_unit_and_name_holds_the_memory(name: str) -> None:
    device = DEVICES[name]
    gigabytes = int(name.rsplit("-", 1)[1].removesuffix("GB"))
    assert 0.94 < device.memory / 2**30 / gigabytes < 1.06 or 0.97 < device.memory / 1e9 / gigabytes < 1.1
    assert 4e12 < device.flops_32 < device.flops_16 < 3e15
    assert 1e9 < device.network <= device.pcie * 2
    assert device.source
    if device.link <= device.pcie < 100e9:  # no NVLink; that of a GH200 joins it to its host
        assert device.network * 8 == 12.5e9


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
        ("NVIDIA L40", 45, "L40-48GB"),
        ("NVIDIA A10", 22, "A10-24GB"),
        ("NVIDIA GeForce RTX 3060", 12, "RTX3060-12GB"),
        ("NVIDIA TITAN RTX", 24, "TITAN-RTX-24GB"),
        ("NVIDIA GeForce GTX 1080", 8, None),
        ("NVIDIA H100 NVL", 94, "H100-NVL-94GB"),
        ("NVIDIA H200 NVL", 141, "H200-NVL-141GB"),
        ("NVIDIA GB200", 185, "GB200-186GB"),
        ("NVIDIA GB300", 277, "GB300-288GB"),
        ("NVIDIA B300 SXM6 AC", 268, "B300-288GB"),
        ("NVIDIA B200", 180, "B200-180GB"),
        ("NVIDIA H20", 96, "H20-96GB"),
        ("NVIDIA H20-3e", 141, None),
        ("NVIDIA H800", 80, "H800-80GB"),
        ("NVIDIA H800 PCIe", 80, None),
        ("NVIDIA A800-SXM4-80GB", 80, "A800-80GB"),
        ("NVIDIA GH200 480GB", 96, "GH200-96GB"),
        ("NVIDIA GH200 144G HBM3e", 143, "GH200-144GB"),
        ("Tesla V100-SXM2-16GB", 16, "V100-16GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, "RTX-PRO-6000-96GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 96, None),
        ("NVIDIA RTX 6000 Ada Generation", 48, "RTX6000-Ada-48GB"),
        ("NVIDIA RTX A6000", 48, "A6000-48GB"),
        ("NVIDIA GeForce RTX 5090", 32, "RTX5090-32GB"),
        ("NVIDIA GeForce RTX 5090 D", 32, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, None),
        ("NVIDIA GeForce RTX 3090", 24, "RTX3090-24GB"),
        ("NVIDIA GeForce RTX 3090 Ti", 24, None),
        ("NVIDIA A10G", 22, "A10G-24GB"),
        ("NVIDIA L4", 22, "L4-24GB"),
        ("Tesla T4", 15, "T4-16GB"),
        ("AMD Instinct MI325X", 256, "MI325X-256GB"),
        ("AMD Instinct MI355X", 288, "MI355X-288GB"),
        ("HL-225", 96, "Gaudi2-96GB"),
        ("NVIDIA A40", 45, "A40-48GB"),
        ("NVIDIA A30", 24, "A30-24GB"),
        ("NVIDIA A16", 15, "A16-16GB"),
        ("NVIDIA RTX A5000", 24, "A5000-24GB"),
        ("NVIDIA RTX 5000 Ada Generation", 32, "RTX5000-Ada-32GB"),
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", 16, None),
        ("NVIDIA GeForce RTX 3080", 10, "RTX3080-10GB"),
        ("NVIDIA GeForce RTX 3080", 12, "RTX3080-12GB"),
        ("NVIDIA GeForce RTX 3080 Ti", 12, None),
        ("NVIDIA GeForce RTX 4080 SUPER", 16, None),
        ("Tesla V100S-PCIE-32GB", 32, "V100S-32GB"),
        ("Tesla P100-PCIE-16GB", 16, "P100-16GB"),
        ("Tesla P100-SXM2-16GB", 16, None),
        ("AMD Instinct MI210", 64, "MI210-64GB"),
        ("AMD Instinct MI250X", 64, "MI250X-64GB"),
    ],
)
def test_kinds_by_the_names_of_their_drivers(said: str, gib: int, kind: str | None) -> None:
    device = device_by_driver_name(said, gib << 30)
    assert (device.name if device else None) == kind


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("A100-60GB", "A100-80GB"),
        ("h200-96gb", "H200-141GB"),
        ("NVIDIA A40-80GB", "A40-48GB"),
        ("RTX 6000 Ada 24GB", "RTX6000-Ada-48GB"),
        ("H100 SXM5", "H100-80GB"),
        ("H101", None),
        ("A45", None),
        ("V100X-32GB", None),
        ("", None),
    ],
)
def test_only_a_kind_of_the_same_chip_is_suggested(name: str, suggested: str | None) -> None:
    assert suggest_device(name) == suggested


def test_a_name_that_is_no_kind_gets_the_similar_ones() -> None:
    assert DEVICES["L40-48GB"].flops_16 == DEVICES["L40S-48GB"].flops_16 / 2
    assert notes_on_kind("L41")[0].startswith("similar kinds: L4")
    assert len(notes_on_kind("A110-80GB")[0].split(", ")) <= 4
    assert notes_on_kind("xyz")[0] == "known kinds: " + ", ".join(DEVICES)
