# SPDX-License-Identifier: Apache-2.0
"""The schedule and the random states that the Trainer and accelerate write beside the shards."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.checkpoints.foreign.torch_outline import Tensor, read_bytes, read_outline
from harness.runtime.checkpoint.safe_load import load_file

_RANDOM = re.compile(r"(?:rng_state|random_states)(?:_(\d{1,6}))?\.(?:pth|pkl)")
_STEP_KEYS = ("last_epoch", "last_batch_iteration")


def schedule_of(folder: Path, model_states: dict[str, Any]) -> dict[str, int]:
    """The counts of the schedule: of the shard's, else of `scheduler.pt` or `scheduler.bin`; empty where there is none.

    Raises UserError (CK111, CK120) for a file with anything but plain values.
    """
    state = model_states.get("lr_scheduler")
    for name in ("scheduler.pt", "scheduler.bin"):
        if not isinstance(state, dict) and (folder / name).is_file():
            state = load_file(folder / name)
    state = state if isinstance(state, dict) else {}
    return {key: int(state[key]) for key in _STEP_KEYS if type(state.get(key)) is int}


def read_random_states(folder: Path, ranks: int) -> tuple[list[dict[str, Any]], str]:
    """Those of each rank as `rng_state.py` sets them, and what to say; none where a rank's cannot be read.

    The files have arrays of numpy, which code that a file names would rebuild. Nothing of them is run: their outline is
    read, and of their arrays and tensors the bytes.
    """
    files = {int(match[1] or 0): path for path in folder.iterdir() if (match := _RANDOM.fullmatch(path.name))}
    if not files:
        return [], "the checkpoint has no random states; ranks begin with those of `train.seed`"
    if sorted(files) != list(range(ranks)):
        return [], f"random states are not imported: there are {len(files)} files, of {ranks} ranks"
    try:
        states = [_read_states(files[rank], rank) for rank in range(ranks)]
    except Exception as error:  # content of any type provokes almost anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return [], f"random states are not imported: `{folder.name}` has some that nobody can set ({reason})"
    return (
        states,
        f"random states of {ranks} ranks are imported: a run on as many, with the same seed, goes on with them",
    )


_MAX_STATE = 1 << 16
"""Bytes; torch's has 5,056."""


def _read_states(file: Path, rank: int) -> dict[str, Any]:
    """Raises what a generator raises that does not take them, and OSError."""
    body = read_outline(file)
    names = ("python", "numpy", "cpu", "cuda")
    if "random_state" in body:  # accelerate's
        names = ("random_state", "numpy_random_seed", "torch_manual_seed", "torch_cuda_manual_seed")
    python, numpy, host, device = (body.get(name) for name in names)
    version, words, gauss = python
    kind, keys, position, has_gauss, cached = numpy
    keys = np.frombuffer(_bytes_of(keys), dtype="<u4").tolist()
    states: dict[str, Any] = {
        "python": (version, tuple(words), gauss),
        "numpy": (kind, keys, position, has_gauss, cached),
        "torch": _vector(file, host),
    }
    if isinstance(device, list) and device:  # of all devices that the rank saw
        device = device[rank % len(device)]
    if isinstance(device, Tensor):
        states["accelerator"] = _vector(file, device)
    random.Random().setstate(states["python"])  # noqa: S311  # it draws nothing
    np.random.RandomState().set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.Generator().set_state(states["torch"])
    return states


def _bytes_of(array: Any) -> bytes:
    """Of numpy's array of whole numbers of 4 bytes, in the form in which it is pickled. Raises ValueError."""
    _, _, dtype, _, data = array.state
    if dtype.args[0] != "u4" or dtype.state[1] != "<":
        raise ValueError(f"an array of {dtype.args[0]}")
    text, encoding = data.args
    return str(text).encode("latin1") if encoding == "latin1" else b""


def _vector(file: Path, outline: Tensor) -> torch.Tensor:
    return torch.frombuffer(bytearray(read_bytes(file, outline, _MAX_STATE)), dtype=torch.uint8)
