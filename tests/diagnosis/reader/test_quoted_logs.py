# SPDX-License-Identifier: Apache-2.0
"""Logs as people post them, made up: lines are left out of a traceback."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import diagnose_text

_FRAMES = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    main()\n'


@pytest.mark.parametrize("elision", ["[...]", "...", "…", "<snip>"])
@pytest.mark.parametrize("rank", ["", "[rank3]: "])
def test_lines_left_out_do_not_end_a_traceback(elision, rank):
    frames = "".join(f"{rank}{line}\n" for line in _FRAMES.splitlines())
    found = diagnose_text(f"{frames}{elision}\nOSError: [Errno 28] No space left on device\n")
    assert found.cause == "LG050", found
    assert found.rank == (3 if rank else None)


def test_an_ordinary_line_below_dots_is_no_failure():
    assert diagnose_text("loading\n...\nstep 1 of 9\n").state != "failed"
