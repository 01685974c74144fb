# SPDX-License-Identifier: Apache-2.0
"""The harness's own loop on several run directories, one after the other in the same ranks: saves the start-up of each.

`train_many.py JOBS.json`, where a job is {"run": DIR, "resume": CHECKPOINT or null}. After each run rank 0 writes the
engine's consolidated fp32 weights to DIR/weights.safetensors.
"""

import json
import sys
from pathlib import Path

import deepspeed
from safetensors.torch import save_file

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels, exit_immediately


def main() -> None:
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        run_dir = RunDir(Path(job["run"]))
        orders = _load_run_config_on_all_ranks(run_dir, ranks)
        _set_log_levels("error")
        built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
        train(built, Path(job["resume"]) if job["resume"] else None)
        module = built.engine.module
        weights = {n: deepspeed.utils.safe_get_full_fp32_param(p) for n, p in module.named_parameters()}
        if None in weights.values():  # stage 0 in fp32 keeps no master copy: the parameters are it
            weights = dict(module.named_parameters())
        if ranks.is_main_process:
            save_file(
                {n: w.detach().clone().contiguous() for n, w in weights.items()}, run_dir.root / "weights.safetensors"
            )
        built.metrics.close()
        built.engine.destroy()
    destroy_process_group()
    exit_immediately(0)


if __name__ == "__main__":
    main()
