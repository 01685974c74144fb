# SPDX-License-Identifier: Apache-2.0
"""The harness's own loop on several run directories, one after the other in the same ranks.

`parity_many.py JOBS.json`, where a job is {"run": DIR, "drawn": FILE or null}. After each run rank 0 writes DIR/outcome.json
{"seconds", "error" or null, "optimizer", "swapped": bytes below the run's NVMe folder, "data": sha256 of what all ranks
drew}; with "drawn", also the micro-batches of all ranks, a list a step, for the plain reference.
"""

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import TrainContext, build_context
from harness.runtime.train_state import TrainState
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels


def main() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Muon's module compiles its kernels when it is imported, minutes here
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        began, error, facts = time.perf_counter(), None, {}
        try:
            facts = _train(ranks, job)
        except Exception as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"
        if ranks.is_main_process:
            seconds = round(time.perf_counter() - began, 2)
            outcome = {"seconds": seconds, "error": error, **facts}
            (Path(job["run"]) / "outcome.json").write_text(json.dumps(outcome))
        errors = ranks.all_gather_object(error)
        if any(errors) and not all(errors):
            break  # the ranks may stand in different collectives
    destroy_process_group()


def _train(ranks: Distributed, job: dict[str, Any]) -> dict[str, Any]:
    run_dir = RunDir(Path(job["run"]))
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    train(built, None)
    built.metrics.close()
    swapped = sum(_swapped(orders.ds_config))
    facts = {"optimizer": type(built.engine.optimizer).__name__, "swapped": swapped, "data": _drawn(built, job)}
    built.engine.destroy()
    return facts


def _swapped(config: dict[str, Any]) -> list[int]:
    zero = config["zero_optimization"]
    paths = {zero[k]["nvme_path"] for k in ("offload_optimizer", "offload_param") if "nvme_path" in zero.get(k, {})}
    return [f.stat().st_size for path in paths for f in Path(path).rglob("*") if f.is_file()]


def _drawn(built: TrainContext, job: dict[str, Any]) -> str:
    """Draw all steps again, on every rank; returns a digest of the rows in the order of the global batch."""
    state, steps = TrainState(), []
    for _ in range(built.total_steps):
        drawn = built.train_data.batch_at(state.position)
        mine = [
            {
                "input_ids": b.input_ids,
                "labels": b.labels,
                "position_ids": b.position_ids,
                "attention_mask": b.attention_mask,
            }
            for b in drawn.micro_batches
        ]
        state = state.advance(samples=0, tokens=0, predicted_tokens=0, position=drawn.next_position)
        steps.append(mine)
    sharers = built.distributed.all_gather_object((built.topology.data_parallel_rank, steps))
    by_data_rank = dict(reversed(sharers))
    together = [
        [by_data_rank[r][step][m] for m in range(len(steps[step])) for r in sorted(by_data_rank)]
        for step in range(built.total_steps)
    ]
    if job["drawn"] and dist.get_rank() == 0:
        torch.save(together, job["drawn"])
    rows = b"".join(row["input_ids"].numpy().tobytes() for parts in together for row in parts)
    return hashlib.sha256(rows).hexdigest()


if __name__ == "__main__":
    main()
