# SPDX-License-Identifier: Apache-2.0
"""AT007: micro-batch, accumulation and global batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(observations: Observations) -> Any:
    engine = observations.engine
    return [engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps(), engine.train_batch_size()]


def _evaluate(expected: ExpectedSettings, rank_values: Sequence[Any]) -> CheckResult:
    # With AutoTP, DeepSpeed's own product counts every rank (gate BT005); the loop draws the true batch.
    dims = expected.parallel_dims
    ranks_per_data_rank = dims.autotp * dims.sequence if dims.autotp > 1 else 1
    total = None if expected.global_batch_size is None else expected.global_batch_size * ranks_per_data_rank
    batch_sizes = (expected.micro_batch_size, expected.gradient_accumulation_steps, total)
    names = ("the micro-batch", "accumulation", "DeepSpeed's global batch")
    for i, (value, name) in enumerate(zip(batch_sizes, names, strict=True)):
        if value is not None:
            result = check_equal(value, [values[i] for values in rank_values], name)
            if result.state != "holds":
                return result
    return check_passed(dict(zip(("micro", "accumulation", "global"), rank_values[0], strict=True)))


CHECK = EngineCheck(
    id="AT007",
    name="another-batch",
    question="are micro-batch, accumulation and global batch as in the spec?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="train.global_batch_size",
    gates=("BT001", "BT005", "ZR033"),
    fix="start the run on as many ranks as it was rendered for, with whole numbers for the batch",
)
