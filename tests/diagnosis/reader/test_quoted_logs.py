# SPDX-License-Identifier: Apache-2.0
"""Logs as people post them, made up: lines left out of a traceback, messages that rich broke at its width."""

from __future__ import annotations

import pytest

from harness.diagnosis.reader.line_prefix import parse_line
from tests.support.tracebacks import diagnose_text

_FRAMES = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    main()\n'
_WIDTH = 60
_BOX = f"│{' /job/train.py:9 in <module>':<{_WIDTH - 2}}│\n╰{'─' * (_WIDTH - 2)}╯\n"


@pytest.mark.parametrize(
    "elision", ["[...]", "...", "…", "<snip>", "[..snip..]", "[... 30 lines omitted ...]", "<truncated>"]
)
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


@pytest.mark.parametrize("before", ["[...] ", "  [...]\n  ", "[...]\n    "])
def test_an_exception_behind_left_out_lines_ends_the_traceback_however_it_stands(before):
    found = diagnose_text(f"{_FRAMES}{before}OddError: the disk is odd\n")
    assert (found.message, found.where) == ("OddError: the disk is odd", "/job/train.py:9 in <module>")
    assert diagnose_text(f"{before.strip()} OddError: the disk is odd\n").message == "OddError: the disk is odd"


@pytest.mark.parametrize("indent", ["  ", "      ", "\t"])
def test_an_indented_traceback_ends_where_its_frames_do(indent):
    text = f"{_FRAMES}OddError: the disk is odd\nafterwards\n"
    found = diagnose_text("".join(f"{indent}{line}\n" for line in text.splitlines()))
    assert (found.message, found.where) == ("OddError: the disk is odd", "/job/train.py:9 in <module>")


@pytest.mark.parametrize("name", ["train.py", "zero_to_fp32.py", "run-2.sh"])
def test_the_name_of_a_program_is_no_host(name):
    assert parse_line(f"{name}: error: odd".encode()).host == ""
    assert parse_line(b"node-2: error: odd").host == "node-2"


@pytest.mark.parametrize(
    "file", ["/opt/env/bin/accelerate", "/opt/env/bin/torchrun", "/s/accelerate/commands/launch.py"]
)
def test_the_cut_traceback_of_a_launcher_is_no_first_failure(file):
    cut = f'Traceback (most recent call last):\n  File "{file}", line 8, in <module>\n'
    failed = "[ERROR] failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: /opt/env/bin/python\n"
    assert diagnose_text(failed + cut).cause == "LG074"
    assert "middle of a traceback" in diagnose_text(failed + cut.replace(file, "/job/train.py")).message


@pytest.mark.parametrize("root", ["vllm", "trl", "transformers"])
def test_a_shortened_path_still_names_its_package(root):
    error = "TypeError: OddArgs.__init__() got an unexpected keyword argument 'odd'"
    found = diagnose_text(
        f' File "/job/fit.py", line 2, in main\n go()\n File "{root}/odd.py", line 3, in f\n x = OddArgs(\n{error}\n'
    )
    assert (found.cause, f"`{root}` calls it" in found.title) == ("LG227", True)
