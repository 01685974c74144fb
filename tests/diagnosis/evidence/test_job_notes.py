# SPDX-License-Identifier: Apache-2.0
"""Notes by the kind of job, and what they decide. Needs nothing; a second."""

from __future__ import annotations

import pytest

from harness.diagnosis import Diagnosis
from harness.diagnosis.decision import decide_action
from harness.diagnosis.diagnosis_types import FailurePhase
from tests.support.tracebacks import diagnose_text, traceback_text

WAIT = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:5] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, NumelIn=16, NumelOut=64, Timeout(ms)=6000) ran for 6001 milliseconds.\n"
)
WAITS = "".join(WAIT.format(rank=rank) for rank in (1, 2))
STEPS = "".join(f"{{'loss': 2.0}}\n  {n}%|# | {n}/100 [00:10<01:00, 1.0s/it]\n" for n in (40, 41, 42))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cmd = run --model odd-moe-8x1b --deepspeed z_zero3_offload.json", "set_z3_leaf_modules"),
        ("cmd = run --num_experts 8 --zero_stage 3", "set_z3_leaf_modules"),
        ("cmd = run --predict_with_generate --deepspeed ds_z3.json", "synced_gpus"),
        ("GRPO of a model at ZeRO-3", "synced_gpus"),
    ],
)
def test_ranks_of_such_a_job_wait_in_every_attempt(line, words):
    diagnosis = diagnose_text(f"{line}\n{STEPS}{WAITS}")
    assert diagnosis.cause == "LG070"
    assert any(words in note for note in diagnosis.notes)
    assert decide_action(diagnosis).action == "stop"
    plain = diagnose_text(f"{line.replace('3', '2')}\n{STEPS}{WAITS}")
    assert not any(words in note for note in plain.notes)
    assert decide_action(plain).action == "retry"


@pytest.mark.parametrize(
    ("cause", "phase", "step", "message", "action"),
    [
        ("LG070", "evaluation", 90, "", "stop"),
        ("LG070", "generation", None, "", "stop"),
        ("LG070", "saving", 200, "", "stop"),
        ("LG070", "training", 3, "", "stop"),
        ("LG070", "training", 300, "", "retry"),
        ("LG070", "weights", None, "", "change and retry"),
        ("LG070", "data", None, "", "change and retry"),
        ("LG073", "engine", None, "ncclSystemError: a call failed", "change and retry"),
        ("LG073", "training", 9, "ncclSystemError: a call failed", "retry"),
        ("LG073", "engine", None, "Connection closed by peer", "retry"),
        ("LG003", "training", 90, "", "retry"),
        ("LG003", "first step", None, "", "change and retry"),
        ("LG003", "weights", None, "", "change and retry"),
    ],
)
def test_what_another_attempt_meets_again_is_not_retried(cause, phase, step, message, action):
    failed = Diagnosis("failed", "likely", cause, message=message, phase=FailurePhase(phase, "then", step))
    assert decide_action(failed).action == action


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: Expected input batch_size (8) to match target batch_size (4).",
        "RuntimeError: The size of tensor a (8) must match the size of tensor b (4) at non-singleton dimension 0",
    ],
)
def test_a_shape_that_fails_after_many_steps_is_of_one_batch(error):
    text = traceback_text([("/job/fit.py", "<module>", "fit()"), ("/job/fit.py", "step", "loss = f(x)")], error)
    late = diagnose_text(STEPS + text)
    assert any("42 steps had passed" in note and "drop_last" in note for note in late.notes)
    assert not any("steps had passed" in note for note in diagnose_text(text).notes)


def test_conversations_that_are_masked_whole_are_an_observation():
    diagnosis = diagnose_text("WARNING: tokenization mismatch: 47 vs. 48. (ignored)\n{'loss': 0.0, 'epoch': 0.1}\n")
    assert diagnosis.state == "no failure seen"
    assert any("masked whole" in note for note in diagnosis.notes)
