# SPDX-License-Identifier: Apache-2.0
"""Export a checkpoint to a Hugging Face folder. A temporary folder gets the final name after all checks."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from harness.checkpoints.manifest import Manifest
from harness.file_io import apply_umask, fsync_file, fsync_folder
from harness.progress import VERIFYING_EXPORT
from harness.run.objective_facts import facts_of
from harness.runtime.checkpoint import HUGGING_FACE, read_checked_manifest
from harness.runtime.checkpoint.consolidate import open_checkpoint
from harness.runtime.export import export_checks, model_files, source_parts
from harness.runtime.export.export_tensors import ExportTensors, merge_adapters, select_adapters
from harness.runtime.export.safetensors_writer import DTYPES, MODEL_STEM, SHARD_BYTES, write_shards
from harness.runtime.models.lora_merge import is_adapted
from harness.runtime.models.quantized_base import has_quantized_weights
from harness.runtime.patch_selection import check_usable
from harness.runtime.user_errors import user_error
from harness.scratch_folder import scratch_folder


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export."""

    dtype: str | None = None
    """`float32`, `bfloat16` or `float16`; default: as trained."""
    shard_bytes: int = SHARD_BYTES
    """Size of a file at most; a tensor that is larger has one of its own."""
    lora: Literal["merge", "adapter"] = "merge"
    """Adapters: added into the weights, or alone, as `peft` reads them."""
    verify: bool = False
    """Load the folder with `transformers` and compare its logits with those of the checkpoint."""
    allow_code: bool = False
    """Run Python code that the model brings."""


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    *,
    lora: Literal["merge", "adapter"] = "merge",
    verify: bool = False,
    allow_code: bool = False,
    log: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the Hugging Face folder `out`; it appears whole or not at all. `ExportOptions` describes the options.

    Raises UserError: CK101, CK105, CK120 and CK131 when the checkpoint cannot be used, CK106 when `out` exists, CK124
    to CK127 when it cannot be written or checked with these options, CK128 when the model brings code that nobody
    allowed, EN130 when the classes in DeepSpeed's shards are not the tested ones.
    """
    check_usable("torch-safe-globals")
    options = ExportOptions(dtype, shard_bytes, lora, verify, allow_code)
    manifest = read_checked_manifest(checkpoint)
    if not allow_code:
        model_files.check_model_code(checkpoint, manifest)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise user_error("CK106", f"`{out}` exists", fix="name another folder, or remove it")
    try:
        with scratch_folder(out) as temporary:
            _write_folder(checkpoint, temporary, manifest, options, log)
            temporary.replace(out)  # also over an empty folder, and over no other
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise user_error("CK106", f"`{out}` was made meanwhile", fix="name another folder, or remove it") from None
        raise user_error(
            "CK126",
            f"`{out}` could not be written: {(error.strerror or str(error)).lower()}",
            fix="free space there, or name another folder",
        ) from None
    try:
        fsync_folder(out.parent)
    except OSError as error:  # it is complete
        log(f"the export is complete; its folder could not be flushed: {(error.strerror or str(error)).lower()}")
    return out


def _objective_of(manifest: Manifest) -> str | None:
    """None in a checkpoint from before there were objectives."""
    objective: str | None = (manifest.body.get("spec") or {}).get("objective")
    return objective


def _write_own_module(
    folder: Path, tensors: ExportTensors, dtype: torch.dtype, options: ExportOptions, log: Callable[[str], None]
) -> None:
    """The tensors alone, under the names of the module. `verify` reads the files again, as every export does: only the
    user's code computes with them.
    """
    export_checks.check_free_space(folder, tensors, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    write_shards(tensors, folder, dtype, options.shard_bytes, stem=MODEL_STEM, log=log)
    export_checks.check_files(folder, tensors, dtype)
    if options.verify:
        log("checked: the tensors are the checkpoint's; only your code computes with them: no logits were compared")
    _flush_folder(folder)


def _write_folder(
    checkpoint: Path, folder: Path, manifest: Manifest, options: ExportOptions, log: Callable[[str], None]
) -> None:
    dtype = options.dtype or manifest["dtype"]
    if dtype not in DTYPES:
        message = f"`{checkpoint}` has weights of the type `{dtype}`, which no export has"
        raise user_error("CK127", message, fix=f"`--dtype` with one of {', '.join(DTYPES)}")
    weights = open_checkpoint(checkpoint, manifest.body)
    has_adapters = is_adapted(weights.shapes)
    if options.lora == "adapter" and not has_adapters:
        raise user_error(
            "CK127", f"`{checkpoint}` has no LoRA adapters to export alone", fix="export it without `--lora adapter`"
        )
    if options.lora == "adapter" and facts_of(_objective_of(manifest) or "causal_lm").has_label_head:
        raise user_error(
            "CK127",
            f"`{checkpoint}` has a trained head over labels, which adapters alone would lose",
            fix="export it without `--lora adapter`",
        )
    if options.lora == "merge" and has_quantized_weights(weights.shapes):
        raise user_error(
            "CK127",
            f"`{checkpoint}` has weights in 4 bits, which adapters are not merged into",
            fix="export the adapters alone with `--lora adapter`",
        )
    objective = _objective_of(manifest)
    if objective == "custom":  # a module without a configuration
        _write_own_module(folder, merge_adapters(weights, {}), DTYPES[dtype], options, log)
        return
    adapter = model_files.read_adapter_config(checkpoint) if has_adapters else {}
    adapter_only = options.lora == "adapter"
    tensors = select_adapters(weights, adapter) if adapter_only else merge_adapters(weights, adapter)
    export_checks.check_free_space(folder, tensors, DTYPES[dtype])
    folder.parent.mkdir(parents=True, exist_ok=True)
    model_files.copy_hugging_face_files(manifest, folder)
    model = model_files.model_spec(manifest)
    trust_remote_code = options.allow_code and bool(model.get("trust_remote_code"))
    if adapter_only:
        model_files.write_adapter_config(checkpoint, folder, model.get("name_or_path"))
        exported = source_parts.place_adapters(folder, tensors, model, checkpoint / HUGGING_FACE)
    else:
        model_files.check_layer_count(folder, len(tensors.shapes))
        if trust_remote_code:
            model_files.copy_model_code(folder, model)
        export_checks.check_architecture(folder, tensors, trust_remote_code=trust_remote_code, objective=objective)
        exported = source_parts.add_source_parts(folder, tensors, model, log)
        export_checks.check_free_space(folder, exported, DTYPES[dtype])
        model_files.write_model_config(folder, dtype)
    stem = "adapter_model" if adapter_only else MODEL_STEM
    write_shards(exported, folder, DTYPES[dtype], options.shard_bytes, stem=stem, log=log)
    export_checks.check_files(folder, exported, DTYPES[dtype])
    if options.verify:
        log(VERIFYING_EXPORT)
        export_checks.compare_logits(
            folder,
            weights,
            adapter_only=adapter_only,
            adapter=adapter,
            config=checkpoint / HUGGING_FACE,
            trust_remote_code=trust_remote_code,
            objective=objective,
        )
        log("checked: the same logits as the checkpoint's")
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    apply_umask(folder)  # safetensors' files are for their owner alone
    for file in folder.rglob("*"):
        if file.is_file():
            fsync_file(file)
    fsync_folder(folder)
