# SPDX-License-Identifier: Apache-2.0
"""A resume on the simulated device: a fork of the process keeps the engine as it was built, waits for the files of the
simulated save, and loads them by DeepSpeed's and the harness's own code. Nothing is read from a disk.

The fork is there because an engine that has trained is not the one that loads: its states exist already, and DeepSpeed
allows no load after a save at stage 3.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import pickle
import re
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from harness.patches.cpu_adam_resume import replay_cpu_adam
from harness.patches.patch_registry import PatchStates
from harness.runtime.checkpoint import deepspeed_io
from harness.runtime.checkpoint.loaded_state import refusing_other_content
from harness.runtime.checkpoint.own_settings import OwnSettings
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.simulated_save import TAG, SavedFile, bytes_by_kind

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MODEL_RANK = re.compile(r"mp_rank_\d\d_")


class SimulatedResumeError(RuntimeError):
    """The load failed on the simulated device; the message has the trace of the process that loaded."""


class ForkedResume:
    """The process that loads: `load` runs in it, with the files that `run` gets, and returns JSON values."""

    def __init__(self, load: Callable[[list[SavedFile]], dict[str, Any]]) -> None:
        request_read, request_write = os.pipe()
        answer_read, answer_write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._process = os.fork()
        if self._process == 0:
            try:
                os.close(request_write)
                os.close(answer_read)
                _wait_and_load(request_read, answer_write, load)
            finally:
                os._exit(0)
        os.close(request_read)
        os.close(answer_write)
        self._request, self._answer = os.fdopen(request_write, "wb"), os.fdopen(answer_read, "rb")

    def run(self, files: list[SavedFile]) -> dict[str, Any]:
        """Load these files. Raises SimulatedResumeError."""
        pickle.dump(files, self._request)
        self._request.close()
        answer = json.loads(self._answer.read() or b'{"error": "the process that loads ended without an answer"}')
        if "error" in answer:
            raise SimulatedResumeError(answer["error"])
        return dict(answer)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._request.close()
        self._answer.close()
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0


def _wait_and_load(request_read: int, answer_write: int, load: Callable[[list[SavedFile]], dict[str, Any]]) -> None:
    """In the fork: load what comes through the pipe; end where nothing comes, and with the process that forked."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(request_read, "rb") as pipe:
        request = pipe.read()
    if not request:
        return
    try:
        answer = load(pickle.loads(request))  # noqa: S301 - from the process that forked this one
    except BaseException as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}\n{traceback.format_exc()}"}
    with os.fdopen(answer_write, "w") as pipe_out:
        json.dump(answer, pipe_out)


def simulate_resume(
    engine: Any, patches: PatchStates, folder: Path, files: list[SavedFile], tracker: MemoryTracker, model_ranks: int
) -> dict[str, int]:
    """Load the files into a new engine as `restore_checkpoint` does, but for their verification and the random states.
    `model_ranks` (tensor and pipeline ranks) have such files, each as long as this rank's. Returns bytes of the tensors
    of each file that was read.
    """
    tracker.enter_phase("resume")
    by_name = {_MODEL_RANK.sub("", file.name): file for file in files}
    read: dict[str, int] = {}

    def load_file(path: Path, *, map_location: Any = None, mmap: bool = False) -> Any:
        del map_location  # every file is read into host memory first
        name = str(path.relative_to(folder))
        file = by_name[_MODEL_RANK.sub("", name)]
        read[name] = file.bytes
        with tracker.mapping_files() if mmap else nullcontext():
            return _Unpickler(file).load()

    for name in _names_in_folder(files, model_ranks):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()  # DeepSpeed looks for the names
    own_settings = OwnSettings(engine)
    with patch.object(deepspeed_io, "load_file", load_file), refusing_other_content(engine, folder):
        if not deepspeed_io.load_engine(engine, folder, TAG):
            raise SimulatedResumeError("DeepSpeed loaded nothing")
        own_settings.restore(engine)
        if patches.is_applied("cpu-adam-resume"):
            replay_cpu_adam(engine, 2)
    return read


def merge_resume(result: dict[str, Any], resumed: dict[str, Any]) -> dict[str, Any]:
    """The result of the process that trained, with the phase `resume` of the one that loaded. `stand_ins`: files of
    another tensor or pipeline rank, which are taken to be as long as this rank's own.
    """
    merged = {**result}
    for key in ("peaks", "collectives", "copies", "gathers"):
        merged[key] = {**result[key]}
        if "resume" in resumed[key]:
            merged[key]["resume"] = resumed[key]["resume"]
    for key in ("failed", "host_exceeded"):
        merged[key] = result[key] or resumed[key]
    if "races" in result:
        merged["races"] = result["races"] + [race for race in resumed["races"] if race not in result["races"]]
    merged["checkpoint"] = {
        **result["checkpoint"],
        "read": bytes_by_kind(resumed["read"]),
        "disk_of_resume": resumed["disk"],
        "details": {
            **result["checkpoint"]["details"],
            "read": resumed["read"],
            **{name: resumed[name] for name in ("collective_order", "collective_callers", "stand_ins")},
        },
    }
    return merged


def _names_in_folder(files: list[SavedFile], model_ranks: int) -> list[str]:
    """Names of the files of this rank, and of those that the other ranks of its model write."""
    return sorted({_MODEL_RANK.sub(f"mp_rank_{rank:02d}_", file.name) for file in files for rank in range(model_ranks)})


class _Unpickler(pickle.Unpickler):
    """Makes the tensors of a file, on new storages."""

    def __init__(self, file: SavedFile) -> None:
        super().__init__(io.BytesIO(file.pickled))
        self._storages = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in file.storages]

    def persistent_load(self, reference: Any) -> torch.Tensor:
        """The tensor that `simulated_save` wrote as a reference."""
        number, dtype, shape, stride, offset = reference
        tensor: torch.Tensor = self._storages[number].view(dtype).as_strided(shape, stride, offset)
        return tensor
