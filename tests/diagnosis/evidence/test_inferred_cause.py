# SPDX-License-Identifier: Apache-2.0
"""Causes that follow from the place or the demand of an exception, not from its words. Needs nothing; a second."""

from __future__ import annotations

import io

import pytest

from harness.diagnosis import diagnose
from harness.diagnosis.decision import decide_action

SITE = "/opt/py/lib/python3.11/site-packages"


def raised(error, *frames):
    rows = "".join(f'  File "{file}", line 9, in {function}\n    {code}\n' for file, function, code in frames)
    return f"Traceback (most recent call last):\n{rows}{error}\n"


def read(text):
    diagnosis = diagnose([io.BytesIO(text.encode())])
    return diagnosis, decide_action(diagnosis)


ENGINE = (f"{SITE}/deepspeed/runtime/zero/stage_1_and_2.py", "_optimizer_step", "self.optimizer.step()")


@pytest.mark.parametrize(
    "text",
    [
        raised("AssertionError", ENGINE, ("/job/optim.py", "step", "whiten(g)"), ("/job/optim.py", "whiten", "assert g.ndim == 2")),
        raised("IndexError: tuple index out of range", ENGINE, ("/job/soapy.py", "step", "rows = g.shape[1]")),
        raised("AssertionError", ("/job/muon.py", "newton_schulz", "assert len(G.shape) == 2")),
        raised("RuntimeError: linalg.qr: The input tensor must have at least 2 dimensions.", ENGINE,
               (f"{SITE}/shampoo_x/core.py", "step", "torch.linalg.qr(g)")),
    ],
)  # fmt: skip
def test_an_optimizer_of_ones_own_gets_flat_partitions(text):
    diagnosis, decision = read(text)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG121", "likely")
    assert "flat pieces" in diagnosis.title
    assert decision.action == "change and retry"


def test_an_optimizer_of_deepspeed_or_torch_is_not_blamed():
    own = (f"{SITE}/deepspeed/ops/adam/fused_adam.py", "step", "raise RuntimeError('x')")
    assert read(raised("RuntimeError: no such thing", ENGINE, own))[0].cause != "LG121"
    loss = ("/job/train.py", "loss", "assert labels.ndim == 2")
    assert read(raised("AssertionError", loss))[0].cause == "LG082"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        ("ImportError: fastlib requires torch>=2.5, but torch 2.4.1 is installed", "torch>=2.5"),
        ("OSError: Context parallelism is only supported for `torch>=2.6`.", "torch>=2.6"),
        ("ImportError: deepspeed>=0.10.0,<=0.16.9 is required for a normal functioning of this module, but found "
         "deepspeed==0.17.2.", "deepspeed>=0.10.0,<=0.16.9"),
        ("RuntimeError: This feature needs PyTorch >= 2.7", "torch>=2.7"),
        ("ImportError: Using FlashThing requires flash-attn>=2.6.1: pip install flash-attn", "flash-attn>=2.6.1"),
    ],
)  # fmt: skip
def test_a_demanded_release_is_named(error, wanted):
    diagnosis, decision = read(raised(error, (f"{SITE}/somelib/__init__.py", "<module>", "raise ImportError(")))
    title, change = (text.lower().replace("= ", "=") for text in (diagnosis.title, diagnosis.change))
    assert (diagnosis.cause, wanted in title) == ("LG227", True), diagnosis.title
    assert f'pip install "{wanted}"' in change
    assert decision.action in ("stop", "change and retry")


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: rank needs loss > 0",
        "ValueError: expected batch_size >= 1",
        "AssertionError: at least 2 dimensions",
        "",
    ],
)
def test_a_number_of_a_job_is_no_release(text):
    assert read(f"{text}\n")[0].cause != "LG227"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "  Value error, sample_packing should be set within your data config file",
            "move `sample_packing` to the data",
        ),
        ("  Value error, the teacher has no port", "the program's own file"),
        ("rewards\n  Value error, please set `rewards` once for each function", "set `rewards` once for each function"),
    ],
)
def test_a_program_refuses_its_own_settings(text, words):
    detail = "[type=value_error, input_value={'a': 1}, input_type=dict]"
    diagnosis, decision = read(
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for TunerInput\n{text} {detail}\n\n"
    )
    assert diagnosis.cause == "LG291", diagnosis.title
    assert words in diagnosis.change
    assert decision.action in ("stop", "change and retry")


WAIT = "[rank{0}]:[E220 10:59:35.44 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective operation timeout: "
WORK = (
    "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=1800000) ran for 1800039 milliseconds.\n"
)


@pytest.mark.parametrize(
    ("rows", "is_mismatch"),
    [
        ([(0, 34, "_ALLGATHER_BASE", 1024), (1, 34, "_ALLGATHER_BASE", 512)], True),
        ([(0, 34, "ALLREDUCE", 64), (1, 34, "BROADCAST", 64), (2, 34, "ALLREDUCE", 64)], True),
        ([(0, 34, "ALLREDUCE", 64), (1, 34, "ALLREDUCE", 64)], False),
        ([(0, 34, "ALLREDUCE", 64), (1, 35, "ALLREDUCE", 8)], False),
        ([(0, 34, "SEND", 64), (1, 34, "RECV", 64)], False),
    ],
)
def test_collectives_that_differ_under_one_number(rows, is_mismatch):
    diagnosis, decision = read("".join((WAIT + WORK).format(*row) for row in rows))
    assert (diagnosis.cause == "LG071") is is_mismatch
    assert diagnosis.confidence == "likely"
    assert decision.action == ("stop" if is_mismatch else "retry")


def test_an_abort_is_explained_by_its_reason():
    text = (
        "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered\n"
    )
    assert read(text)[0].cause == "LG017"


KILLED = (
    "[2026-01-01 10:00:09] [ERROR] [launch.py:325:sigkill_handler] ['python', 'train.py'] exits with return code = -9\n"
)


@pytest.mark.parametrize(
    ("before", "action"),
    [
        ("{'loss': 2.0, 'epoch': 0.1}\nCPU Virtual Memory:  used = 478.2 GB, percent = 95.0%\n", "change and retry"),
        ("step 7: loss: 2.1\nhost memory in use: 97 %\n", "change and retry"),
        ("step 7: loss: 2.1\nRAM 91.5% GPU 40%\n", "change and retry"),
        ("Loading checkpoint shards:  40%|####      | 2/5 [00:01<00:02]\n", "change and retry"),
        ("{'loss': 2.0, 'epoch': 0.1}\nCPU Virtual Memory:  used = 78.2 GB, percent = 15.0%\n", "retry"),
        ("{'loss': 2.0, 'epoch': 0.1}\n", "retry"),
    ],
)
def test_a_killed_rank_is_retried_unless_memory_was_full(before, action):
    diagnosis, decision = read(before + KILLED)
    assert (diagnosis.cause, decision.action, decision.is_certain) == ("LG003", action, False)
