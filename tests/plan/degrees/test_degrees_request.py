# SPDX-License-Identifier: Apache-2.0
"""Degrees that do not go together: one sentence each, with degrees that do. Needs nothing; milliseconds."""

from __future__ import annotations

from typing import Any

import pytest

from harness.errors import UserError
from harness.plan.degrees.degrees_plan import plan_degrees
from harness.plan.degrees.degrees_request import DegreesRequest
from harness.plan.degrees.rank_groups import ParallelDegrees

LLAMA = {"model": "llama-3.1-405b", "gpus": 16384, "tensor": 8, "pipeline": 16}
SMALL = {"model": "llama-3.1-8b", "gpus": 64}
QWEN = {"model": "qwen3-235b-a22b", "gpus": 256, "pipeline": 8}


def make_request(**values: Any) -> DegreesRequest:
    """A request of plain values; what is no degree goes to the request itself."""
    own = ("model", "micro_batch", "tokens_per_step", "seq_length", "precision", "checkpointing", "zero_stage", "gpu")
    rest = {"gpu": "H100-80GB", "seq_length": 8192, "tokens_per_step": 16_777_216}
    rest |= {name: values.pop(name) for name in own if name in values}
    return DegreesRequest(degrees=ParallelDegrees(values.pop("gpus"), **values), **rest)  # type: ignore[arg-type]


CASES = [
    (LLAMA | {"pipeline": 12}, "16,384 GPUs are not a multiple of tensor 8 x pipeline 12 x context 1 = 96", "`--pipeline 8` or `--pipeline 16`"),
    (LLAMA | {"gpus": 100}, "100 GPUs are not a multiple of tensor 8 x pipeline 16", "`--gpus 128`"),
    (LLAMA | {"tensor": 0}, "`--tensor 0` is not a number from 1 to", "give `--tensor`"),
    (LLAMA | {"gpus": 0}, "`--gpus 0` is not a number", "give `--gpus`"),
    (LLAMA | {"micro_batch": -1}, "`--micro-batch -1` is not a number", "give `--micro-batch`"),
    (LLAMA | {"gpu": "H100-79GB"}, "GPU kind `H100-79GB` is not known", "--gpu"),
    (LLAMA | {"model": "llama-9"}, "the model's size is not known", "a folder"),
    (SMALL | {"gpus": 48, "tensor": 12}, "32 query heads do not divide over `--tensor 12`", "8 or 16"),
    (SMALL | {"pipeline": 64}, "32 layers are too few for 64 stages", "`--pipeline 32`"),
    (SMALL | {"pipeline": 8, "virtual_stages": 8, "schedule": "interleaved", "tokens_per_step": 64 * 8192}, "32 layers are too few for 8 stages x 8 chunks", "`--pipeline 4`"),
    (SMALL | {"pipeline": 4, "schedule": "interleaved"}, "at least two chunks a stage", "`--virtual-stages 2`"),
    (SMALL | {"pipeline": 4, "virtual_stages": 2}, "goes with an interleaved schedule, not with 1f1b", "--schedule interleaved"),
    (SMALL | {"pipeline": 4, "virtual_stages": 2, "schedule": "interleaved", "tokens_per_step": 16 * 9 * 8192}, "9 micro-batches are no multiple of 4 stages", "`--batch-tokens 1048576`"),
    (SMALL | {"gpus": 60, "pipeline": 5, "schedule": "dualpipe"}, "stages in pairs, not 5", "`--pipeline 6`"),
    (SMALL | {"pipeline": 8, "schedule": "dualpipe", "tokens_per_step": 8 * 8 * 8192}, "8 micro-batches are odd, or fewer than DualPipe needs", "`--batch-tokens 1048576`"),
    (SMALL | {"expert": 8}, "`--expert 8`: llama-3.1-8b has no experts", "leave `--expert` out"),
    (QWEN | {"expert": 24}, "128 experts do not divide over `--expert 24`", "16 or 32"),
    (QWEN | {"expert": 64}, "does not divide the 32 GPUs of a pipeline stage", "32"),
    (SMALL | {"context": 4, "seq_length": 1004}, "1,004 tokens do not divide over 8 parts of a context ring", "`--max-length 1008`"),
    (SMALL | {"tensor": 8, "seq_length": 1001}, "1,001 tokens do not divide over", "`--max-length 1000`"),
    ({"model": "gpt2-xl", "gpus": 10, "tensor": 10}, "25 query heads do not divide over `--tensor 10`", "5 or 25"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message", "fix"), CASES, ids=[case[1] for case in CASES])
def test_one_sentence_and_a_fix(values: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        plan_degrees(make_request(**values))
    (finding,) = refused.value.findings
    assert message in finding.message
    assert finding.fix is not None
    assert fix in finding.fix.title


@pytest.mark.parametrize(("values", "message", "fix"), CASES[:1], ids=["world"])
def test_the_fix_is_a_plan(values: dict[str, Any], message: str, fix: str) -> None:
    assert plan_degrees(make_request(**(values | {"pipeline": 16}))).request.degrees.data == 128


def test_several_mistakes_are_told_at_once() -> None:
    with pytest.raises(UserError) as refused:
        plan_degrees(make_request(**(SMALL | {"gpus": 48, "tensor": 12, "expert": 2})))
    assert len(refused.value.findings) == 2
