"""GPU kinds: names and sanity of the figures. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from harness.facts.devices import DEVICES, find_device


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
