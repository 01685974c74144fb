# SPDX-License-Identifier: Apache-2.0
"""`phase_memory.py RUN [--resume CHECKPOINT] [--keep-freed-blocks]`: trains in a run directory. The first rank writes
what every rank held at most in each phase, as the lines `memory` tell it, and before it loaded anything.

glibc keeps freed blocks below 32 MiB (its threshold grows as blocks are freed), and how many of them depends on the order
in which threads freed them. Blocks from 64 KiB go back here, so that what is resident is what is in use;
`--keep-freed-blocks` leaves glibc as it is, as `harness launch` does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
from pathlib import Path

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.telemetry.memory_usage import read_and_reset_peak_memory
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels

M_MMAP_THRESHOLD = -3
"""mallopt(3)."""


def main(ranks: Distributed, place: Path, resume: Path | None) -> None:
    run_dir = RunDir(place)
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    before = ranks.all_gather_object(read_and_reset_peak_memory()["memory_host_bytes"])
    job = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    train(job, resume)
    job.metrics.close()
    if ranks.is_main_process:
        lines = map(json.loads, run_dir.metrics.read_text().splitlines())
        told = {line["phase"]: line["memory_host_peak_bytes"] for line in lines if line["type"] == "memory"}
        (place / "told.json").write_text(json.dumps({"before": before, **told}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--keep-freed-blocks", action="store_true")
    arguments = parser.parse_args()
    if not arguments.keep_freed_blocks:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 * 2**10)
    ranks = init_process_group()
    _set_log_levels("error")
    main(ranks, arguments.run, arguments.resume)
    destroy_process_group()
