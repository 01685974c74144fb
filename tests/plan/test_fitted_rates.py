# SPDX-License-Identifier: Apache-2.0
"""The fitted rates: which generation a GPU is of, and how shares fall with size and length."""

from __future__ import annotations

import pytest

from harness.facts.devices import DEVICES
from harness.plan.time.fitted_rates import FITTED, generation_of


@pytest.mark.parametrize(
    ("device", "generation"),
    [
        ("A100-80GB", "ampere"),
        ("H100-PCIe-80GB", "hopper"),
        ("L40S-48GB", "ada"),
        ("B200-180GB", "blackwell"),
        ("V100-32GB", "volta"),
        ("MI300X-192GB", "cdna3"),
        ("MyGPU", "other"),
    ],
)
def test_generations(device: str, generation: str) -> None:
    assert generation_of(device) == generation


def test_every_known_gpu_has_a_generation() -> None:
    assert [name for name, device in DEVICES.items() if generation_of(name) == "other" and not device.is_cpu] == []


def test_every_generation_has_both_shares() -> None:
    assert set(FITTED.matmul) == set(FITTED.attention)
    assert all(0 < share < 1 for table in (FITTED.matmul, FITTED.attention) for share in table.values())


def test_small_products_and_short_rows_reach_less() -> None:
    large = FITTED.matmul_share("H100-80GB", 8192, 8192)
    assert FITTED.matmul_share("H100-80GB", 1024, 8192) < large
    assert FITTED.matmul_share("H100-80GB", 8192, 256) < large
    assert large < FITTED.matmul["hopper"]
    assert FITTED.attention_shares("H100-80GB", 512) < FITTED.attention_shares("H100-80GB", 65536)
