# SPDX-License-Identifier: Apache-2.0
"""Kinds at which an answer was too sure, or silent, each with siblings that no row names. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

SITE = "/opt/py/lib/python3.11/site-packages"
MAIN = ("/job/fit.py", "<module>", "main()")


@pytest.mark.parametrize(
    ("lines", "frame", "words"),
    [
        ("Sanity Checking DataLoader 0:   0%|   | 0/2 [00:00<?, ?it/s]", "val_loop", "during an evaluation"),
        ("Validation sanity check: 0it [00:00, ?it/s]", "forward", "during an evaluation"),
        ("***** Running Evaluation *****", "forward", "during an evaluation"),
        ("***** Running training *****", "run_eval_epoch", "during an evaluation"),
        ("***** Running training *****", "evaluate_once", "during an evaluation"),
        ("***** Running training *****", "forward", "in the first step"),
    ],
)
def test_an_evaluation_before_the_first_step_is_not_that_step(lines, frame, words):
    frames = [MAIN, (f"{SITE}/odd/loop.py", frame, "x()"), (f"{SITE}/torch/nn/modules/module.py", "_call_impl", "f()")]
    diagnosis = diagnose_text(f"{lines}\n{traceback_text(frames, 'RuntimeError: odd shape', 0)}")
    assert diagnosis.phase.text.startswith(words)


@pytest.mark.parametrize(
    ("inner", "cause", "words"),
    [
        ("Failed to import odd.tools because of the following error (look up to see its traceback):\n\n        "
         "CUDA Setup failed despite GPU being available.", "LG224", "bitsandbytes"),
        ("No module named 'torch._six'", "LG089", "torch._six"),
        ("cannot import name 'BUFSIZE' from 'numpy'", "LG221", "numpy 2"),
    ],
)  # fmt: skip
def test_an_import_that_says_why_it_failed_is_named_by_that(inner, cause, words):
    error = f"RuntimeError: Failed to import odd.trainer because of the following error (look up to see its traceback):\n{inner}"
    diagnosis = diagnose_text(traceback_text([MAIN, (f"{SITE}/odd/lazy.py", "load", "raise")], error, None))
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), diagnosis.title


def test_an_exception_within_a_group_is_the_cause():
    text = (
        '  + Exception Group Traceback (most recent call last):\n  |   File "/job/fit.py", line 2, in <module>\n'
        "  |     asyncio.run(main())\n  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        '  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n    |   File "/job/fit.py", '
        "line 8, in rollout\n    |     out = model(ids)\n    | RuntimeError: 'weight' must be 2-D\n    +-------------\n"
    )
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.message) == ("LG083", "RuntimeError: 'weight' must be 2-D")
    assert diagnosis.where == "/job/fit.py:8 in rollout"
    odd = diagnose_text(text.replace("'weight' must be 2-D", "odd"))
    assert (odd.cause, odd.message) == ("", "RuntimeError: odd")


def test_a_later_failure_of_the_same_writer_makes_the_first_unsure():
    first = traceback_text(
        [MAIN, ("/job/a.py", "f", "x()")],
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        None,
    )
    second = traceback_text([MAIN, ("/job/b.py", "g", "y()")], "OSError: [Errno 28] No space left on device", None)
    assert diagnose_text(first).confidence == "certain"
    both = diagnose_text(first + second)
    assert (both.cause, both.confidence) == ("LG001", "likely")


def test_an_unsure_answer_quotes_the_last_error():
    first = traceback_text([MAIN, ("/job/a.py", "f", "it()")], "StopIteration", None)
    second = traceback_text([MAIN, ("/job/b.py", "g", "y()")], "OSError: [Errno 28] No space left on device", None)
    diagnosis = diagnose_text(first + second)
    assert diagnosis.confidence == "likely"
    assert any("No space left" in note for note in diagnosis.notes)


def test_an_answer_by_the_place_alone_says_the_message():
    frames = [MAIN, ("/job/pip-build-env-x/setup.py", "run", "go()")]
    assert "`OddError: 7 is even`" in diagnose_text(traceback_text(frames, "OddError: 7 is even", None)).title


@pytest.mark.parametrize(
    ("error", "frames", "cause", "words"),
    [
        ("ImportError: cannot import name 'odd' from partially initialized module 'deepspeed' (most likely due to a "
         "circular import) (/job/deepspeed/__init__.py)", (), "LG089", "a file or folder of the same name"),
        ("ImportError: cannot import name 'odd' from 'trl' (unknown location)", (), "LG089", "the same name"),
        ("AttributeError: partially initialized module 'torch' has no attribute 'odd'", (), "LG089", "the same name"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", (), "LG042", "git-lfs"),
        ("_pickle.UnpicklingError: invalid load key, '<'.", (), "LG042", "git-lfs"),
        ("TypeError: Params4bit.__new__() got an unexpected keyword argument '_odd'",
         ((f"{SITE}/bitsandbytes/nn/modules.py", "to", "super().to()"),), "LG223", "`bitsandbytes` failed in its own"),
        ("RuntimeError: odd kernel", ((f"{SITE}/xformers/ops.py", "run", "k()"),), "LG223", "`xformers` failed"),
        ("AttributeError: 'Odd' object has no attribute 'absmax'", ((f"{SITE}/hqq/core.py", "q", "w.absmax"),), "LG223", "`hqq`"),
    ],
)  # fmt: skip
def test_a_package_that_is_not_what_it_seems(error, frames, cause, words):
    diagnosis = diagnose_text(traceback_text([MAIN, *frames], error, None))
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely"), diagnosis.title
    assert words in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


LOST = (
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: x.cpp:13, remote process exited or there was a network "
    "error, NCCL version 2.20.5\n[rank1]: Last error:\n[rank1]: socketProgress: Connection closed by remote peer b<4>\n"
)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("b:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>", "by `docker0`"),
        ("b:1:2 [0] NCCL INFO NET/Socket : Using [0]virbr0:192.168.122.1<0>", "by `virbr0`"),
        ("b:1:2 [0] NCCL INFO Bootstrap : Using eth1:10.1.0.4<0>\nc:1:2 [0] NCCL INFO Bootstrap : Using ib0:10.9.0.5<0>",
         "`eth1` (10.1...) on one host and `ib0` (10.9...)"),
        ("b:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to bond7", "by `bond7`"),
    ],
)  # fmt: skip
def test_an_interface_that_the_log_names_comes_before_another_rank(lines, words):
    diagnosis = diagnose_text(f"{lines}\n{LOST}")
    assert (diagnosis.cause, words in diagnosis.title) == ("LG073", True), diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"
    trained = diagnose_text(f"{lines}\n{{'loss': 2.0}}\n{LOST}")
    assert words not in trained.title


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Setting ds_accelerator to npu (auto detect)", "on an NPU"),
        ("[INFO] DeepSpeed info: version=0.13.5, git-hash=x", "DeepSpeed 0.13.5"),
        ("[INFO] DeepSpeed info: version=0.14.3, git-hash=x", "the loss became NaN"),
        ('"overlap_comm": false,\nSetting ds_accelerator to npu (auto detect)', "the loss became NaN"),
    ],
)
def test_nan_where_reductions_overlap(line, words):
    diagnosis = diagnose_text(f"{line}\n" + "{'loss': nan, 'lr': 1e-5}\n" * 3)
    assert (diagnosis.cause, words in diagnosis.title) == ("LG229", True), diagnosis.title
    if not words.endswith("became NaN"):
        assert decide_action(diagnosis).changes == {"overlap_comm": False}


@pytest.mark.parametrize(
    ("text", "cause", "words", "action"),
    [
        ("job.sh: line 4: $'\\r': command not found", "LG095", "line ends of Windows", "change and retry"),
        ("job.sh: 9: Syntax error: \"fi\" unexpected", "LG095", "refuses a line", "change and retry"),
        ("go.slurm: line 7: ODD_HOME: unbound variable", "LG095", "`ODD_HOME`, which is not set", "change and retry"),
        ("-bash: ./go.sh: Permission denied", "LG051", "may not run `./go.sh`", "change and retry"),
        ("./go.sh: line 2: /new/bin/torchrun: /old/bin/python3: bad interpreter: No such file", "LG064",
         "/old/bin/python3", "change and retry"),
        ("ERROR: No matching distribution found for oddlib==9.1", "LG302", "`oddlib==9.1`", "change and retry"),
        ("ERROR: Cannot install a==1 and b==2 because these package versions have conflicting dependencies.", "LG302",
         "fit together: a==1 and b==2", "change and retry"),
    ],
)  # fmt: skip
def test_failures_that_no_python_reports(text, cause, words, action):
    diagnosis = diagnose_text(f"{text}\n")
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), diagnosis.title
    assert decide_action(diagnosis).action == action


def test_an_outer_exception_without_words_says_the_inner_one():
    inner = traceback_text([(f"{SITE}/odd/read.py", "rows", "x()")], "OddError: row 7 has no end", None)
    outer = traceback_text(
        [MAIN], "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset", None
    )
    text = f"{inner}\nThe above exception was the direct cause of the following exception:\n\n{outer}"
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG044", "likely")
    assert "`OddError: row 7 has no end`" in diagnosis.title
