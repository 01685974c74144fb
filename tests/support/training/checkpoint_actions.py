# SPDX-License-Identifier: Apache-2.0
"""Actions on a run for `jobs/checkpoint_cases.py`: all ranks call every method."""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from harness.checkpoints import latest, manifest
from harness.checkpoints.store_source import SOURCE_FILE, StoreSource, find_stored_checkpoint
from harness.errors import UserError
from harness.object_stores import object_store, silence_limit
from harness.runtime import checkpoint
from harness.runtime.checkpoint import commit, disk_space, saver
from harness.runtime.distributed import Distributed
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.train import train
from harness.runtime.train_context import build_context
from harness.runtime.train_state import TrainState
from harness.runtime.worker import _load_run_config_on_all_ranks, _set_log_levels
from tests.support.training.runtime_settings import spec


class Actions:
    """One case: run directories below `folder`, an engine at a time."""

    def __init__(self, ranks: Distributed, folder: Path, model: Path, case: dict[str, Any]) -> None:
        self.ranks, self.folder, self.model, self.case = ranks, folder, model, case
        self.job: Any = None
        self.saver: Any = None
        if ranks.is_main_process:
            folder.mkdir(parents=True)
        ranks.barrier()

    def make(self, name: str, settings: dict[str, Any] | None = None) -> None:
        """A run directory with the case's settings and these on top."""
        if self.ranks.is_main_process:
            write(self.folder / name, self.case["case"], self.model, self.case.get("settings"), settings)
        self.ranks.barrier()

    def train(self, name: str, resume: str | None = None, allowed: list[str] | None = None) -> dict[str, Any]:
        """Train to the end; resume from a folder below the case's. {"losses", "digest"} or {"refused"}."""
        self.build(name)
        try:
            state = train(self.job, self.folder / resume if resume else None, allowed or [])
        except UserError as refused:
            return {"refused": [[f.gate, f.message] for f in refused.findings]}
        lines = [json.loads(line) for line in (self.job.run_dir.metrics).read_text().splitlines()]
        losses = {line["step"]: line["loss"].hex() for line in lines if line["type"] == "step"}
        norms = {line["step"]: line.get("grad_norm") for line in lines if line["type"] == "step"}
        return {"step": state.step, "losses": losses, "norms": norms, "digest": self.digest()}

    def build(self, name: str) -> None:
        """The engine of a run directory; the one before it is given up."""
        self.close()
        run_dir = RunDir(self.folder / name)
        orders = _load_run_config_on_all_ranks(run_dir, self.ranks)
        _set_log_levels("error")
        self.job = build_context(orders, run_dir, self.ranks, RankStatusWriter(run_dir, self.ranks.rank))

    def damage(self, checkpoint: str, fault: str) -> None:
        """A copy of a checkpoint at the same place below FAULT/, damaged."""
        if self.ranks.is_main_process:
            copy = self.folder / fault / Path(checkpoint).name
            shutil.copytree(self.folder / checkpoint, copy)
            damage(copy, fault, self.folder / "marker")
        self.ranks.barrier()

    def resume(self, name: str) -> list[Any]:
        """What a restore from the one checkpoint in NAME/ was refused for, on each rank."""
        try:
            checkpoint.restore_checkpoint(self.job, next((self.folder / name).iterdir()))
        except UserError as refused:
            return self.ranks.all_gather_object([[f.gate, f.message] for f in refused.findings])
        return self.ranks.all_gather_object([])

    def block(self, path: str) -> None:
        """A file where a save wants a folder, in a folder that nothing can be made in."""
        target = self.folder / path
        if self.ranks.is_main_process:
            target.parent.mkdir(parents=True)
        BLOCKED.add(str(target))
        self.ranks.barrier()

    def save_on(self, disk: str, kib: int | None, look: bool) -> dict[str, Any]:
        """Save the next step on a disk with so much room left (None: enough). `look`: as ever, before writing."""
        folder = Path(disk)
        filler = folder / "filler"
        if self.ranks.is_main_process:
            subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
            filler.unlink(missing_ok=True)
            if kib is not None:
                filler.write_bytes(b"x" * max(0, shutil.disk_usage(folder).free - kib * 1024))
        self.ranks.barrier()
        if self.saver is None:
            settings = self.job.run_config.run.spec.checkpoint
            self.saver = checkpoint.CheckpointSaver.open(self.job.run_dir, self.ranks, settings)
        self.saver.run_dir = RunDir(folder)
        step = 1 + len(latest.list_complete_manifests(folder / "checkpoints"))
        self.ranks.barrier()
        free = disk_space.free_bytes
        disk_space.free_bytes = free if look else lambda _: 1 << 50
        try:
            outcomes = self.saver.save(self.job, TrainState(step=step), background=False)
        finally:
            disk_space.free_bytes = free
        made = folder / "checkpoints"
        return {
            "errors": [o.error.message for o in outcomes if o.error],
            "complete": [m.folder.name for m in latest.list_complete_manifests(made)],
            "latest": (made / "latest").read_text(),
            "left": [p.name for p in made.iterdir() if p.name.startswith(".")],
        }

    def use_store(self, variables: dict[str, str]) -> None:
        """From now on the object store of these variables is reached, without long waits between attempts and for
        answers.
        """
        os.environ.update(variables)
        object_store.FIRST_WAIT_SECONDS = 0.01
        importlib.import_module("s3fs")  # seconds on busy cores, which would count as silence
        silence_limit.SILENT_SECONDS = 3.0

    def resume_stored(self, name: str, url: str) -> dict[str, Any]:
        """Train from the newest checkpoint below a prefix of a store, as a launch would; no other folder has it."""

        def choose() -> None:
            if self.ranks.is_main_process:
                source = find_stored_checkpoint(url)[0]
                (self.folder / name / SOURCE_FILE).write_text(source.to_text())

        try:
            self.ranks.call_or_fail_everywhere(choose)
        except UserError as refused:
            return {"refused": [[f.gate, f.message] for f in refused.findings]}
        step = StoreSource.read(self.folder / name)
        assert step is not None
        return self.train(name, f"{name}/checkpoints/{step.folder_name}") | {"from": step.step}

    def digest(self) -> list[str]:
        """sha256 of every rank's weights, master weights, optimizer states and their steps, by rank."""
        return self.ranks.all_gather_object(digest(self.job.engine))

    def close(self) -> None:
        """Give up the engine."""
        if self.job is not None:
            self.job.metrics.close()
            self.job.engine.destroy()
            self.job = self.saver = None


