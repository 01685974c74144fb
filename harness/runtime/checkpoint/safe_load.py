# SPDX-License-Identifier: Apache-2.0
"""torch files read without running code from them: tensors, plain values and the few classes that DeepSpeed writes.

`load_file` refuses a file with code in it and leaves other errors to its caller. `load_shard` memory-maps a shard of
DeepSpeed's and refuses any other file.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.serialization import MAP_LOCATION

from harness.errors import UserError
from harness.patches.torch_safe_globals import allow_deepspeed_globals
from harness.runtime.user_errors import user_error


def load_file(file: Path, *, map_location: MAP_LOCATION = "cpu", mmap: bool = False) -> Any:
    """The content of one file. Raises UserError (CK111) for a file that would run code."""
    try:
        return _load(file, map_location=map_location, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise unsafe_file_error(file, find_unsafe_globals(file) or [str(error).splitlines()[0]]) from None


def load_shard(file: Path) -> dict[str, Any]:
    """The content of a shard, memory-mapped. Raises UserError (CK120) for a file that DeepSpeed does not write."""
    try:
        shard: dict[str, Any] = _load(file, map_location="cpu", mmap=True)
    except OSError:
        raise
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, ValueError and EOFError here
        raise user_error(
            "CK120",
            f"`{file}` cannot be read as a shard of a checkpoint",
            notes=((str(error).strip() or type(error).__name__).splitlines()[0][:200],),
            fix="name another checkpoint",
        ) from None
    return shard


def find_unsafe_globals(file: Path) -> list[str]:
    """Names of classes and functions in a file that no shard needs. Runs nothing."""
    with allow_deepspeed_globals():
        try:
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except Exception as error:  # whatever a hostile or broken file provokes in the scanner
            return [f"something that cannot be looked at ({type(error).__name__})"]


def unsafe_file_error(file: Path, names: list[str]) -> UserError:
    """The refusal of a file that would run code."""
    return user_error(
        "CK111",
        f"`{file}` holds {', '.join(f'`{name}`' for name in names[:3])}, which no shard needs",
        notes=("reading it would run code from the file; nothing of it was run",),
        fix="name a checkpoint from a source that you trust",
    )


def _load(file: Path, *, map_location: MAP_LOCATION, mmap: bool) -> Any:
    with allow_deepspeed_globals():
        return torch.load(file, map_location=map_location, mmap=mmap, weights_only=True)
