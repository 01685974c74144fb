# SPDX-License-Identifier: Apache-2.0
"""4 kills of a run on 2 ranks, half of them under the real launcher: half a minute on 2 idle cores. One kill of a rank
among tensor ranks in pipeline stages. HARNESS_NIGHTLY=1 kills 8 times more.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.launching.hosts.local_host import find_free_port

from . import chain
from .attempt import Kill

pytestmark = pytest.mark.training

LAUNCHED, SEED = 2, 13


@pytest.mark.parametrize(("count", "steps"), [(4, 40), pytest.param(8, 70, marks=pytest.mark.nightly)])
def test_a_run_killed_again_and_again_ends_as_one_that_nobody_touched(tmp_path: Path, count: int, steps: int) -> None:
    kills = chain.draw(count, LAUNCHED, SEED)
    result = chain.run(chain.Plan(kills, steps, ("zero3-cpu",), find_free_port(), SEED), tmp_path, print)
    assert result.wrong == []
    assert len(result.killed) == count
    assert sum(report.mid_save for report in result.killed) >= count // 4
    assert {report.kill.target for report in result.killed if report.kill} >= {"rank", "launcher", "supervisor"}


def test_tensor_ranks_in_stages_go_on_to_the_same_bits_after_one_of_them_was_killed(tmp_path: Path) -> None:
    kill = Kill(target="rank", moment="step", steps=3, seconds=0.05, forked=True)
    result = chain.run(chain.Plan([kill], 6, ("tensor-pipeline",), find_free_port(), SEED), tmp_path, print)
    assert result.wrong == []
    assert [report.kill for report in result.killed] == [kill]
    assert result.reports[-1].resumed_from is not None
