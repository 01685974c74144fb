"""The measuring program on small arrays. Needs torch and deepspeed (its CPU Adam is compiled once); seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

from harness.runtime import measure


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ELEMENTS", 1_000_000)


def test_memory_and_adam_have_a_rate() -> None:
    assert measure.host_memory() > 1e8
    assert measure.cpu_adam() > 1e6


def test_what_fails_is_told_and_the_rest_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(folder: Path) -> tuple[float, float]:
        raise OSError(f"{folder.name} is full")

    monkeypatch.setattr(measure, "disk", broken)
    monkeypatch.setattr(sys, "argv", ["measure", str(tmp_path)])
    measure.main()
    body = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert body["host_memory"] > 0
    assert "is full" in body["failed"]["disk"]
