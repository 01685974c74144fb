# SPDX-License-Identifier: Apache-2.0
"""8 kills of a run on 2 ranks, a quarter of them under the real launcher: about a minute on 2 idle cores. One kill of
a rank among tensor ranks in pipeline stages.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launching.hosts.local_host import find_free_port

from . import chain
from .attempt import Kill

pytestmark = pytest.mark.training

KILLS, LAUNCHED, STEPS, SEED = 8, 2, 70, 13


def test_a_run_killed_eight_times_ends_as_one_that_nobody_touched(tmp_path: Path) -> None:
    kills = chain.draw(KILLS, LAUNCHED, SEED)
    result = chain.run(chain.Plan(kills, STEPS, ("zero3-cpu",), find_free_port(), SEED), tmp_path, print)
    assert result.wrong == []
    assert len(result.killed) == KILLS
    assert sum(report.mid_save for report in result.killed) >= KILLS // 4
    assert {report.kill.target for report in result.killed if report.kill} >= {"rank", "launcher", "supervisor"}


def test_tensor_ranks_in_stages_go_on_to_the_same_bits_after_one_of_them_was_killed(tmp_path: Path) -> None:
    kill = Kill(target="rank", moment="step", steps=3, seconds=0.05, forked=True)
    result = chain.run(chain.Plan([kill], 6, ("tensor-pipeline",), find_free_port(), SEED), tmp_path, print)
    assert result.wrong == []
    assert [report.kill for report in result.killed] == [kill]
    assert result.reports[-1].resumed_from is not None
