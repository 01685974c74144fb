# SPDX-License-Identifier: Apache-2.0
"""One step after a resume with other settings, several cases one after the other in the same ranks.

`allowed_changes.py PLAN.json`: {"cases": [{"folder", "spec", "resume", "allowed", "stop"}]}. A case with `stop` takes one
step and saves. Rank 0 writes below FOLDER: `result.json` ({"refused": [[id, message] ...]}, {"error": text}, or {"rows"
of the step after the resume, "steps_per_epoch", "scale" of the loss}) and `drawn.pt`, the micro-batches of that step on all ranks.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import groups

from harness.checkpoints.manifest import read_manifest
from harness.errors import UserError
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.distributed import Distributed, destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import TrainContext, build_context
from harness.runtime.train_state import DataPosition
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from harness.spec.run_spec import RunSpec
from tests.support.changed_keys import SAVED

_STATE = {k: v for k, v in vars(groups).items() if k.isupper() or k in ("mpu", "mesh_device")}
"""Of DeepSpeed's process groups before any engine: it keeps the tensor degree of one for all that come after it."""


def main() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # Muon's module compiles its kernels when it is imported, minutes here
    ranks = init_process_group()
    get_accelerator().is_fp16_supported = lambda: True  # torch computes it on any CPU, if slowly
    for case in json.loads(Path(sys.argv[-1]).read_text())["cases"]:
        vars(groups).update({k: type(v)(v) if isinstance(v, dict) else v for k, v in _STATE.items()})
        try:
            result = _run(ranks, case)
        except UserError as refused:
            result = {"refused": [[f.gate, f.message, *f.notes] for f in refused.findings]}
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        if ranks.is_main_process:
            (Path(case["folder"]) / "result.json").write_text(json.dumps(result))
        ranks.barrier()
    destroy_process_group()


def _run(ranks: Distributed, case: dict[str, Any]) -> dict[str, Any]:
    folder = Path(case["folder"])
    if ranks.is_main_process:
        run = resolve_run(RunSpec.model_validate_json(json.dumps(case["spec"])), world_size=ranks.world_size)
        folder.mkdir(parents=True)
        (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
        (folder / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config)))
        if case["stop"]:
            (folder / "stop").touch()
    ranks.barrier()
    run_dir = RunDir(folder)
    config = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    built = build_context(config, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank))
    try:
        train(built, Path(case["resume"]) if case["resume"] else None, case["allowed"])
        saved = Path(case["resume"]) if case["resume"] else folder / "checkpoints" / f"step-{SAVED:08d}"
        return _draw(built, saved, folder)
    finally:
        built.metrics.close()
        built.engine.destroy()


def _draw(built: TrainContext, saved: Path, folder: Path) -> dict[str, Any]:
    """The micro-batches of the step after a checkpoint, over all ranks."""
    position = DataPosition(**read_manifest(saved)["state"]["position"])
    batch = built.train_data.batch_at(position)
    names = ("input_ids", "labels", "position_ids", "attention_mask")
    mine = [{name: getattr(part, name) for name in names} for part in batch.micro_batches]
    by_rank = dict(reversed(built.distributed.all_gather_object((built.topology.data_parallel_rank, mine))))
    if built.distributed.is_main_process:
        torch.save([part for rank in sorted(by_rank) for part in by_rank[rank]], folder / "drawn.pt")
    scale = getattr(built.engine.optimizer, "cur_scale", None)
    return {"rows": batch.row_indices.tolist(), "steps_per_epoch": built.train_data.steps_per_epoch, "scale": scale}


if __name__ == "__main__":
    main()
