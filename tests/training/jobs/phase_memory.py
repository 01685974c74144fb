# SPDX-License-Identifier: Apache-2.0
"""`phase_memory.py RUN [CHECKPOINT]`: trains in a run directory, from a checkpoint where one is named. The first rank writes
beside it what every rank held at most in each phase, as the lines `memory` tell it, and before it loaded anything.

glibc keeps what was freed in pieces below 32 MiB (its threshold grows as pieces are freed), up to as much again as is in
use, and how much of it depends on the order in which threads freed it. Pieces from 64 KiB go back here, so that what is
resident is what is in use. Models whose tensors are larger than 32 MiB never see the difference.
"""

from __future__ import annotations

import ctypes
import json
import sys
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
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 * 2**10)
    ranks = init_process_group()
    _set_log_levels("error")
    main(ranks, Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    destroy_process_group()
