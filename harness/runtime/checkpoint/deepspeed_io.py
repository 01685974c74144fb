"""DeepSpeed's own reading and writing of shards, in our hands for as long as a save or a load takes.

A client may set `engine.checkpoint_engine`. For a save it hands over what would be written (nothing is written by
DeepSpeed, so that no rank fails alone between two collectives); for a load nothing is unpickled but tensors, plain
values and the four classes that DeepSpeed itself puts into a shard. DeepSpeed's other engines are of no use here: on
0.19.8 the writers fail at start or cannot reload, and the decoupled one loses the last save of a run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from harness.errors import UserError
from harness.runtime.checkpoint import nvme_states
from harness.runtime.checkpoint.hashing_writer import CheckpointFile
from harness.runtime.patches.torch_safe_globals import allow_deepspeed_globals
from harness.runtime.user_errors import user_error


class _SaveCollector(TorchCheckpointEngine):
    """Keeps what it is told to save. Creates no folder and no file."""

    def __init__(self, root: Path, optimizer: Any) -> None:
        self.name = "harness"
        self.zipfile_serialization = True
        self.files: list[CheckpointFile] = []
        self._root, self._optimizer = root, optimizer

    def save(self, state_dict: Any, path: str) -> None:
        """Hand over; what is swapped out to NVMe is put in its place as a view of the swap file."""
        content = nvme_states.with_swapped_tensors(self._optimizer, state_dict)
        self.files.append(CheckpointFile(Path(path).relative_to(self._root).as_posix(), content))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Folders are made by whoever writes."""


class _SafeLoader(TorchCheckpointEngine):
    """Reads tensors and plain values only."""

    def __init__(self, *, mmap: bool) -> None:
        self.name = "harness"
        self.zipfile_serialization = True
        self._mapped = mmap

    def load(self, path: str, map_location: Any = None) -> Any:
        """Raises Refused (CK111) when the file holds anything else; there is no other way of reading it."""
        return load_file(Path(path), map_location=map_location or "cpu", mmap=self._mapped)


@contextmanager
def _override_attributes(engine: Any, **attributes: Any) -> Iterator[None]:
    """Attributes of the engine object for a while; methods of its class come back when they are removed."""
    missing = object()
    before = {name: vars(engine).get(name, missing) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(engine, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is missing:
                delattr(engine, name)
            else:
                setattr(engine, name, value)


def collect_files(engine: Any, folder: Path, tag: str) -> list[CheckpointFile]:
    """What this rank has to write below `folder`, by reference: valid until the next step. A collective."""
    collecting = _SaveCollector(folder, engine.optimizer)
    with _override_attributes(
        engine,
        checkpoint_engine=collecting,
        zero_nvme_offload_optimizer=lambda: False,  # else it copies the swap files, which nothing can read back
        _copy_recovery_script=lambda _: None,  # a script in the folder that only reads some of the checkpoints
    ):
        engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
    return collecting.files


def load_engine(engine: Any, folder: Path, tag: str) -> bool:
    """`engine.load_checkpoint`, reading safely; False when DeepSpeed loaded nothing. A collective."""
    swapping = nvme_states.uses_nvme(engine.optimizer)
    with (
        _override_attributes(
            engine,
            checkpoint_engine=_SafeLoader(mmap=swapping),
            zero_nvme_offload_optimizer=lambda: False,  # else it leaves Adam's state out
            **_zero_override_at_stage_0(engine),
        ),
        nvme_states.patch_load_state_dict(engine.optimizer),
    ):
        loaded, _ = engine.load_checkpoint(str(folder), tag=tag)
    return loaded is not None


def _zero_override_at_stage_0(engine: Any) -> dict[str, Any]:
    """A bf16 pipeline of stage 0 has an optimizer that is sharded all the same: DeepSpeed saves its shards, and loads
    them only where it believes in ZeRO; else it fails on data rank 0's state with a KeyError.
    """
    return {"zero_optimization": lambda: True} if isinstance(engine.optimizer, BF16_Optimizer) else {}


def load_file(file: Path, *, map_location: Any = "cpu", mmap: bool = False) -> Any:
    """One file, without running code from it. Raises Refused (CK111) where that is not possible."""
    try:
        with allow_deepspeed_globals():
            return torch.load(file, map_location=map_location, mmap=mmap, weights_only=True)
    except pickle.UnpicklingError as error:
        raise unsafe_file_error(file, find_unsafe_globals(file) or [str(error).splitlines()[0]]) from None


def find_unsafe_globals(file: Path) -> list[str]:
    """Names of classes and functions that reading the file would need and that have no business in it; runs nothing."""
    with allow_deepspeed_globals():
        try:
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
        except Exception as error:  # whatever a hostile or broken file provokes in the scanner
            return [f"something that cannot be looked at ({type(error).__name__})"]


def unsafe_file_error(file: Path, names: list[str]) -> UserError:
    """The refusal of a file that would run code."""
    return user_error(
        "CK111",
        f"`{file}` holds {', '.join(f'`{name}`' for name in names[:3])}, which a shard has no need of",
        notes=("reading it would run code from the file; nothing of it was run",),
        fix="name a checkpoint from a source that you trust",
    )
