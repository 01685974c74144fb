# SPDX-License-Identifier: Apache-2.0
"""One rank of one check: `check_process.py TASK`, where TASK is JSON. Writes its figures into the task's folder."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
DUMP_BEFORE_END = 5.0
"""Seconds before its time limit at which a process prints where it is."""


def main() -> None:
    """Measure and write. Raises what the check raises: the exit code and the traceback are for the parent."""
    from benchmarks.gpu_checks.check import Scene, Task
    from benchmarks.gpu_checks.check_list import find_check

    task = Task(**json.loads(sys.argv[-1]))
    rank = int(os.environ["RANK"])
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, task.seconds - DUMP_BEFORE_END), exit=False)
    from harness.hostinfo.torch_extensions import set_torch_extensions_dir

    set_torch_extensions_dir(os.environ)
    from harness.patches.no_mlflow import import_deepspeed

    import_deepspeed()
    import torch

    from benchmarks.gpu_checks.device import require_device, skip_op_probes

    if task.rehearse:
        torch.set_num_threads(1)
        skip_op_probes()
    gc.freeze()  # what was imported is not walked again by each collection of DeepSpeed's
    if task.fault:
        module, _, function = task.fault.partition(":")
        getattr(import_module(module), function)(rank)
    kind = require_device(task.rehearse)
    scene = Scene(task, rank)
    figures = find_check(task.check).measure(scene)
    figures = {**figures, "device": kind, "cpu_seconds": round(time.process_time(), 2)}
    if task.ranks > 1:
        figures["wire"] = scene.wire
    (scene.folder / f"figures-{rank}.json").write_text(json.dumps(figures), encoding="utf-8")
    faulthandler.cancel_dump_traceback_later()
    if scene._distributed is not None:
        scene.distributed.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all that matters is written; an interpreter with all of torch takes seconds to end


if __name__ == "__main__":
    main()
