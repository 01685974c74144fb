# SPDX-License-Identifier: Apache-2.0
"""Each named difference between plan and simulation is still there, at a small size. Needs deepspeed; half a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.plan.simulation.comparison import NAMED_DIFFERENCES
from tests.training.simulation.test_simulated_run import SPEC, run_plan

LENGTH = 16384
"""Of a row: a mask of 256 MiB."""


def test_ulysses_has_no_mask_where_positions_have_no_values(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        **SPEC,
        "data": {**SPEC["data"], "max_length": LENGTH},
        "train": {**SPEC["train"], "per_device_train_batch_size": 1, "gradient_checkpointing": True},
        "zero": {"stage": 3, "reduce_bucket_size": 1_000_000},
        "parallel": {"sequence_parallel_size": 2},
    }
    done = run_plan(tmp_path, "--format", "json", spec=spec)
    assert done.returncode == 0, done.stderr
    rows = {row["phase"]: row for row in json.loads(done.stdout)["phases"] if row["tier"] == "gpu"}
    step = rows["step"]  # the mask stays until the next forward pass
    assert step["planned"] - step["simulated"] > 0.9 * LENGTH**2
    assert step["reason"] == NAMED_DIFFERENCES[0].words


def test_there_are_five_at_most() -> None:
    assert len(NAMED_DIFFERENCES) <= 5
