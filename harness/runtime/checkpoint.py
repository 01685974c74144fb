"""Checkpoints: DeepSpeed's shards, each rank's random states and our manifest, committed by one rename.

    checkpoints/step-00000100/manifest.json      written last; what is listed there is there
                              global_step100/    DeepSpeed's tag folder
                              rank-00000.pt      random states of a rank
                              huggingface/       config.json, generation_config.json, tokenizer: what an export needs
    checkpoints/latest                           the name of the newest complete one

A folder without a manifest, or with another name, is not a checkpoint. Export is in `export.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from deepspeed.accelerator import get_accelerator

from harness.runtime.ranks import Ranks
from harness.runtime.refusals import refusal
from harness.runtime.replay import replay_adam
from harness.runtime.rundir import RunDir, sync_folder, write_atomically
from harness.runtime.state import State

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
HUGGING_FACE = "huggingface"


class Trained(Protocol):
    """What of a job is saved. `facts` goes into the manifest: the sha256 of the run's files and of its data."""

    engine: Any
    tokenizer: Any
    run_dir: RunDir
    ranks: Ranks
    facts: dict[str, Any]


def save(job: Trained, state: State) -> Path:
    """Write `checkpoints/step-NNNNNNNN` and return it once it is complete. A collective: every rank calls it.

    An error on any rank leaves earlier checkpoints and `latest` as they were.
    """
    engine, ranks, run_dir = job.engine, job.ranks, job.run_dir
    # transformers notes the class only in its own `save_pretrained`; servers look for it.
    engine.module.config.architectures = [type(engine.module).__name__]
    name = f"step-{state.step:08d}"
    temporary, final = run_dir.checkpoints / f".tmp-{name}", run_dir.checkpoints / name
    if ranks.is_first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    ranks.barrier()
    tag = f"global_step{state.step}"
    engine.save_checkpoint(str(temporary), tag=tag, save_latest=False)
    torch.save(_random_states(), temporary / f"rank-{ranks.rank:05d}.pt")
    if ranks.is_first:
        engine.module.config.save_pretrained(temporary / HUGGING_FACE)
        if engine.module.can_generate():
            engine.module.generation_config.save_pretrained(temporary / HUGGING_FACE)
        job.tokenizer.save_pretrained(temporary / HUGGING_FACE)
    ranks.barrier()
    if ranks.is_first_here:
        _sync_all(temporary)
    ranks.barrier()
    if ranks.is_first:
        manifest = {
            "format_version": FORMAT_VERSION,
            "state": state.to_json(),
            "tag": tag,
            "world": ranks.world,
            "zero_stage": engine.zero_optimization_stage(),
            "dtype": str(next(engine.module.parameters()).dtype).removeprefix("torch."),
            **job.facts,
            "versions": {p: version(p) for p in ("deepspeed", "torch", "transformers")},
            "files": {
                str(p.relative_to(temporary)): p.stat().st_size for p in sorted(temporary.rglob("*")) if p.is_file()
            },
        }
        write_atomically(temporary / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        if final.exists():  # an older run of this step, which a resume from before it has overtaken
            shutil.rmtree(final)
        temporary.replace(final)
        write_atomically(run_dir.checkpoints / "latest", name + "\n")
    ranks.barrier()
    return final


def prune(run_dir: RunDir, keep: int | None) -> None:
    """Remove the oldest complete checkpoints until `keep` are left. To be called on one rank, after `save`."""
    complete = sorted(p.parent for p in run_dir.checkpoints.glob(f"step-*/{MANIFEST}"))
    for old in complete[:-keep] if keep else ():
        shutil.rmtree(old, ignore_errors=True)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, after a look at every file that it lists. Raises Refused (CK101) naming the first
    that is missing or of another size.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise refusal(
            "CK101", f"`{folder}` is not a complete checkpoint: it has no `{MANIFEST}`", fix="name another checkpoint"
        ) from None
    if manifest.get("format_version") != FORMAT_VERSION:
        raise refusal(
            "CK101", f"`{folder}` has format_version {manifest.get('format_version')}, should be {FORMAT_VERSION}"
        )
    for name, size in manifest["files"].items():
        file = folder / name
        if not file.is_file():
            raise refusal("CK101", f"`{folder}` is not complete: `{name}` is missing", fix="name another checkpoint")
        if file.stat().st_size != size:
            found = file.stat().st_size
            raise refusal(
                "CK101",
                f"`{folder}` is damaged: `{name}` has {found} bytes, should have {size}",
                fix="name another checkpoint",
            )
    return manifest


def restore(job: Trained, folder: Path) -> State:
    """Put engine, optimizer, schedule and random states back as they were when `folder` was saved. A collective.

    Raises Refused on all ranks (CK101 damaged, CK102 another shape of run, CK103 other data, CK104 nothing loaded,
    CK107 settings that must not change).
    """
    engine, ranks = job.engine, job.ranks
    manifest = ranks.together(lambda: _check_fits(job, folder, read_manifest(folder)))
    loaded, _ = engine.load_checkpoint(str(folder), tag=manifest["tag"])
    if ranks.any(loaded is None):
        raise refusal("CK104", f"DeepSpeed loaded nothing from `{folder}`", fix="name another checkpoint")
    replay_adam(engine)
    _set_random_states(torch.load(folder / f"rank-{ranks.rank:05d}.pt", weights_only=True))
    return State.from_json(manifest["state"])


def _check_fits(job: Trained, folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest, if this run can go on from it."""
    now = {
        "world": job.ranks.world,
        "zero_stage": job.engine.zero_optimization_stage(),
        "dtype": str(next(job.engine.module.parameters()).dtype).removeprefix("torch."),
    }
    names = {"world": "ranks", "zero_stage": "ZeRO stage", "dtype": "weights in"}
    for key, value in now.items():
        if manifest[key] != value:
            raise refusal(
                "CK102",
                f"`{folder}` was saved with {names[key]} {manifest[key]}, this run has {names[key]} {value}",
                notes=(
                    "DeepSpeed cannot load its own shards into another number of ranks, stage 1 to 3, or number format",
                ),
                fix=f"resume with {names[key]} {manifest[key]}",
            )
    if manifest["data_sha256"] != job.facts["data_sha256"]:
        raise refusal(
            "CK103",
            f"`{folder}` was trained on other text than this run, so that its place in it means nothing here",
            key="data.train",
            fix="give the same files and tokenizer, or start from that run's export with `model.name_or_path`",
        )
    _check_continuity(folder, manifest["continuity"], job.facts["continuity"])
    return manifest


def _check_continuity(folder: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """What must not change between save and resume: DeepSpeed takes optimizer settings from the checkpoint in silence,
    and a place in the data means nothing in another order.
    """
    saved, now = json.loads(json.dumps(saved)), json.loads(json.dumps(now))
    changed = [key for key in now if saved.get(key) != now[key]]
    if changed:
        key = changed[0]
        raise refusal(
            "CK107",
            f"`{folder}` was trained with `{key}` {saved.get(key)}, this run has {now[key]}",
            key=key,
            notes=(f"changed since: {', '.join(f'`{k}`' for k in changed)}",) if len(changed) > 1 else (),
            fix=f"set `{key}` back, or start from that run's export with `model.name_or_path`",
        )


def _random_states() -> dict[str, Any]:
    """Of Python, numpy, torch and the accelerator, as plain values and tensors (loadable without pickled code)."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    states = {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    accelerator = get_accelerator()
    if accelerator.device_name() != "cpu":
        states["accelerator"] = accelerator.get_rng_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    version_number, words, gauss_next = states["python"]
    random.setstate((version_number, tuple(words), gauss_next))
    kind, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(states["torch"])
    if "accelerator" in states:
        get_accelerator().set_rng_state(states["accelerator"])


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        sync_folder(path)
