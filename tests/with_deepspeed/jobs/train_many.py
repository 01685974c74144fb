"""The harness's own loop on several run directories, one after the other in the same ranks: saves the start-up of each.

`train_many.py JOBS.json`, where a job is {"run": DIR, "resume": CHECKPOINT or null}. After each run rank 0 writes the
engine's consolidated fp32 weights to DIR/weights.safetensors.
"""

import json
import sys
from pathlib import Path

import deepspeed
from safetensors.torch import save_file

from harness.runtime import loop
from harness.runtime.main import _quieten, _read_together
from harness.runtime.ranks import join, leave
from harness.runtime.rundir import RunDir
from harness.runtime.status import Status


def main() -> None:
    ranks = join()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        run_dir = RunDir(Path(job["run"]))
        orders = _read_together(run_dir, ranks)
        _quieten("error")
        built = loop.build(orders, run_dir, ranks, Status(run_dir, ranks.rank))
        loop.train(built, Path(job["resume"]) if job["resume"] else None)
        module = built.engine.module
        weights = {n: deepspeed.utils.safe_get_full_fp32_param(p) for n, p in module.named_parameters()}
        if None in weights.values():  # stage 0 in fp32 keeps no master copy: the parameters are it
            weights = dict(module.named_parameters())
        if ranks.is_first:
            save_file(
                {n: w.detach().clone().contiguous() for n, w in weights.items()}, run_dir.root / "weights.safetensors"
            )
        built.metrics.close()
        built.engine.destroy()
    leave()


if __name__ == "__main__":
    main()
