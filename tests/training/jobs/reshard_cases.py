# SPDX-License-Identifier: Apache-2.0
"""Runs of the harness's own loop in several shapes, one after the other in the same ranks.

`reshard_cases.py PLAN.json`: {"runs": [{"name", "folder", "spec", "resume"}]}. A run that resumes also writes, before its
first step, what it holds as a checkpoint of DeepSpeed's below FOLDER/held.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from deepspeed.utils import groups

from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime import train as loop
from harness.runtime.checkpoint import reshard
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from harness.spec.run_spec import RunSpec

_restore = loop.restore_checkpoint
_STATE = {k: v for k, v in vars(groups).items() if k.isupper() or k in ("mpu", "mesh_device")}
"""Of DeepSpeed's process groups before any engine: it keeps the tensor degree of one for all that come after it."""


def main() -> None:
    ranks = init_process_group()
    for run in json.loads(Path(sys.argv[-1]).read_text())["runs"]:
        vars(groups).update({k: type(v)(v) if isinstance(v, dict) else v for k, v in _STATE.items()})
        one(ranks, run)
    destroy_process_group()


def one(ranks: Distributed, run: dict[str, Any]) -> None:
    folder = Path(run["folder"])
    if ranks.is_main_process:
        resolved = resolve_run(RunSpec.model_validate_json(json.dumps(run["spec"])), world_size=ranks.world_size)
        folder.mkdir(parents=True)
        (folder / "spec.resolved.json").write_text(json.dumps(resolved.to_json()))
        (folder / "ds_config.json").write_text(json.dumps(dict(render_ds_config(resolved).config)))
    ranks.barrier()
    run_dir = RunDir(folder)
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    job = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    loop.restore_checkpoint = lambda job, *rest: hold(job, _restore(job, *rest), folder / "held")
    loop.train(job, Path(run["resume"]) if run["resume"] else None)
    job.metrics.close()
    job.engine.destroy()


def hold(job: Any, state: Any, folder: Path) -> Any:
    """Write what the engine holds; returns `state`."""
    job.engine.save_checkpoint(str(folder), tag="held", save_latest=False)
    engine = job.engine
    body = {
        "tag": "held",
        "zero_stage": engine.zero_optimization_stage(),
        "degrees": {"pipeline": job.topology.pipeline_parallel_size, "tensor": job.topology.tensor_parallel_size},
        "shape": reshard.describe_layout(engine, job.topology, job.config, job.distributed),
    }
    if job.distributed.is_main_process:
        job.config.save_pretrained(folder / "huggingface")
        (folder / "held.json").write_text(json.dumps(body))
    job.distributed.barrier()
    return state


if __name__ == "__main__":
    main()
