"""The harness's loop and then Hugging Face's Trainer on the batches that it saw: `trainer_equal.py JOBS.json`.

A job is {"run": DIR}, a run directory; both losses go to DIR/losses.json.
"""

import json
import sys
from pathlib import Path

import peer_sides
import torch

from harness.runtime import loop, stepping
from harness.runtime.main import _quieten, _read_together
from harness.runtime.ranks import join, leave
from harness.runtime.rundir import RunDir
from harness.runtime.status import Status


def main() -> None:
    ranks = join()
    seen: list[dict[str, torch.Tensor]] = []
    train = stepping.PlainStepper.train

    def training(stepper, micro_batches, *rest):
        (one,) = micro_batches
        seen.append({**one.inputs(torch.device("cpu")), "labels": one.labels})
        return train(stepper, micro_batches, *rest)

    stepping.PlainStepper.train = training
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        run_dir = RunDir(Path(job["run"]))
        orders = _read_together(run_dir, ranks)
        _quieten("error")
        seen.clear()
        built = loop.build(orders, run_dir, ranks, Status(run_dir, ranks.rank))
        loop.train(built, None)
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
        if ranks.is_first:
            rows = map(json.loads, run_dir.metrics.read_text().splitlines())
            ours = [row["loss"] for row in rows if row["type"] == "step"]
            (run_dir.root / "losses.json").write_text(json.dumps({"harness": ours, "trainer": theirs}))
    leave()


if __name__ == "__main__":
    main()
