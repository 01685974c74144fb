"""AT007: micro-batch, accumulation and global batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, equal, holds
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    engine = seen.engine
    return [engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps(), engine.train_batch_size()]


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    # DeepSpeed's own product counts every tensor rank (gate BT005); the loop draws the true batch.
    total = None if asked.total is None else asked.total * asked.degrees.tensor
    wanted = (asked.micro, asked.accumulation, total)
    names = ("the micro-batch", "accumulation", "DeepSpeed's global batch")
    for i, (value, name) in enumerate(zip(wanted, names, strict=True)):
        if value is not None:
            answer = equal(value, [has[i] for has in found], name)
            if answer.state != "holds":
                return answer
    return holds(dict(zip(("micro", "accumulation", "global"), found[0], strict=True)))


CLAIM = Claim(
    id="AT007",
    name="another-batch",
    question="are micro-batch, accumulation and global batch as asked for?",
    moment="built",
    look=_look,
    judge=_judge,
    key="train.global_batch_size",
    gates=("BT001", "BT005", "ZR033"),
    fix="start the run on as many ranks as it was rendered for, with whole numbers for the batch",
)
