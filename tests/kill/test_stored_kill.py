# SPDX-License-Identifier: Apache-2.0
"""Three kills of a run on 2 ranks of which only an object store is left: a rank and a whole host while they upload or
download, and the store, which is killed. By night it also answers with 500s and cuts connections.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.object_store import needs_store, run_store_server

from . import stored
from .stored import StoreKill

pytestmark = [pytest.mark.training, needs_store]
KILLS = (
    StoreKill("rank", "upload", 9),
    StoreKill("store killed", "upload", 14, 1.5, 6),
    StoreKill("ranks", "download", 3),
)
MORE = (StoreKill("store 500s", "upload", 6, 1.0, 5), StoreKill("store cuts", "upload", 11, 1.0, 2))


@pytest.mark.parametrize(("kills", "steps"), [(KILLS, 28), pytest.param(KILLS + MORE, 40, marks=pytest.mark.nightly)])
def test_a_run_of_which_only_the_store_is_left_ends_as_one_that_nobody_touched(
    tmp_path: Path, kills: tuple[StoreKill, ...], steps: int
) -> None:
    with run_store_server() as server:
        result = stored.run(kills, steps, ("zero2",), 1, server, tmp_path, print)
    assert result.wrong == []
    assert [report.kill.target for report in result.killed] == [kill.target for kill in kills]
    assert sum(report.mid_save for report in result.killed) >= len(kills) // 2
