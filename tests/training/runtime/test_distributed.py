# SPDX-License-Identifier: Apache-2.0
"""Agreement of ranks: values of any size from every rank. Needs the training extra; seconds on forked ranks."""

from __future__ import annotations

from pathlib import Path

from tests.support.training.forked_ranks import ForkedRanks

JOB = """
from harness.runtime.distributed import _SINGLE_GATHER_BYTES, destroy_process_group, init_process_group

ranks = init_process_group()
fits = _SINGLE_GATHER_BYTES - 8 - len(__import__("pickle").dumps(b"")) - 64
for size in (0, 1, fits, fits + 64, fits + 65, fits + 72, _SINGLE_GATHER_BYTES, 3 * _SINGLE_GATHER_BYTES, 1 << 20):
    for who in (0, ranks.world_size - 1, None):  # the large one is one rank's, or everyone's
        mine = bytes([ranks.rank]) * (size if who in (ranks.rank, None) else 3)
        found = ranks.all_gather_object({"rank": ranks.rank, "value": mine})
        assert [one["rank"] for one in found] == list(range(ranks.world_size)), found
        for rank, one in enumerate(found):
            assert one["value"] == bytes([rank]) * (size if who in (rank, None) else 3)
assert ranks.all_gather_object(None) == [None] * ranks.world_size
destroy_process_group()
"""


def test_values_of_any_size_are_gathered(forked: ForkedRanks, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    forked.run(script, ranks=3)
