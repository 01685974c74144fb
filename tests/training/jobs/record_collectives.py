# SPDX-License-Identifier: Apache-2.0
"""`record_collectives.py RUN FOLDER [CHECKPOINT]`: trains in a run directory on live ranks, each of which writes
FOLDER/RANK.json: the bytes of its engine's states, every collective from the model's first on, as the simulation names
them, and the files of its last checkpoint: bytes of tensors, and of the file. With a checkpoint of its last step it
resumes, and trains no more: the files that were read, and the collectives of that.
"""

import json
import re
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode

from harness.checkpoints.manifest import read_manifest
from harness.runtime.checkpoint import deepspeed_io
from harness.runtime.checkpoint.hashing_writer import tensor_bytes
from harness.runtime.checkpoint.safe_load import load_file
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

    def forget(self) -> None:
        """Forget the collectives until now."""
        self.traffic.order.clear()
        self.traffic.callers.clear()

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


def bytes_from_gpu(content: Any) -> int:
    """Bytes of the tensors as a run on a GPU writes them: there `_get_param_fragment_func` (runtime/engine.py) copies
    frozen weights to the host, and the file has them twice; on the CPU both are the same memory.
    """
    fragments = content.get("frozen_param_fragments") if isinstance(content, dict) else None
    if not fragments:
        return tensor_bytes(content)
    return tensor_bytes({**content, "frozen_param_fragments": None}) + tensor_bytes(fragments)


def written_files(checkpoints: Path, rank: int) -> dict[str, tuple[int, int]]:
    """By name, of those that the rank wrote: bytes of all tensors, and of the file."""
    files = {}
    for checkpoint in checkpoints.glob("step-*"):
        for name, record in read_manifest(checkpoint).files.items():
            if record.rank == rank and name.endswith("_states.pt"):
                files[name] = bytes_from_gpu(load_file(checkpoint / name)), record.bytes
    return files


def main(run: Path, folder: Path, resume: Path | None) -> None:
    # Torch computes with fp16 on any CPU; DeepSpeed lets those train alone that do it fast.
    get_accelerator().is_fp16_supported = lambda: True  # type: ignore[method-assign]
    ranks = init_process_group()
    run_dir = RunDir(run)
    orders = _load_run_config_on_all_ranks(run_dir, ranks)
    _set_log_levels("error")
    status = RankStatusWriter(run_dir, ranks.rank)
    files: dict[str, Any] = {}
    with Recorder() as recorder, patch.object(deepspeed_io, "load_file", partial(load_recorded, files, resume)):
        built = build_context(orders, run_dir, ranks, status, is_resumed=resume is not None)
        if resume is not None:
            recorder.forget()
        train(built, resume)
    traffic = recorder.traffic
    found = {
        "states": state_bytes(built.engine),
        "collective_order": traffic.order,
        "collective_callers": traffic.callers,
        "files": files if resume is not None else written_files(run_dir.checkpoints, ranks.rank),
    }
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))
    built.metrics.close()
    destroy_process_group()


def load_recorded(files: dict[str, Any], checkpoint: Path | None, path: Path, **options: Any) -> Any:
    """What the file holds; its bytes are recorded by its name."""
    content = load_file(path, **options)
    if checkpoint is not None:
        files[str(path.relative_to(checkpoint))] = bytes_from_gpu(content), path.stat().st_size
    return content


if __name__ == "__main__":
    place = next(i for i, argument in enumerate(sys.argv) if argument.endswith("record_collectives.py"))
    arguments = [Path(argument) for argument in sys.argv[place + 1 :]]
    main(arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None)