BLOCKED: set[str] = set()


def blocked(folder: Path, make: Any = commit.create_empty_folder) -> None:
    """The first time, storage that is gone."""
    if str(folder) in BLOCKED:
        BLOCKED.discard(str(folder))
        raise OSError(errno.EROFS, "Read-only file system")
    make(folder)


saver.create_empty_folder = blocked  # type: ignore[attr-defined]


def damage(folder: Path, fault: str, marker: Path) -> None:
    """One fault."""
    first, second = sorted(folder.rglob("*optim_states.pt"))[:2]
    manifest_file = folder / manifest.MANIFEST
    if fault == "truncate":
        first.write_bytes(first.read_bytes()[:-1])
    elif fault == "flip":
        content = bytearray(first.read_bytes())
        content[len(content) // 2] ^= 1
        first.write_bytes(content)
    elif fault == "delete":
        first.unlink()
    elif fault == "empty":
        first.write_bytes(b"")
    elif fault == "swap":
        content_of_first = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(content_of_first)
    elif fault == "manifest-missing":
        manifest_file.unlink()
    elif fault == "manifest-edited":
        manifest_file.write_text(manifest_file.read_text().replace('"step": 2', '"step": 3', 1))
    elif fault == "pickle":  # by somebody who can write a manifest as well
        torch.save({"optimizer_state_dict": Evil(marker)}, first)
        body = json.loads(manifest_file.read_text())
        name = first.relative_to(folder).as_posix()
        body["files"][name]["bytes"] = first.stat().st_size
        body["files"][name]["sha256"] = hashlib.sha256(first.read_bytes()).hexdigest()
        manifest.write_manifest(folder, body)


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.marker,)


def write(folder: Path, case: str, model: Path, *settings: dict[str, Any] | None) -> None:
    """A run directory of a case of `runtime_settings`, with sections on top."""
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec

    whole = spec(case, model)
    for sections in settings:
        for name, fields in (sections or {}).items():
            whole[name] = {**whole.get(name, {}), **fields} if isinstance(fields, dict) else fields
    run = resolve_run(RunSpec.model_validate_json(json.dumps(whole)), world_size=2)
    folder.mkdir(parents=True)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(json.dumps(dict(render_ds_config(run).config)))


def digest(engine: Any) -> str:
    """Of everything that a step changes on this rank."""
    sha = hashlib.sha256()
    for tensor in _tensors(engine):
        sha.update(tensor.detach().contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return sha.hexdigest()


def _tensors(engine: Any) -> list[torch.Tensor]:
    found = [p.detach().reshape(-1) for p in engine.module.parameters()]
    found += [p.ds_tensor.detach().reshape(-1) for p in engine.module.parameters() if hasattr(p, "ds_tensor")]
    optimizer = engine.optimizer
    if getattr(optimizer, "swap_optimizer", False):
        from harness.runtime.checkpoint import nvme_states

        found += list(nvme_states._map_swap_files(optimizer).values())
    for state in engine.basic_optimizer.state.values():
        for key in sorted(state):
            value = state[key]
            found.append(
                value.detach().reshape(-1) if isinstance(value, torch.Tensor) else torch.tensor([float(value)])
            )
    return [f if f.numel() else torch.zeros(1) for f in found]
