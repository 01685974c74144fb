# SPDX-License-Identifier: Apache-2.0
"""8 kills of a run on 2 ranks, a quarter of them under the real launcher: about a minute on 2 idle cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launching.hosts.local_host import find_free_port

from . import chain

pytestmark = pytest.mark.training

KILLS, LAUNCHED, STEPS, SEED = 8, 2, 70, 13


def test_a_run_killed_eight_times_ends_as_one_that_nobody_touched(tmp_path: Path) -> None:
    kills = chain.draw(KILLS, LAUNCHED, SEED)
    result = chain.run(chain.Plan(kills, STEPS, ("zero3-cpu",), find_free_port(), SEED), tmp_path, print)
    assert result.wrong == []
    assert len(result.killed) == KILLS
    assert sum(report.mid_save for report in result.killed) >= KILLS // 4
    assert {report.kill.target for report in result.killed if report.kill} >= {"rank", "launcher", "supervisor"}
