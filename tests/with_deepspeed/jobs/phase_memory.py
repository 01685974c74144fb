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

sys.path.insert(0, str(Path(__file__).parents[3]))

from harness.runtime import loop
from harness.runtime.main import _quieten, _read_together
from harness.runtime.ranks import Ranks, join, leave
from harness.runtime.rundir import RunDir
from harness.runtime.status import Status
from harness.runtime.telemetry.memory import memory_of_phase

M_MMAP_THRESHOLD = -3
"""mallopt(3)."""


def main(ranks: Ranks, place: Path, resume: Path | None) -> None:
    run_dir = RunDir(place)
    orders = _read_together(run_dir, ranks)
    before = ranks.gather(memory_of_phase()["memory_host_bytes"])
    job = loop.build(orders, run_dir, ranks, Status(run_dir, ranks.rank))
    loop.train(job, resume)
    job.metrics.close()
    if ranks.is_first:
        lines = map(json.loads, run_dir.metrics.read_text().splitlines())
        told = {line["phase"]: line["memory_host_peak_bytes"] for line in lines if line["type"] == "memory"}
        (place / "told.json").write_text(json.dumps({"before": before, **told}))


if __name__ == "__main__":
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 64 * 2**10)
    ranks = join()
    _quieten("error")
    main(ranks, Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    leave()
