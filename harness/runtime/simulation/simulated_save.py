# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that is counted and not written: the engine collects its files as for a save, and their tensors pass
through host memory as `torch.save` and `HostSnapshot` move them.

Left out are the random states, the manifest and the files of `huggingface/`, a few kilobytes to a few megabytes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from harness.runtime.checkpoint import nvme_states
from harness.runtime.checkpoint.deepspeed_io import collect_files
from harness.runtime.checkpoint.hashing_writer import CheckpointFile, iter_tensors
from harness.runtime.checkpoint.snapshot import HostSnapshot
from harness.runtime.simulation.memory_tracker import MemoryTracker
from harness.runtime.simulation.streams import OBSERVERS

TAG = "global_step2"
"""DeepSpeed's folder of the second step."""


@dataclass(frozen=True)
class SavedFile:
    """A file without its values: its pickle, in which a tensor is a reference, and the bytes of each storage."""

    name: str
    pickled: bytes
    storages: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(self.storages)


@dataclass
class SimulatedSave:
    """The save of one rank. `written`: bytes of the tensors of each file that it writes. `files`: those that it would
    read again, also where another rank writes them. `copied_first`: is there a copy in host memory before the write?
    """

    written: dict[str, int] = field(default_factory=dict)
    files: list[SavedFile] = field(default_factory=list)
    copied_first: bool = False
    read_from_nvme: int = 0
    snapshot: HostSnapshot | None = None
    """Keeps the memory of the copy for the next save, as a run does."""

    def to_json(self) -> dict[str, Any]:
        """Bytes by kind of file, and in `details` by name; `way`: from a copy in the background, or in line with
        training.
        """
        return {
            "written": bytes_by_kind(self.written),
            "details": {"written": self.written},
            "way": "background" if self.copied_first else "in line",
            "read_from_nvme": self.read_from_nvme,
        }


class _SimulatedSnapshot(HostSnapshot):
    """The same copy of fake tensors: a storage of theirs cannot be filled byte by byte."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[torch.Tensor] = []

    def _copy_tensor(self, tensor: torch.Tensor, storages: Any) -> torch.Tensor:
        source = tensor.detach().untyped_storage()
        if source.nbytes() == 0:
            return torch.empty(tensor.shape, dtype=tensor.dtype)
        key = (str(tensor.device), source.data_ptr())
        if key not in storages:
            whole = view_of_storage(tensor)
            copy = torch.empty(whole.shape, dtype=whole.dtype, device="cpu")
            copy.copy_(whole)
            self._kept.append(copy)
            storages[key] = copy
        copied: torch.Tensor = storages[key].view(tensor.dtype)
        return copied.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def simulate_save(engine: Any, folder: Path, tracker: MemoryTracker, *, in_background: bool) -> SimulatedSave:
    """Save the engine's state as a run does, and write nothing. `in_background`: `checkpoint.async_save`, which copies
    all states to the host first, where the host has room and nothing is on NVMe.
    """
    save = SimulatedSave()
    tracker.enter_phase("save")
    engine.checkpoint_tag_validation_fail = lambda: False  # it compares values of tensors
    files = collect_files(engine, folder, TAG)
    if in_background and not nvme_states.uses_nvme(engine.optimizer):
        save.copied_first, save.snapshot = True, _SimulatedSnapshot()
        copies = [CheckpointFile(file.name, save.snapshot.copy_of(file.content)) for file in files]
    else:
        copies = files
    for file in copies:
        save.written[file.name] = file.bytes
        save.read_from_nvme += _write(file.content, tracker)
    save.files = [_without_values(file) for file in files]
    del files, copies
    tracker.enter_phase("end")
    if not _writes_all(engine):
        others = _as_first_data_rank(engine, lambda: collect_files(engine, folder, TAG))
        save.files += [_without_values(file) for file in others if file.name not in save.written]
    return save


def bytes_by_kind(files: Mapping[str, int]) -> dict[str, int]:
    """Bytes of the weights, and of the optimizer's states: at stage 0 one file has both."""
    sizes: dict[str, int] = {}
    for name, size in files.items():
        kind = "optimizer states" if "optim_states" in name else "weights"
        sizes[kind] = sizes.get(kind, 0) + size
    return sizes


def view_of_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of the tensor's storage, as one dimension."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0)


def storages_of(content: object) -> dict[tuple[str, int], torch.Tensor]:
    """A tensor for each storage, in the order in which `torch.save` writes them."""
    tensors: dict[tuple[str, int], torch.Tensor] = {}
    for tensor in iter_tensors(content):
        storage = tensor.untyped_storage()
        if storage.nbytes():
            tensors.setdefault((str(tensor.device), storage.data_ptr()), tensor)
    return tensors


def _write(content: object, tracker: MemoryTracker) -> int:
    """Move one storage of the device after the other to the host, as `torch.save` does; returns the bytes that come
    from swap files.
    """
    from_files = 0
    for tensor in storages_of(content).values():
        if tensor.device.type != "cpu":
            view_of_storage(tensor).to("cpu")
        elif tensor.untyped_storage() in tracker.mapped:
            from_files += tensor.untyped_storage().nbytes()
    return from_files


def _without_values(file: CheckpointFile) -> SavedFile:
    numbers: dict[tuple[str, int], int] = {}
    sizes: list[int] = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return None
            storage = value.untyped_storage()
            key = (str(value.device), storage.data_ptr())
            if key not in numbers:
                numbers[key] = len(sizes)
                sizes.append(storage.nbytes())
            return numbers[key], value.dtype, tuple(value.shape), tuple(value.stride()), int(value.storage_offset())

    target = io.BytesIO()
    Pickler(target).dump(file.content)
    return SavedFile(file.name, target.getvalue(), tuple(sizes))


def _writes_all(engine: Any) -> bool:
    """Does this rank write every file that it reads when the run is resumed?"""
    grid = getattr(engine.module, "_grid", None)
    return bool(engine.save_non_zero_checkpoint) and (grid is None or grid.data_parallel_id == 0)


def _as_first_data_rank(engine: Any, collect: Callable[[], list[CheckpointFile]]) -> list[CheckpointFile]:
    """The files of the first rank that has the same part of the model, which writes the weights for all of them. Nobody
    observes it.
    """
    grid = getattr(engine.module, "_grid", None)
    before = engine.save_non_zero_checkpoint, None if grid is None else grid.data_parallel_id
    engine.save_non_zero_checkpoint = True
    if grid is not None:
        grid.data_parallel_id = 0
    observers, OBSERVERS[:] = list(OBSERVERS), []
    try:
        return collect()
    finally:
        OBSERVERS[:] = observers
        engine.save_non_zero_checkpoint = before[0]
        if grid is not None:
            grid.data_parallel_id = before[1]
