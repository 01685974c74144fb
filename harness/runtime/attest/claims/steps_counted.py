"""AT027: the engine counts one step for one of the loop's, and as many micro-batches as are accumulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepspeed.runtime.pipe.engine import PipelineEngine

from harness.runtime.attest.asked import Asked
from harness.runtime.attest.claim import Answer, Claim, differs, holds
from harness.runtime.attest.seen import Seen


def _look(seen: Seen) -> Any:
    engine, count = seen.engine, len(seen.steps)
    piped = isinstance(engine, PipelineEngine)
    return {
        "loop": count,
        "engine": int(engine.global_steps) - seen.global_before,
        "micro": None if piped else (int(engine.micro_steps) - seen.micro_before) / count,
    }


def _judge(asked: Asked, found: Sequence[Any]) -> Answer:
    for has in found:
        if has["engine"] != has["loop"]:
            return differs(f"the engine has taken {has['engine']} steps, should have taken {has['loop']}", has)
        if has["micro"] is not None and asked.accumulation is not None and has["micro"] != asked.accumulation:
            return differs(f"a step has {has['micro']:g} micro-batches, should have {asked.accumulation}", has)
    return holds(found[0])


CLAIM = Claim(
    id="AT027",
    name="steps-miscounted",
    question="does the engine step once for each step of the loop?",
    moment="steps",
    look=_look,
    judge=_judge,
    key="train.gradient_accumulation_steps",
    gates=("ZR032",),
    fix="write `train.gradient_accumulation_steps` as a whole number, and render the JSON anew",
)
