# SPDX-License-Identifier: Apache-2.0
"""Stacks of a job that hangs name the process outside of the collective. Needs nothing; milliseconds."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import diagnose_text

SITE = "/opt/lib/python3.11/site-packages"


def py_spy(pid: int, rank: int, frames: list[str]) -> str:
    """What `py-spy dump --pid PID` of 0.3 and 0.4 prints."""
    return (
        f"Process {pid}: /usr/bin/python3.11 -u train.py --local_rank={rank}\n"
        "Python v3.11.7 (/usr/bin/python3.11)\n\n"
        f'Thread {pid} (active): "MainThread"\n'
        + "".join(f"    {frame}\n" for frame in frames)
        + f'Thread {pid + 1} (idle): "Thread-1 (_pin_memory_loop)"\n'
        "    wait (threading.py:331)\n    get (queue.py:180)\n    run (threading.py:982)\n\n"
    )


IN_COLLECTIVE = [
    "wait (torch/distributed/distributed_c10d.py:2501)",
    "all_reduce (torch/distributed/distributed_c10d.py:2504)",
    "all_reduce (deepspeed/comm/torch.py:217)",
    "step (/job/train.py:88)",
    "<module> (/job/train.py:120)",
]
OUTSIDE = ["write (/job/storage.py:14)", "save (/job/train.py:66)", "<module> (/job/train.py:120)"]
ON_DEVICE = [
    f"synchronize ({SITE}/torch/cuda/__init__.py:985)",
    "step (/job/train.py:90)",
    "<module> (/job/train.py:120)",
]


def test_the_process_outside_of_the_collective():
    stacks = {0: IN_COLLECTIVE, 1: IN_COLLECTIVE, 2: OUTSIDE, 3: ON_DEVICE}
    diagnosis = diagnose_text("".join(py_spy(4300 + r, r, frames) for r, frames in stacks.items()))
    assert (diagnosis.state, diagnosis.cause, diagnosis.rank) == ("failed", "LG241", 2)
    assert diagnosis.confidence == "likely"
    assert "rank 2 (pid 4302) in write (storage.py:14)" in diagnosis.message
    assert (
        "2 other processes in wait (distributed_c10d.py:2501), called from step (/job/train.py:88)" in diagnosis.message
    )
    assert diagnosis.where == "/job/storage.py:14 in write"


@pytest.mark.parametrize("frames", [IN_COLLECTIVE, OUTSIDE, ON_DEVICE])
def test_nobody_is_named_where_all_do_the_same(frames):
    assert diagnose_text("".join(py_spy(4300 + r, r, frames) for r in range(4))).state == "no failure seen"


def test_one_stack_in_a_collective_waits_for_the_others():
    diagnosis = diagnose_text(py_spy(4300, 2, IN_COLLECTIVE))
    assert (diagnosis.cause, diagnosis.confidence, diagnosis.rank) == ("LG070", "likely", None)


@pytest.mark.parametrize("head", ["", "[1/2] c++ -c odd.cpp\n", "[rank0]: step 4\n"])
def test_a_stack_at_the_lock_of_a_compiled_op(head):
    at_lock = [f"wait ({SITE}/torch/utils/file_baton.py:43)", "load (torch/utils/cpp_extension.py:9)"]
    diagnosis = diagnose_text(head + py_spy(7, 1, [*at_lock, *OUTSIDE]) + py_spy(8, 0, IN_COLLECTIVE))
    assert (diagnosis.cause, diagnosis.confidence) == ("LG026", "likely")
    fault = "Thread 0x00007f3a12345700 (most recent call first):\n"
    fault += f'  File "{SITE}/torch/utils/file_baton.py", line 43 in wait\n  File "fit.py", line 3 in <module>\n'
    assert diagnose_text(f"{head}Timeout (0:00:20)!\n{fault}").cause == "LG026"


def test_a_known_failure_comes_before_stacks():
    text = (
        "[rank1]: OSError: [Errno 28] No space left on device\n" + py_spy(1, 0, IN_COLLECTIVE) + py_spy(2, 1, OUTSIDE)
    )
    assert diagnose_text(text).cause == "LG050"


def faulthandler(rank: int, frames: list[tuple[str, int, str]], head: str) -> str:
    """What `faulthandler.dump_traceback_later` of CPython 3.11 prints, with torchrun's prefix."""
    lines = [
        head,
        "Thread 0x00007f2a51fff640 (most recent call first):",
        '  File "/usr/lib/python3.11/threading.py", line 331 in wait',
        '  File "/usr/lib/python3.11/threading.py", line 982 in run',
        "",
        "Thread 0x00007f2b7d5a1740 (most recent call first):",
        *(f'  File "{file}", line {line} in {function}' for file, line, function in frames),
        "",
    ]
    return "".join(f"[rank{rank}]:{line}\n" for line in lines)


WAITING = [
    (f"{SITE}/torch/distributed/distributed_c10d.py", 4810, "barrier"),
    ("/job/train.py", 70, "save"),
    ("/job/train.py", 120, "<module>"),
]
READING = [("/job/data.py", 31, "read_shard"), ("/job/train.py", 60, "load"), ("/job/train.py", 120, "<module>")]


def test_stacks_of_faulthandler():
    text = "".join(faulthandler(r, READING if r == 3 else WAITING, "Timeout (0:10:00)!") for r in range(4))
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, diagnosis.rank) == ("LG241", 3)
    assert diagnosis.where == "/job/data.py:31 in read_shard"


def test_a_crash_in_native_code_is_no_hang():
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x00007f2b7d5a1740 (most recent call first):\n"
        '  File "/job/train.py", line 60 in load\n  File "/job/train.py", line 120 in <module>\n'
    )
    assert diagnose_text(text).cause == "LG018"
