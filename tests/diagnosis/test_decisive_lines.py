# SPDX-License-Identifier: Apache-2.0
"""Messages that alone say too little: the asserted expression, the numbers, the line above. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.evidence.log_end import describe_open_end
from tests.support.tracebacks import diagnose_text

BAR = " 12%|###       | 36/300 [1:02:03<7:10:00, 97.2s/it]"


def traceback(message: str, *frames: tuple[str, str, str]) -> str:
    rows = [f'  File "/x/site-packages/{file}", line 7, in {function}\n    {code}\n' for file, function, code in frames]
    return f"Traceback (most recent call last):\n{''.join(rows)}{message}\n"


@pytest.mark.parametrize(
    ("file", "function", "code", "cause", "word"),
    [
        ("zero/stage3.py", "defragment", "assert len({t.dtype for t in tensors}) == 1", "LG301", "t.dtype"),
        ("zero/stage_1_and_2.py", "flatten", "assert all(p.dtype == kind for p in group)", "LG301", "p.dtype"),
        ("bf16_optimizer.py", "_flatten", "assert tensor.dtype == self.dtype, 'no'", "LG301", "tensor.dtype"),
        ("zero/stage3.py", "reduce", "assert self.ipg_numel > 0", "LG109", "self.ipg_numel > 0"),
    ],
)
def test_an_assert_without_a_message_is_told_by_its_expression(file, function, code, cause, word):
    diagnosis = diagnose_text(traceback("AssertionError", (f"deepspeed/runtime/{file}", function, code)))
    assert diagnosis.cause == cause
    assert word in diagnosis.title


def test_without_its_source_the_assert_is_an_internal_check():
    diagnosis = diagnose_text(traceback("AssertionError", ("deepspeed/runtime/zero/stage3.py", "reduce", "")))
    assert diagnosis.title == "an internal check of ZeRO failed"


@pytest.mark.parametrize(
    ("function", "cause"), [("_create_zero_param_parallel_group", "ZR016"), ("_create_expert_data", "LG290")]
)
def test_groups_that_do_not_divide_are_told_by_the_function_that_made_them(function, cause):
    frames = (("deepspeed/utils/groups.py", function, "x"), ("deepspeed/utils/groups.py", "_ensure_divisibility", "x"))
    diagnosis = diagnose_text(traceback("AssertionError: 12 is not divisible by 5", *frames))
    assert diagnosis.cause == cause
    assert "5 ranks do not divide 12 ranks" in diagnosis.title


def test_a_change_has_the_value_of_the_message_and_no_number_of_an_example():
    diagnosis = diagnose_text("[rank0]: AssertionError: More elements 777216 than buffer size 600,000\n")
    assert "777216" in diagnosis.change
    frames = (("deepspeed/utils/groups.py", "_create_zero_param_parallel_group", "x"),)
    diagnosis = diagnose_text(traceback("AssertionError: 12 is not divisible by 5", *frames))
    assert '"zero_hpz_partition_size": ...' in diagnosis.change


@pytest.mark.parametrize("ending", ["Traceback", "RuntimeError"])
def test_a_bar_that_an_error_continues_tells_the_step(ending):
    frame = ("deepspeed/runtime/engine.py", "backward", "x")
    text = traceback("RuntimeError: CUDA error: an illegal memory access was encountered", frame)
    text = text if ending == "Traceback" else f"{text.splitlines()[-1]}\n"
    diagnosis = diagnose_text(f"{BAR}{text}")
    assert diagnosis.cause == "LG017"
    if ending == "Traceback":
        assert diagnosis.phase.step == 36
        assert "after step 36" in diagnosis.phase.text


def test_bars_of_downloads_have_no_step():
    frame = ("deepspeed/runtime/engine.py", "backward", "x")
    text = traceback("RuntimeError: CUDA error: an illegal memory access was encountered", frame)
    assert diagnose_text(f"Fetching 9 files:  44%|####  | 4/9 [00:01<00:02, 3.1it/s]{text}").phase.step is None


@pytest.mark.parametrize(
    ("lines", "cause", "words"),
    [
        ("[INFO] - Updating DeepSpeed's gradient accumulation steps to 2 from 8.", "LG300", "of 2, not with the 8"),
        (
            "[ERROR] EI0006: Getting socket times out. Reason: Remote Rank did not send the data in time.",
            "LG070",
            "another rank",
        ),
        ("ssh: Could not resolve hostname job-launcher.ns.svc: Name or service not known", "LG060", "launcher's own"),
        ("ssh: Could not resolve hostname gpu-17: Name or service not known", "LG060", "a host of the hostfile"),
        (
            "FileNotFoundError: can't find *_optim_states.pt files in directory 'out/checkpoint-10'",
            "LG034",
            "saved at stage 0",
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=9, OpType=_ALLGATHER_BASE, TensorShape=[64]), but Rank 2 is running",
            "LG071",
            "different modules",
        ),
    ],
)
def test_what_public_logs_asked(lines, cause, words):
    diagnosis = diagnose_text(f"{lines}\n")
    assert diagnosis.cause == cause
    assert words in diagnosis.title
    assert diagnosis.change


def test_advice_on_nan_does_not_name_one_attention_as_the_cure():
    diagnosis = diagnose_text("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-07, 'epoch': 0.1}\n" * 3)
    assert diagnosis.cause == "LG229"
    assert "another attention implementation than the one in use" in diagnosis.change


def test_a_dataloader_for_evaluation_is_no_evaluation():
    assert "evaluation" not in describe_open_end(b"preparing the evaluation dataloader\nDeepSpeed info: version=1\n")
    assert "an evaluation" in describe_open_end(b"Evaluating: 3%|# | 3/99\n")
