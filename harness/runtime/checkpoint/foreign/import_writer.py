# SPDX-License-Identifier: Apache-2.0
"""Import a save of another program into a checkpoint of ours, in the universal layout: it loads at any degrees.

    checkpoints/step-00000100/manifest.json
                              universal/zero/NAME/fp32.pt ...   each tensor, whole
                              universal/groups.json             the optimizer's groups by name
                              tensors.json                      sha256 of each tensor, source and copy
                              huggingface/                      configuration and tokenizer, where the source has them

One tensor is in memory at a time; the source's shards stay mapped, and its pages are given back after each tensor.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache

from harness.checkpoints.foreign.folder_files import leaves_folder
from harness.checkpoints.foreign.torch_outline import Tensor, read_bytes, read_outline
from harness.checkpoints.latest import LATEST, checkpoint_name
from harness.checkpoints.manifest import UNIVERSAL, FileRecord, write_manifest
from harness.file_io import open_regular, parse_json, read_regular, replace_file
from harness.runtime.checkpoint import HUGGING_FACE
from harness.runtime.checkpoint.consolidate import WEIGHT, FullWeights
from harness.runtime.checkpoint.disk_space import free_bytes
from harness.runtime.checkpoint.foreign.foreign_save import ForeignSave, open_save
from harness.runtime.checkpoint.metadata import package_versions
from harness.runtime.checkpoint.reshard.to_universal import universal_bytes, write_metadata, write_params
from harness.runtime.checkpoint.safe_load import load_file, load_param
from harness.runtime.train_state import DataPosition, TrainState
from harness.runtime.user_errors import user_error
from harness.units import format_bytes

_RANDOM = re.compile(r"(?:rng_state|random_states)(?:_(\d{1,6}))?\.(?:pth|pkl)")
_STEP_KEYS = ("last_epoch", "last_batch_iteration")
_MOMENTS = {"exp_avg", "exp_avg_sq"}
_STATES: dict[str, tuple[set[str], ...]] = {
    "adam": (_MOMENTS,),
    "adamw": (_MOMENTS,),
    "lamb": (_MOMENTS,),
    "lion": ({"exp_avg"}, _MOMENTS),
    "adagrad": ({"sum"}, {"exp_avg_sq"}),
    "sgd": (set(), {"momentum_buffer"}),
    "muon": ({"momentum_buffer"}, {"momentum_buffer"} | _MOMENTS),
}
"""States of each `optimizer.type` of a spec, in the forms that torch and DeepSpeed (0.19.8, 2026-11-28) write:
`grep -n "state\\[" deepspeed/ops/{adagrad,lion,lamb}/*.py`. Without a type those of the source are taken."""
_HF_FILES = (
    "config.json generation_config.json tokenizer.json tokenizer_config.json special_tokens_map.json vocab.json"
    " merges.txt tokenizer.model chat_template.jinja added_tokens.json"
).split()
_MAX_HF_BYTES = 1 << 28


@dataclass(frozen=True)
class ImportRequest:
    """`settings`: the part of the spec that the source states. `position`: where its data go on, as `TrainState` has
    it; `order_seed`: of the Trainer's order of rows, where that is known."""

    tag: Path
    folder: Path
    run: Path
    settings: Mapping[str, Any]
    model: str | None
    global_batch: int | None
    position: tuple[int, int] | None = None
    order_seed: int | None = None
    drop_optimizer_states: bool = False


