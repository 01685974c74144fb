"""Runs of the harness's own loop in several shapes, one after the other in the same ranks.

`reshape_cases.py PLAN.json`: {"runs": [{"name", "folder", "spec", "resume"}]}. A run that resumes also writes, before its
first step, what it holds as a checkpoint of DeepSpeed's below FOLDER/held.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from deepspeed.utils import groups

from harness.plan.run import resolve
from harness.render import render
from harness.runtime import loop, reshape
from harness.runtime.main import _quieten, _read_together
from harness.runtime.ranks import Ranks, join, leave
from harness.runtime.rundir import RunDir
from harness.runtime.status import Status
from harness.spec.model import RunSpec

_restore = loop.checkpoint.restore
_STATE = {k: v for k, v in vars(groups).items() if k.isupper() or k in ("mpu", "mesh_device")}
"""Of DeepSpeed's process groups before any engine: it keeps the tensor degree of one for all that come after it."""


def main() -> None:
    ranks = join()
    for run in json.loads(Path(sys.argv[-1]).read_text())["runs"]:
        vars(groups).update({k: type(v)(v) if isinstance(v, dict) else v for k, v in _STATE.items()})
        one(ranks, run)
    leave()


def one(ranks: Ranks, run: dict[str, Any]) -> None:
    folder = Path(run["folder"])
    if ranks.is_first:
        resolved = resolve(RunSpec.model_validate_json(json.dumps(run["spec"])), world_size=ranks.world)
        folder.mkdir(parents=True)
        (folder / "spec.resolved.json").write_text(json.dumps(resolved.to_json()))
        (folder / "ds_config.json").write_text(json.dumps(dict(render(resolved).config)))
    ranks.barrier()
    run_dir = RunDir(folder)
    orders = _read_together(run_dir, ranks)
    _quieten("error")
    job = loop.build(orders, run_dir, ranks, Status(run_dir, ranks.rank))
    loop.checkpoint.restore = lambda job, *rest: hold(job, _restore(job, *rest), folder / "held")
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
        "degrees": {"pipeline": job.topology.pipeline_size, "tensor": job.topology.tensor_size},
        "shape": reshape.describe(engine, job.topology, job.config),
    }
    if job.ranks.is_first:
        job.config.save_pretrained(folder / "huggingface")
        (folder / "held.json").write_text(json.dumps(body))
    job.ranks.barrier()
    return state


if __name__ == "__main__":
    main()
