# SPDX-License-Identifier: Apache-2.0
"""`HarnessCallback` inside installations of other programs, those that WATCH_PROGRAMS names: `trl=/envs/trl/bin/python ...`."""

from __future__ import annotations

import os

import pytest

from benchmarks.watch_programs import COMMANDS, FAULT, judge, train

pytestmark = [pytest.mark.training, pytest.mark.nightly]
INSTALLED = dict(text.split("=", 1) for text in os.environ.get("WATCH_PROGRAMS", "").split())


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("fault", ["none", FAULT])
@pytest.mark.parametrize("program", COMMANDS)
def test_fifty_steps_are_silent_and_a_fault_stops_them(program: str, fault: str, stage: int) -> None:
    if program not in INSTALLED:
        pytest.skip(f"WATCH_PROGRAMS names no {program}")
    assert judge(train(program, INSTALLED[program], stage, fault), fault) == "passed"