def import_checkpoint(request: ImportRequest, log: Callable[[str], None]) -> Path:
    """Write the checkpoint; it appears whole or not at all. Returns its folder.

    Raises UserError (CK105, CK111, CK120, CK131 the source; CK106 there is one; CK136 states of another optimizer;
    CK137 a tensor that differs; CK121 no room), and OSError.
    """
    save = open_save(request.tag, with_states=not request.drop_optimizer_states)
    save = replace(save, weights=_with_schedule(_choose_states(save.weights, request), request.folder, save, log))
    final = request.run / "checkpoints" / checkpoint_name(save.step)
    if final.exists():
        raise user_error("CK106", f"`{final}` exists", fix="name another run directory, or remove it")
    temporary = final.with_name(f".tmp-{final.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _check_room(temporary, universal_bytes(save.weights))
        digests = _copy_tensors(save.weights, temporary / UNIVERSAL, log)
        body = _manifest_body(save, request)
        write_metadata(save.weights, temporary / UNIVERSAL, body)  # type: ignore[arg-type]
        (temporary / "tensors.json").write_text(json.dumps(digests, indent=1) + "\n", encoding="utf-8")
        _copy_model_files(request, temporary / HUGGING_FACE, log)
        states, told = read_random_states(request.folder, save.ranks)
        log(told)
        for rank, each in enumerate(states):
            torch.save(each, temporary / f"rank-{rank:05d}.pt")
        files = {
            path.relative_to(temporary).as_posix(): _record(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        write_manifest(temporary, {**body, "name": final.name, "files": files})
        temporary.rename(final)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    replace_file(final.parent / LATEST, final.name + "\n")
    return final


def _choose_states(weights: FullWeights, request: ImportRequest) -> FullWeights:
    """The states that this run's optimizer has; those of another are refused, or dropped. Raises UserError (CK136)."""
    if request.drop_optimizer_states:  # without a state and a count, any optimizer begins as in a new run
        return replace(weights, states=dict.fromkeys(weights.states, (WEIGHT,)), step=None)
    if not weights.states:
        raise user_error(
            "CK136",
            f"`{request.tag}` has weights and no state of an optimizer",
            fix="import with `--drop-optimizer-states`: the optimizer starts anew",
        )
    kind = str((request.settings.get("optimizer") or {}).get("type") or "").lower()
    found = {key for states in weights.states.values() for key in states} - {WEIGHT}
    expected = _STATES.get(kind, (found,))
    if kind == "lion" and any("eps" in group.options for group in weights.groups):
        expected = expected[:1]  # two states beside an epsilon are Adam's
    if found not in expected:
        forms = " or ".join(", ".join(sorted(form)) or "none" for form in expected)
        raise user_error(
            "CK136",
            f"`{request.tag}` has the optimizer states {', '.join(sorted(found)) or 'of none'}, and "
            f"`optimizer.type: {kind}` has {forms}",
            key="optimizer.type",
            fix="name the writer's optimizer in the spec, or import with `--drop-optimizer-states`",
        )
    return weights


def _with_schedule(weights: FullWeights, folder: Path, save: ForeignSave, log: Callable[[str], None]) -> FullWeights:
    """The schedule at the step: the rates of the steps that are left follow from the spec's own schedule."""
    counts = schedule_of(folder, weights.model_states)
    taken = save.step - save.skipped
    if save.ranks > 1 and counts.get("last_epoch") == taken * save.ranks:
        log(f"the writer's schedule counts {save.ranks} steps a step: give `scheduler` its numbers / {save.ranks}")
    state: dict[str, Any] = {"last_epoch": taken, "_step_count": taken + 1}
    if "last_batch_iteration" in counts:
        state["last_batch_iteration"] = counts["last_batch_iteration"]
    return replace(weights, model_states={**weights.model_states, "lr_scheduler": state})


def _copy_tensors(weights: FullWeights, out: Path, log: Callable[[str], None]) -> dict[str, dict[str, str]]:
    """Write each tensor, read it back, and compare its hash with that of the source. Raises UserError (CK137)."""
    digests: dict[str, dict[str, str]] = {}
    told = time.monotonic()
    for done, name in enumerate(weights.shapes, 1):
        write_params(weights, out, [name])
        digests[name] = {}
        for key in weights.states.get(name, (WEIGHT,)):
            source = _digest(weights.get(name, key))
            if source != _digest(load_param(out / "zero" / name / f"{key}.pt")):
                raise user_error("CK137", f"`{key}` of `{name}` was read or written wrong", fix="import it once more")
            digests[name][key] = source
            release_mapped_pages()
        if time.monotonic() - told > 5:
            log(f"{done} of {len(weights.shapes)} parameters")
            told = time.monotonic()
    return digests


def release_mapped_pages() -> None:
    """Give the pages of all mapped `.pt` files back: what was read of the shards counts as held until then."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        span, access, *_ = line.split(maxsplit=5)
        if line.endswith(".pt") and access in ("rw-p", "r--p"):
            start, end = (int(edge, 16) for edge in span.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _digest(tensor: torch.Tensor) -> str:
    """sha256 of format, shape and bytes."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _manifest_body(save: ForeignSave, request: ImportRequest) -> dict[str, Any]:
    batch = request.global_batch or (save.samples // save.step if save.step else None)
    samples = save.samples or save.step * (batch or 0)
    position = DataPosition(*request.position) if request.position else DataPosition(0, samples)
    state = TrainState(save.step, samples, 0, position, predicted_tokens=None, skipped=0)
    identity = hashlib.sha256(f"{request.run.resolve()}\n{time.time_ns()}".encode()).hexdigest()[:12]
    geometry = {"global_batch": batch, "order_seed": request.order_seed}
    return {
        "run": request.run.name,
        "run_id": f"{request.run.name}-{identity}",
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tag": UNIVERSAL,
        "layout": UNIVERSAL,
        "state": state.to_json(),
        "world": save.ranks,
        "zero_stage": save.stage,
        "dtype": save.dtype,
        "shape": {},
        "geometry": {key: value for key, value in geometry.items() if value is not None},
        "versions": package_versions(),
        "spec": dict(request.settings),
        "imported": {
            "from": str(request.folder.resolve()),
            "deepspeed": str(save.weights.model_states["ds_version"]),
            "counts_in_tensor": save.counts_in_tensor,
        },
        "evaluation": {"data": None},
    }


def _copy_model_files(request: ImportRequest, out: Path, log: Callable[[str], None]) -> None:
    """Configuration and tokenizer of the source, else of the spec's model or the adapters' base, where they are."""
    adapter = request.folder / "adapter_config.json"
    models = (request.model, _base_model(adapter))
    folders = [request.folder, *(folder for model in models if (folder := _model_folder(model)) is not None)]
    for name in _HF_FILES:
        file = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if file is not None:
            _copy_file(file, out, log)
    if adapter.is_file():
        _copy_file(adapter, out.parent / "adapter", log)


def _base_model(adapter: Path) -> Any:
    try:
        body = parse_json(read_regular(adapter, _MAX_HF_BYTES))
    except (OSError, ValueError):
        return None
    return body.get("base_model_name_or_path") if isinstance(body, dict) else None


def _model_folder(model: Any) -> Path | None:
    """Where a model lies on this machine: as a folder, or in the cache of the Hub."""
    if not isinstance(model, str) or not model:
        return None
    if Path(model).is_dir():
        return Path(model)
    try:
        config = try_to_load_from_cache(model, "config.json")
    except ValueError:  # no name of a model
        return None
    return Path(config).parent if isinstance(config, str) else None


def _copy_file(file: Path, out: Path, log: Callable[[str], None]) -> None:
    """Not a file that lies elsewhere, and not one that is too large."""
    if leaves_folder(file) or file.stat().st_size > _MAX_HF_BYTES:
        log(f"`{file}` is not copied: it is a link to another folder, or larger than {format_bytes(_MAX_HF_BYTES)}")
        return
    out.mkdir(exist_ok=True)
    with open_regular(Path(os.path.realpath(file)), follow=False) as source, (out / file.name).open("wb") as copy:
        shutil.copyfileobj(source, copy)


def _check_room(folder: Path, size: int) -> None:
    free = free_bytes(folder)
    if free < size:
        raise user_error(
            "CK121", f"the import needs {format_bytes(size)} in `{folder.parent}`, where {format_bytes(free)} are free",
            fix="make room there, or name another run directory",
        )  # fmt: skip


def _record(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    return FileRecord(path.stat().st_size, digest.hexdigest()).to_json()


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
