# SPDX-License-Identifier: Apache-2.0
"""`record_collectives.py RUN FOLDER`: trains in a run directory on live ranks, each of which writes FOLDER/RANK.json: the
bytes of its engine's states, and every collective from the model's first on, as the simulation names them.
"""

import json
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from harness.runtime.distributed import destroy_process_group, init_process_group
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.traffic import Traffic, is_collective
from harness.runtime.telemetry.state_bytes import state_bytes
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels

OWN_MESSAGES = "harness/runtime/distributed.py"
_ENGINE = re.compile(r"site-packages/deepspeed/|harness/(runtime|patches)/[^/]+\.py$")
_PASSED_ON = re.compile(r"deepspeed/(comm|utils)/|harness/runtime/comm_timer|harness/patches/timed_collectives")


class Recorder(TorchDispatchMode):
    """Counts collectives as the simulation does, of tensors that have values."""

    def __init__(self) -> None:
        super().__init__()
        self.traffic = Traffic(MemoryTracker())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if is_collective(func):
            self.traffic.on_collective(func, args, out, "", 0)
            self.traffic.callers[-1] = _calling_line()
        return out


def _calling_line() -> str:
    """The loop's own messages (`OWN_MESSAGES`), else the line of DeepSpeed or the harness that wanted the collective."""
    frame: FrameType | None = sys._getframe(2)
    found = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.endswith("harness/runtime/distributed.py"):
            return OWN_MESSAGES
        if not found and _ENGINE.search(path) and not _PASSED_ON.search(path):
            found = f"{path.rpartition('site-packages/')[2]}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return found


def main(run: Path, folder: Path) -> None:
    # Torch computes with fp16 on any CPU; DeepSpeed lets those train alone that do it fast.
    get_accelerator().is_fp16_supported = lambda: True  # type: ignore[method-assign]
    ranks = init_process_group()
    run_dir = RunDir(run)
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    with Recorder() as recorder:
        built = build_context(orders, run_dir, ranks, RankStatusWriter(run_dir, ranks.rank), is_resumed=False)
        train(built)
    traffic = recorder.traffic
    found = {
        "states": state_bytes(built.engine),
        "collective_order": traffic.order,
        "collective_callers": traffic.callers,
    }
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))
    built.metrics.close()
    destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[-2]), Path(sys.argv[-1]))
