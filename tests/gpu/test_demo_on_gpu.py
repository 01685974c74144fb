# SPDX-License-Identifier: Apache-2.0
"""The demo recipe, a few steps on one GPU: the losses of the CPU, on the device, with its memory reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STEPS = 3
CPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def train_demo(folder: Path, environment: dict[str, str]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl of a launch in this folder."""
    settings = {
        "train.max_steps": STEPS,
        "train.gradient_accumulation_steps": 2,
        "launch.num_gpus": 1,
        "precision.bf16": "false",
        "eval.eval_steps": STEPS,
        "eval.max_batches": 1,
        "checkpoint.save_at_end": "false",
        "export.at_end": "false",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "harness", "launch", str(ROOT / "ds_configs" / "demo.yaml"), *options]
    folder.mkdir()
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    metrics = (folder / "runs" / "latest" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in metrics.splitlines()]


def test_losses_are_those_of_the_cpu(tmp_path: Path) -> None:
    on_gpu, on_cpu = train_demo(tmp_path / "gpu", {}), train_demo(tmp_path / "cpu", CPU)
    assert [line["device"] for line in on_gpu if line["type"] == "run"] != ["cpu"]
    assert any(line.get("memory_gpu_peak_bytes", 0) > 0 for line in on_gpu)
    losses = [[line["loss"] for line in lines if line["type"] in ("step", "eval")] for lines in (on_gpu, on_cpu)]
    assert len(losses[0]) > STEPS
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
