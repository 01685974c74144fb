"""AT007: micro-batch, accumulation and global batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.engine_checks.engine_check import CheckResult, EngineCheck, check_equal, check_passed
from harness.runtime.engine_checks.expected_settings import ExpectedSettings
from harness.runtime.engine_checks.observations import Observations


def _observe(seen: Observations) -> Any:
    engine = seen.engine
    return [engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps(), engine.train_batch_size()]


def _evaluate(asked: ExpectedSettings, found: Sequence[Any]) -> CheckResult:
    # DeepSpeed's own product counts every tensor rank (gate BT005); the loop draws the true batch.
    total = None if asked.global_batch_size is None else asked.global_batch_size * asked.parallel_dims.tensor
    wanted = (asked.micro_batch_size, asked.gradient_accumulation_steps, total)
    names = ("the micro-batch", "accumulation", "DeepSpeed's global batch")
    for i, (value, name) in enumerate(zip(wanted, names, strict=True)):
        if value is not None:
            answer = check_equal(value, [has[i] for has in found], name)
            if answer.state != "holds":
                return answer
    return check_passed(dict(zip(("micro", "accumulation", "global"), found[0], strict=True)))


CHECK = EngineCheck(
    id="AT007",
    name="another-batch",
    question="are micro-batch, accumulation and global batch as asked for?",
    moment="built",
    observe=_observe,
    evaluate=_evaluate,
    key="train.global_batch_size",
    gates=("BT001", "BT005", "ZR033"),
    fix="start the run on as many ranks as it was rendered for, with whole numbers for the batch",
)
