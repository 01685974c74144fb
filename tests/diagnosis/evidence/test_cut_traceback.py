# SPDX-License-Identifier: Apache-2.0
"""Causes of tracebacks that are cut, by made-up sources of installed packages. Needs nothing; seconds."""

from __future__ import annotations

import textwrap

import pytest

from harness.diagnosis.decision import decide_action
from harness.diagnosis.evidence import python_errors
from tests.support.tracebacks import diagnose_text, traceback_text

SOURCE = textwrap.dedent('''\
    def wait(self):
        assert not self.parts(), \\
            f"no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage {self.stage()}"
        assert not self.inside, "no_sync context manager reentry is unsupported"

    def fetch(self):
        raise ValueError(
            "DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True` or with passing a `device_map`."
        )

    def pair(self):
        if self.a:
            raise ValueError(
                "an odd text"
            )
        raise ValueError(
            "DeepSpeed Zero-3 is not compatible with `low_cpu_mem_usage=True` or with passing a `device_map`."
        )

    def check(self, sizes):
        text = f"Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * " \\
            f"gradient_acc_step * world_size {sizes[0]} != {sizes[1]} * {sizes[2]} * {sizes[3]}"
        assert sizes, text

    def hand_on(self):
        try:
            self.fetch()
        except ValueError:
            raise
    ''')  # fmt: skip
BARE = "the log ends in the middle of a traceback, before the exception"


def diagnose_cut(monkeypatch, function, code, line=99, file="deepspeed/runtime/odd.py"):
    asked = []
    monkeypatch.setattr(python_errors, "read_module_source", lambda name: asked.append(name) or SOURCE)
    log = traceback_text([("/job/train.py", "main", "go()"), (file, function, code)], "").rstrip("\n")
    log = log.replace("line 2,", f"line {line},")
    return diagnose_text(log if code else log.rpartition("\n")[0]), asked


@pytest.mark.parametrize(
    ("function", "code", "line", "cause"),
    [
        ("wait", "assert not self.parts(), \\", 99, "LG115"),
        ("wait", "", 99, "LG115"),
        ("fetch", "raise ValueError(", 99, "LG183"),
        ("fetch", "raise ValueError(  # of another release", 99, "LG183"),
        ("pair", "raise ValueError(", 99, ""),
        ("pair", "raise ValueError(", 16, "LG183"),
        ("pair", "raise ValueError(", 13, ""),
        ("check", "assert sizes, text", 99, "BT001"),
        ("hand_on", "raise", 99, ""),
        ("fetch", "x = go(", 99, ""),
        ("odd", "raise ValueError(", 99, ""),
    ],
)
def test_a_cut_traceback_has_the_one_cause_of_what_its_function_raises(monkeypatch, function, code, line, cause):
    diagnosis, _ = diagnose_cut(monkeypatch, function, code, line)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely" if cause else "unknown")
    if cause:
        assert diagnosis.message.startswith(f"{BARE}; `{function}` raises here: ")
        assert decide_action(diagnosis).action == "change and retry"
        assert not any(number in f"{diagnosis.title} {diagnosis.change}" for number in (" 4 ", "`4`"))
    else:
        assert diagnosis.message == BARE


@pytest.mark.parametrize(
    ("file", "asked"),
    [
        ("accelerate/state.py", ["accelerate.state"]),
        ("/opt/oddpackage/load.py", []),
        ("deepspeed/../../secret.py", []),
        ("deepspeed/runtime/odd.so", []),
    ],
)
def test_only_sources_of_the_packages_are_read(monkeypatch, file, asked):
    assert diagnose_cut(monkeypatch, "fetch", "raise ValueError(", file=file)[1] == asked


def test_an_exception_that_the_log_has_is_not_looked_up(monkeypatch):
    asked = []
    monkeypatch.setattr(python_errors, "read_module_source", lambda name: asked.append(name) or SOURCE)
    frames = [("deepspeed/runtime/odd.py", "fetch", "raise ValueError(")]
    assert diagnose_text(traceback_text(frames, "OddError: else")).message == "OddError: else"
    assert not asked
