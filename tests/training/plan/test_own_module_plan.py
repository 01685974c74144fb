# SPDX-License-Identifier: Apache-2.0
"""`harness plan --allow-local-code`: the states of a module of the user's own. Seconds, in child processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli.app import main

SPEC = """objective: custom
plugins: {file: own.py}
train: {max_steps: 4, per_device_train_batch_size: 2}
precision: {bf16: true}
zero: {stage: %d, %s}
launch: {num_gpus: 4}
cluster: {gpu: H100-80GB}
"""
MODULE = "import torch\nfrom torch import nn\n\n\ndef build_model(spec):\n    %s\n"
SIZED = "print('hello')\n    return nn.Sequential(nn.Linear(1000, 4000), nn.Linear(4000, 1000))"
NUMEL = 1000 * 4000 * 2 + 4000 + 1000


def plan(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *more: str) -> Any:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["harness", "plan", "own.yaml", "--format", "json", *more])
    with pytest.raises(SystemExit):
        main()
    return json.loads(capsys.readouterr().out)


def write(folder: Path, body: str, stage: int = 0, zero: str = "") -> None:
    (folder / "own.yaml").write_text(SPEC % (stage, zero))
    (folder / "own.py").write_text(MODULE % body)


def test_a_frozen_half_has_no_states(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    frozen = SIZED.replace("return ", "m = ") + "\n    m[0].requires_grad_(False)\n    return m"
    write(tmp_path, frozen)
    own = plan(tmp_path, capsys, monkeypatch, "--allow-local-code")["own_module"]
    assert (own["parameters"], own["trainable_parameters"]) == (NUMEL, 4_001_000)
    assert own["state_bytes_per_rank"]["gpu"] == pytest.approx(16 * 4_001_000 + 2 * 4_004_000, rel=0.01)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return 1 / 0", "`build_model` fails: ZeroDivisionError"),
        ("import os; os._exit(3)", "`build_model` could not be called: it ended with code 3"),
    ],
)
def test_what_cannot_be_counted_is_not_known(
    body: str, reason: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    write(tmp_path, body)
    found = plan(tmp_path, capsys, monkeypatch, "--allow-local-code")
    assert found["own_module"] is None
    assert any(reason in finding["message"] for finding in found["findings"])


def test_a_module_that_needs_values_is_built_on_the_cpu(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    write(tmp_path, "return nn.Linear(int(torch.ones(4).sum()), 2)")
    assert plan(tmp_path, capsys, monkeypatch, "--allow-local-code")["own_module"]["parameters"] == 10


@pytest.mark.parametrize(
    ("dataset", "rows", "code"),
    [
        ("return list(range(7))", 7, 1),
        ("return list(range(8))", 8, 0),
        ("return iter(range(7))", None, 0),
        ("return 1 / 0", None, 0),
    ],
)
def test_rows_are_counted_and_too_few_are_an_error(
    dataset: str, rows: int | None, code: int, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """A step of 4 ranks takes 8."""
    write(tmp_path, SIZED + f"\n\n\ndef build_dataset(spec, split):\n    {dataset}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["harness", "plan", "own.yaml", "--format", "json", "--allow-local-code"])
    with pytest.raises(SystemExit) as ended:
        main()
    found = json.loads(capsys.readouterr().out)
    assert (found["own_module"]["training_rows"], ended.value.code) == (rows, code)
    messages = [each["message"] for each in found["findings"] if each["gate"] == "MD115"]
    assert messages == ["a step needs 8 rows, and the training data has 7 of them"] * code
