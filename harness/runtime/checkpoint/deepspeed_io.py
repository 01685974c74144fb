# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own reading and writing of shards, through a checkpoint engine of the harness.

A client may set `engine.checkpoint_engine`. For a save, ours collects the files and DeepSpeed writes none, so that no
rank fails alone between two collectives. For a load, ours unpickles tensors, plain values and the four classes that
DeepSpeed itself puts into a shard, and nothing else. DeepSpeed's other engines do not serve here: on 0.19.8 the writers
fail at start or cannot reload, and the decoupled one loses the last save of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from harness.runtime.checkpoint import nvme_states
from harness.runtime.checkpoint.hashing_writer import CheckpointFile
from harness.runtime.checkpoint.safe_load import load_file
from harness.runtime.engine_protocol import Engine, EngineOptimizer


class _SaveCollector(TorchCheckpointEngine):  # type: ignore[misc]  # DeepSpeed has no types
    """Collects the files of a save. Creates no folder and no file."""

    def __init__(self, root: Path, optimizer: EngineOptimizer) -> None:
        self.name = "harness"
        self.zipfile_serialization = True
        self.files: list[CheckpointFile] = []
        self._root, self._optimizer = root, optimizer

    def save(self, state_dict: Any, path: str) -> None:
        """Collect one file; a state that is on NVMe becomes a view of its swap file."""
        content = nvme_states.with_swapped_tensors(self._optimizer, state_dict)
        self.files.append(CheckpointFile(Path(path).relative_to(self._root).as_posix(), content))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Create nothing: the writer creates folders."""


class _SafeLoader(TorchCheckpointEngine):  # type: ignore[misc]  # as above
    """Reads tensors and plain values only."""

    def __init__(self, *, mmap: bool) -> None:
        self.name = "harness"
        self.zipfile_serialization = True
        self._mmap = mmap

    def load(self, path: str, map_location: Any = None) -> Any:
        """Raises UserError (CK111) when the file holds anything else."""
        return load_file(Path(path), map_location=map_location or "cpu", mmap=self._mmap)


@contextmanager
def _override_attributes(engine: Engine, **attributes: Any) -> Iterator[None]:
    """Set attributes of the engine object for a while. Methods of its class come back when these are removed."""
    missing = object()
    previous = {name: vars(engine).get(name, missing) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(engine, name, value)
        yield
    finally:
        for name, value in previous.items():
            if value is missing:
                delattr(engine, name)
            else:
                setattr(engine, name, value)


def collect_files(engine: Engine, folder: Path, tag: str) -> list[CheckpointFile]:
    """This rank's files for `folder`, by reference: valid until the next step. A collective."""
    collector = _SaveCollector(folder, engine.optimizer)
    with _override_attributes(
        engine,
        checkpoint_engine=collector,
        zero_nvme_offload_optimizer=lambda: False,  # else it copies the swap files, which nothing can read back
        _copy_recovery_script=lambda _: None,  # a script in the folder that only reads some of the checkpoints
    ):
        engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
    return collector.files


def load_engine(engine: Engine, folder: Path, tag: str) -> bool:
    """`engine.load_checkpoint`, reading safely; False when DeepSpeed loaded nothing. A collective."""
    on_nvme = nvme_states.uses_nvme(engine.optimizer)
    with (
        _override_attributes(
            engine,
            checkpoint_engine=_SafeLoader(mmap=on_nvme),
            zero_nvme_offload_optimizer=lambda: False,  # else it leaves Adam's state out
            **_zero_override_at_stage_0(engine),
        ),
        nvme_states.patch_load_state_dict(engine.optimizer),
    ):
        path, _ = engine.load_checkpoint(str(folder), tag=tag)
    return path is not None


def _zero_override_at_stage_0(engine: Engine) -> dict[str, Any]:
    """A bf16 pipeline of stage 0 has a sharded optimizer too: DeepSpeed saves its shards, but loads them only where
    `zero_optimization` is true; else data rank 0's state raises a KeyError.
    """
    from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

    return {"zero_optimization": lambda: True} if isinstance(engine.optimizer, BF16_Optimizer) else {}
