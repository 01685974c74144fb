# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of ours for another program: DeepSpeed's shards, its universal layout, or a folder of the Trainer's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.checkpoints.manifest import UNIVERSAL, Manifest
from harness.runtime.checkpoint import read_checked_manifest
from harness.runtime.checkpoint.consolidate import FullWeights, open_checkpoint, rename_weights
from harness.runtime.checkpoint.disk_space import free_bytes
from harness.runtime.checkpoint.reshard.to_universal import universal_bytes, write_metadata, write_params
from harness.runtime.checkpoint.safe_load import load_file
from harness.runtime.export.hf_export import export_checkpoint
from harness.runtime.models.lora_merge import PEFT_PREFIX, is_adapted
from harness.runtime.user_errors import user_error
from harness.scratch_folder import scratch_folder
from harness.units import format_bytes

_SETTING = '`"checkpoint": {"load_universal": true}` in the DeepSpeed JSON'


def convert_checkpoint(checkpoint: Path, out: Path, to: str, log: Callable[[str], None]) -> str:
    """Write the folder `out`, whole or not at all; returns the line to print. Raises UserError, OSError."""
    manifest = read_checked_manifest(checkpoint)
    with scratch_folder(out) as temporary:
        if to == "trainer":
            text = _write_trainer(checkpoint, manifest, temporary, log)
        else:
            text = (_write_deepspeed if to == "deepspeed" else _write_universal)(checkpoint, manifest, temporary)
        temporary.replace(out)
    return f"wrote {out}: {text}"


def _write_deepspeed(checkpoint: Path, manifest: Manifest, out: Path) -> str:
    if manifest.get("layout") == "per-host":
        raise user_error(
            "CK122",
            f"`{checkpoint}` lies on the disks of its hosts, of which this is one",
            fix="bring the shards of all hosts into one folder, or download it from its store",
        )
    if manifest.get("layout") == UNIVERSAL:
        raise user_error(
            "CK131",
            f"`{checkpoint}` is imported and has no shards of DeepSpeed's",
            fix="convert it with `--to universal`, or convert a checkpoint that this run has saved",
        )
    _check_room(out, manifest.bytes)
    out.mkdir(parents=True)
    shutil.copytree(checkpoint / manifest.tag, out / manifest.tag)
    (out / "latest").write_text(manifest.tag, encoding="utf-8")
    return f"engine.load_checkpoint takes it, on {manifest.world_size} ranks at ZeRO stage {manifest.zero_stage}"


def _write_universal(checkpoint: Path, manifest: Manifest, out: Path) -> str:
    out.mkdir(parents=True)
    _add_universal(checkpoint, manifest, out)
    return f"a loop of DeepSpeed takes it on any ranks with {_SETTING}"


def _add_universal(checkpoint: Path, manifest: Manifest, out: Path) -> None:
    weights = _with_names_of_peft(open_checkpoint(checkpoint, manifest.body))
    _check_room(out, universal_bytes(weights))
    state = _schedule_state(manifest)
    weights = replace(weights, model_states={**weights.model_states, "lr_scheduler": state})
    optimizer = str((manifest.get("optimizer") or {}).get("type"))
    if weights.step is not None and (
        (manifest.get("imported") or {}).get("counts_in_tensor") or hasattr(torch.optim, optimizer)
    ):
        counted: Any = torch.tensor(float(weights.step))  # as torch's own optimizers want it
        weights = replace(weights, step=counted)
    name = f"global_step{manifest.step}_universal"
    write_params(weights, out / name, list(weights.shapes))
    write_metadata(weights, out / name, manifest)
    (out / "latest_universal").write_text(name, encoding="utf-8")


def _with_names_of_peft(weights: FullWeights) -> FullWeights:
    """Adapters and all else under the names of `get_peft_model`, whose prefix a run of the harness does not have."""
    return rename_weights(weights, lambda name: PEFT_PREFIX + name) if is_adapted(weights.shapes) else weights


def _schedule_state(manifest: Manifest) -> dict[str, Any]:
    """A state that torch's LambdaLR of any number of groups takes: its place, and no rate."""
    return {"last_epoch": manifest.step, "_step_count": manifest.step + 1, "lr_lambdas": []}


def _write_trainer(checkpoint: Path, manifest: Manifest, out: Path, log: Callable[[str], None]) -> str:
    has_adapters = is_adapted(open_checkpoint(checkpoint, manifest.body).shapes)
    export_checkpoint(checkpoint, out, lora="adapter" if has_adapters else "merge", log=log)
    _add_universal(checkpoint, manifest, out)
    torch.save(_schedule_state(manifest), out / "scheduler.pt")
    _write_random_states(checkpoint, manifest, out)
    spec = manifest.get("spec") or {}
    batch = (manifest.get("geometry") or {}).get("micro_batch")
    batch = batch or (spec.get("train") or {}).get("per_device_train_batch_size")
    state: dict[str, Any] = {
        "global_step": manifest.step,
        "max_steps": manifest.get("total_steps") or 0,
        "epoch": float(manifest["state"]["position"]["epoch"]),
        "train_batch_size": batch or 1,  # the Trainer compares it with its own, and warns
        "log_history": [],
        "stateful_callbacks": {"TrainerControl": {"args": {}, "attributes": {}}},
        "is_local_process_zero": True,
        "is_world_process_zero": True,
    }
    for section, key in (("logging", "logging_steps"), ("checkpoint", "save_steps"), ("eval", "eval_steps")):
        value = (spec.get(section) or {}).get(key)  # the Trainer takes these from here, not from its own arguments
        state |= {key: value} if isinstance(value, int) else {}
    (out / "trainer_state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    return f"Trainer.train(resume_from_checkpoint=...) takes it on any ranks with {_SETTING}"


def _write_random_states(checkpoint: Path, manifest: Manifest, out: Path) -> None:
    """Those of each rank as the Trainer reads them, on as many ranks."""
    ranks = manifest.world_size
    for rank in range(ranks):
        file = f"rank-{rank:05d}.pt"
        if file not in manifest.files:
            continue
        states = load_file(checkpoint / file)
        kind, keys, *rest = states["numpy"]
        numpy = (kind, np.asarray(keys, dtype=np.uint32), *rest)
        written = {"python": states["python"], "numpy": numpy, "cpu": states["torch"]}
        if "accelerator" in states:  # of each device that the rank sees; it uses one
            written["cuda"] = [states["accelerator"]] * ranks if ranks > 1 else states["accelerator"]
        torch.save(written, out / (f"rng_state_{rank}.pth" if ranks > 1 else "rng_state.pth"))


def _check_room(out: Path, size: int) -> None:
    existing = next(folder for folder in (out, *out.parents) if folder.is_dir())
    free = free_bytes(existing)
    if free < size:
        raise user_error(
            "CK121", f"the conversion needs {format_bytes(size)}, and {format_bytes(free)} are free at `{existing}`",
            fix="make room there, or name another folder",
        )  # fmt: skip
