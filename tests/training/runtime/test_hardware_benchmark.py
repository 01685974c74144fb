# SPDX-License-Identifier: Apache-2.0
"""The measuring program on small arrays. Needs torch and deepspeed (its CPU Adam is compiled once); seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.runtime import hardware_benchmark


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware_benchmark, "ELEMENTS", 1_000_000)


def test_memory_and_adam_have_a_rate() -> None:
    assert hardware_benchmark.bench_host_memory() > 1e8
    assert hardware_benchmark.bench_cpu_adam() > 1e6


def test_what_fails_is_told_and_the_rest_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(folder: Path) -> tuple[float, float]:
        raise OSError(f"{folder.name} is full")

    monkeypatch.setattr(hardware_benchmark, "bench_disk", broken)
    monkeypatch.setattr(sys, "argv", ["measure", str(tmp_path)])
    hardware_benchmark.main()
    body = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert body["host_memory"] > 0
    assert "is full" in body["failed"]["disk"]
