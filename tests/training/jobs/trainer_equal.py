# SPDX-License-Identifier: Apache-2.0
"""The harness's loop and then Hugging Face's Trainer on the batches that it saw: `trainer_equal.py JOBS.json`.

A job is {"run": DIR}, a run directory; both losses go to DIR/losses.json.
"""

import json
import sys
from pathlib import Path

import torch

from harness.runtime import step
from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from tests.support.training import peer_sides


def main() -> None:
    ranks = init_process_group()
    seen: list[dict[str, torch.Tensor]] = []
    train_step = step.DataParallelStepper.train_step

    def training(stepper, micro_batches, *rest):
        (one,) = micro_batches
        seen.append({**one.to_model_inputs(torch.device("cpu")), "labels": one.labels})
        return train_step(stepper, micro_batches, *rest)

    step.DataParallelStepper.train_step = training
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        run_dir = RunDir(Path(job["run"]))
        orders = _load_run_config_on_all_ranks(run_dir, ranks)
        _set_log_levels("error")
        seen.clear()
        built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
        train(built, None)
        built.metrics.close()
        built.engine.destroy()
        spec = orders.run.spec
        work = peer_sides.Work(
            Path(spec.model.name_or_path),
            list(seen),
            orders.ds_config,
            torch.bfloat16 if spec.precision.bf16 else torch.float32,
            spec.scheduler.type,
            spec.scheduler.warmup_steps,
            out=run_dir.root / "trainer",
        )
        theirs = peer_sides.trainer(work)
        if ranks.is_main_process:
            rows = map(json.loads, run_dir.metrics.read_text().splitlines())
            ours = [row["loss"] for row in rows if row["type"] == "step"]
            (run_dir.root / "losses.json").write_text(json.dumps({"harness": ours, "trainer": theirs}))
    destroy_process_group()


if __name__ == "__main__":
    main()
