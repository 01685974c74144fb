# SPDX-License-Identifier: Apache-2.0
"""The harness's own loop on runs with plug-ins, one after the other: `train_own.py JOBS.json`.

A job is {"run": DIR, "resume": CHECKPOINT or null, "allow": sha256 of the plug-in, "stop_after": a step or null}. Rank 0
writes weights.safetensors, and each rank findings-RANK.json with the findings that ended its run, their help after their notes.
"""

import json
import os
import sys
from pathlib import Path

import deepspeed
from safetensors.torch import save_file

from harness.errors import UserError
from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.plugin_loader import ALLOWED_CODE_VARIABLE
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels


def main() -> None:
    ranks = init_process_group()
    for job in json.loads(Path(sys.argv[-1]).read_text()):
        os.environ[ALLOWED_CODE_VARIABLE] = job["allow"]
        run_dir = RunDir(Path(job["run"]))
        try:
            run_config = _load_run_config_on_all_ranks(run_dir, ranks)
            _set_log_levels("error")
            built = build_context(run_config, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
            train(built, Path(job["resume"]) if job["resume"] else None)
        except UserError as error:
            findings = [[f.gate, f.message, [*f.notes, *([f.fix.title] if f.fix else [])]] for f in error.findings]
            (run_dir.root / f"findings-{ranks.rank}.json").write_text(json.dumps(findings))
            if job.get("alone"):  # this rank may be the only one: as a worker, which ends at once
                os._exit(1)
            continue
        module = built.engine.module
        weights = {n: deepspeed.utils.safe_get_full_fp32_param(p) for n, p in module.named_parameters()}
        if None in weights.values():  # stage 0 in fp32 keeps no master copy
            weights = dict(module.named_parameters())
        if ranks.is_main_process:
            contents = {n: w.detach().clone().contiguous() for n, w in weights.items()}
            save_file(contents, run_dir.root / "weights.safetensors")
        built.metrics.close()
        built.engine.destroy()
    destroy_process_group()


if __name__ == "__main__":
    main()
