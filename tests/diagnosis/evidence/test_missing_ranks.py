# SPDX-License-Identifier: Apache-2.0
"""The ranks that a collective waited for, by what a log says of the others. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import diagnose_text

LAUNCHED = "[2026-03-01 10:00:02,000] [INFO] [launch.py:170:main] dist_world_size={}\n"
TIMEOUT = (
    "[rank{0}]:[E301 10:30:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600010 milliseconds "
    "before timing out.\n"
)


@pytest.mark.parametrize(
    ("world_size", "ranks", "missing"),
    [(4, (1, 2, 3), 0), (4, (0, 1, 3), 2), (8, (0, 1, 2), None), (2, (1, 2, 3), None)],
)
def test_the_world_size_that_a_log_states(world_size: int, ranks: tuple[int, ...], missing: int | None) -> None:
    diagnosis = diagnose_text(LAUNCHED.format(world_size) + "".join(map(TIMEOUT.format, ranks)))
    assert (diagnosis.cause, diagnosis.rank) == ("LG070", missing)
    assert any(note.startswith("missing: rank ") for note in diagnosis.notes) is (missing is not None)


DUMP_SIGNAL = (
    "[rank{0}]:[E301 10:30:01.123456789 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a dump "
    "signal due to a collective timeout from {1} and we will try our best to dump the debug info. Last enqueued NCCL work: "
    "{2}, last completed NCCL work: 40.This is most likely caused by incorrect usages of collectives\n"
)


def test_the_rank_behind_by_what_the_ranks_say_when_they_dump() -> None:
    lines = [DUMP_SIGNAL.format(rank, "this local rank", 44) for rank in (0, 1, 3)]
    diagnosis = diagnose_text("".join([*lines, DUMP_SIGNAL.format(2, " rank 0", 41)]))
    assert (diagnosis.cause, diagnosis.rank) == ("LG070", 2)
    alike = diagnose_text("".join([*lines, DUMP_SIGNAL.format(2, " rank 0", 44)]))
    assert (alike.cause, alike.rank) == ("LG070", None)
