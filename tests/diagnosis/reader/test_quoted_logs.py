# SPDX-License-Identifier: Apache-2.0
"""Logs as people post them, made up: lines left out of a traceback, messages that rich broke at its width."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import diagnose_text

_FRAMES = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    main()\n'
_WIDTH = 60
_BOX = f"│{' /job/train.py:9 in <module>':<{_WIDTH - 2}}│\n╰{'─' * (_WIDTH - 2)}╯\n"


@pytest.mark.parametrize("elision", ["[...]", "...", "…", "<snip>"])
@pytest.mark.parametrize("rank", ["", "[rank3]: "])
def test_lines_left_out_do_not_end_a_traceback(elision, rank):
    frames = "".join(f"{rank}{line}\n" for line in _FRAMES.splitlines())
    found = diagnose_text(f"{frames}{elision}\nOSError: [Errno 28] No space left on device\n")
    assert found.cause == "LG050", found
    assert found.rank == (3 if rank else None)


@pytest.mark.parametrize("last", ["the input is on the wrong device", "shards do not match", "apex wants halves"])
def test_a_message_whose_exception_was_left_out_is_a_failure(last):
    assert diagnose_text(f"{_FRAMES}[...]\n{last}\n").message == last


def test_an_ordinary_line_below_dots_is_no_failure():
    assert diagnose_text("loading\n...\nstep 1 of 9\n").state != "failed"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "AssertionError: Check batch related parameters. \ntrain_batch_size is not equal to micro_batch_per_gpu * \n"
            "gradient_acc_step * world_size 24 != 3 * 4 * 1",
            "BT001",
        ),
        (
            "RuntimeError: CUDA error: no kernel image is available for \nexecution on the device",
            "LG010",
        ),
        ("OSError: [Errno 28] No space left on device: \n'/job/out/checkpoint-500/model-00001-of-00009.sf'", "LG050"),
    ],
)
def test_a_message_that_rich_broke_is_one_message(message, cause):
    lines = "\n".join(line.rstrip() for line in message.split("\n"))
    found = diagnose_text(f"{_BOX}{lines}\nERROR:launcher:failed (exitcode: 1)\n")
    whole = diagnose_text(f"{_FRAMES}{message.replace(chr(10), '')}\n")
    assert found.cause == whole.cause
    assert "ERROR:launcher" not in found.message


def test_a_line_that_would_have_fitted_is_another_one():
    found = diagnose_text(f"{_BOX}ValueError: odd\nall other ranks have ended\n")
    assert found.message == "ValueError: odd"
