# SPDX-License-Identifier: Apache-2.0
"""`tensor_peaks.py RUN`: trains in a run directory. The first rank writes the most bytes of live tensors that each rank
held in its steps, by the line that made them: every storage counts from the operator that makes it until it is freed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels


class CountTensors(TorchDispatchMode):
    """Counts what every operator returns, those of the backward pass too, which runs in the thread that called it."""

    def __init__(self, tracker: MemoryTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracker = tracker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                self._tracker.add(tensor.untyped_storage(), "cpu", func._schema.name)
        return out


def main(ranks: Distributed, place: Path) -> None:
    run_dir, tracker = RunDir(place), MemoryTracker()
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    with CountTensors(tracker):
        job = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
        tracker.enter_phase("steps")
        train(job, None)
    tracker.finish()
    peak = tracker.peaks["steps"]["cpu"]
    job.metrics.close()
    told = ranks.all_gather_object({"bytes": peak.bytes, "holders": peak.holders})
    if ranks.is_main_process:
        (place / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    ranks = init_process_group()
    _set_log_levels("error")
    main(ranks, Path(sys.argv[1]))
    destroy_process_group()
