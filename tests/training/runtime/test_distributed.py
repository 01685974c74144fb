# SPDX-License-Identifier: Apache-2.0
"""Agreement of ranks: values of any size from every rank. Needs the training extra; seconds on forked ranks."""

from __future__ import annotations

from pathlib import Path

from tests.support.training.forked_ranks import ForkedRanks

JOB = """
from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.object_gather import _SINGLE_GATHER_BYTES, _encode

ranks = init_process_group()
for one in (str(ranks.rank), bytes([ranks.rank])):  # as JSON, and as an archive of torch
    fits = _SINGLE_GATHER_BYTES - 7 - len(_encode({"rank": 0, "value": one}))
    edges = range(fits - 1, fits + 2) if isinstance(one, str) else range(fits - 128, fits + 64, 32)
    for size in (1, *edges, _SINGLE_GATHER_BYTES, 3 * _SINGLE_GATHER_BYTES, 1 << 20):
        for who in (0, ranks.world_size - 1, None):  # the large one is one rank's, or everyone's
            found = ranks.all_gather_object({"rank": ranks.rank, "value": one * (size if who in (ranks.rank, None) else 3)})
            assert [row["rank"] for row in found] == list(range(ranks.world_size)), found
            for rank, row in enumerate(found):
                whose = str(rank) if isinstance(one, str) else bytes([rank])
                assert row["value"] == whose * (size if who in (rank, None) else 3)
assert ranks.all_gather_object(None) == [None] * ranks.world_size
destroy_process_group()
"""


def test_values_of_any_size_are_gathered(forked: ForkedRanks, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    forked.run(script, ranks=3)


SLOW = """
import time
from datetime import timedelta

from torch.distributed import distributed_c10d

distributed_c10d.default_pg_timeout = timedelta(seconds=1)  # gloo's, 30 minutes elsewhere
from harness.runtime.distributed import destroy_process_group, init_process_group

ranks = init_process_group()
time.sleep(2.5 * ranks.rank)
assert ranks.all_gather_object(ranks.rank) == [0, 1]
ranks.barrier()
destroy_process_group()
"""


def test_a_rank_that_writes_longer_than_the_others_is_awaited(forked: ForkedRanks, tmp_path: Path) -> None:
    """A save in line ends in a gather of all ranks, whose disks differ."""
    script = tmp_path / "job.py"
    script.write_text(SLOW)
    forked.run(script, ranks=2)


WARM = """
import os
import sys
from pathlib import Path

before = set(sys.modules)
import deepspeed.ops
from deepspeed.ops.op_builder.builder import OpBuilder
from harness.runtime.distributed import destroy_process_group, init_process_group
from transformers import conversion_mapping

assert "cpu_adam" in OpBuilder._loaded_ops, OpBuilder._loaded_ops
assert vars(deepspeed.ops)["__compatible_ops__"]["deepspeed_shm_comm"] is False
assert conversion_mapping._checkpoint_conversion_mapping_cache
ranks = init_process_group()
assert not [name for name in set(sys.modules) - before if name.startswith(("peft", "setuptools", "torch._inductor"))]
assert not list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{os.environ['MASTER_PORT']}_*"))
destroy_process_group()
"""


def test_a_forked_rank_makes_nothing_again(forked: ForkedRanks, tmp_path: Path) -> None:
    """What every rank of every job would load, build and fill costs half of a short run."""
    script = tmp_path / "job.py"
    script.write_text(WARM)
    forked.run(script, ranks=2)


def test_of_many_ranks_each_sends_fewer_bytes_at_once():
    from harness.runtime.object_gather import single_gather_bytes

    assert [single_gather_bytes(world) for world in (1, 2048, 4096, 32768)] == [8192, 8192, 4096, 512]
    assert all(single_gather_bytes(world) * world <= 1 << 24 for world in (1, 512, 32768, 65536))
