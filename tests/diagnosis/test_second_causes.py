# SPDX-License-Identifier: Apache-2.0
"""Causes that a log does not prove, and what they leave open; numbers of Megatron's lines. Needs nothing; a second."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SOCKET = (
    "[E socket.cpp:8] [c10d] The client socket has timed out after {0}s while trying to connect to (10.3.0.1, 5000).\n"
)
INITIALIZE = [("/job/fit.py", "<module>", "fit()"), ("/x/deepspeed/__init__.py", "initialize", "init_distributed()")]
WATCHDOG = (
    "[rank4]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum={0}, OpType=ALLREDUCE, NumelIn={1}, "
    "NumelOut=1, Timeout(ms)=1800000) ran for 1800041 milliseconds before timing out.\n"
)
BARRIER = [
    ("/job/fit.py", "<module>", "start()"),
    ("/x/torch/distributed/distributed_c10d.py", "barrier", "work = go()"),
]
NO_MEMORY = "RuntimeError: CUDA error: out of memory"


def answer(text):
    diagnosis = diagnose_text(text)
    decision = decide_action(diagnosis)
    return diagnosis, decision.action if decision else None


@pytest.mark.parametrize(
    ("text", "cause", "action", "words"),
    [
        (SOCKET.format(1800) + traceback_text(INITIALIZE, ""), "LG067", "change and retry", "prepare the data"),
        (SOCKET.format(1800), "LG067", "retry", "py-spy dump"),
        (f"Running tokenizer on dataset: 9%\n{SOCKET.format(1800)}", "LG067", "change and retry", "still read or tokenized"),
        (f"Map: 40%|#  | 4/9 [00:10<00:10]\n{WATCHDOG.format(7, 64)}", "LG070", "change and retry", "prepare the data"),
        (WATCHDOG.format(2, 1), "LG070", "change and retry", "ddp_timeout"),
        ("Timed out initializing process group in store based barrier\n", "LG192", "change and retry", "prepare the data"),
        (traceback_text(BARRIER, NO_MEMORY), "LG016", "retry elsewhere", "nvidia-smi"),
        ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n", "LG005", "change and retry", "df /dev/shm"),
        ("RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n", "LG012", "change and retry",
         "LD_LIBRARY_PATH"),
        ("RuntimeError: The server socket has failed to bind to [::]:29507 (errno: 98 - Address already in use).\n", "LG066",
         "change and retry", "master_port"),
        ("  what():  CUDA error: unknown error\nframe #1: c10d::ProcessGroupNCCL::WorkNCCL::finishedGPUExecutionInternal() "
         "const + 0x1 (0x2 in libtorch_cuda.so)\n", "LG016", "retry elsewhere", "have its GPU checked"),
    ],
)  # fmt: skip
def test_a_second_cause_is_named_with_the_check_that_tells(text, cause, action, words):
    diagnosis, found = answer(text)
    assert (diagnosis.cause, found) == (cause, action)
    assert words in f"{diagnosis.title} {diagnosis.change}"
    assert cause in ("LG012", "LG066") or diagnosis.confidence == "likely"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"iteration 7: loss 2.1\n{traceback_text(BARRIER, NO_MEMORY)}", "LG001"),
        ("RuntimeError: CUDA error: unknown error\n", "LG218"),
    ],
)
def test_what_the_log_shows_besides_keeps_the_first_cause(text, cause):
    assert answer(text)[0].cause == cause


def megatron(losses, norms=lambda _: 0.2, times=lambda _: 100.0):
    return "".join(
        f" iteration {90 + i}/ 999 | consumed samples: 1 | elapsed time per iteration (ms): {times(i)} | "
        f"global batch size: 16 | {f'lm loss: {loss} | ' if loss else ''}grad norm: {norms(i)} |\n"
        for i, loss in enumerate(losses)
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (megatron([3.3, 3.4, 3.6, 7.2, 4.1, 7.5, 7.0, None]), "line 8 has no loss any more"),
        (megatron([3.3, 3.4, 3.6], norms=lambda i: 2e5 + i), "the gradient norm is 2e+05 or more in all 3 lines"),
        (megatron([10649.9, 10649.9], norms=lambda i: 4.8e6 + i), "broken from the first step on"),
        (megatron([2.1] * 5, times=[105.1, 105.2, 106.2, 110.2, 111.1].__getitem__), "an iteration takes 5% longer"),
    ],
)
def test_numbers_of_megatron_are_observed(text, words):
    assert any(words in note for note in diagnose_text(text).notes), diagnose_text(text).notes


def test_sound_numbers_of_megatron_are_not():
    text = megatron([3.3, 3.9, 2.8, 3.6, 3.1, 3.4, 2.9], times=[99, 103, 101, 104, 100, 102, 99].__getitem__)
    assert not any(note.startswith("observation") for note in diagnose_text(text).notes)
