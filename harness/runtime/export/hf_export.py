"""From a checkpoint to the folder: in a temporary one beside it, which gets its name when all has been checked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.file_io import fsync_folder, parse_json, read_regular
from harness.runtime.checkpoint import HUGGING_FACE, read_checked_manifest
from harness.runtime.checkpoint.consolidate import open_checkpoint
from harness.runtime.export import export_checks
from harness.runtime.export.export_tensors import merge_adapters, select_adapters
from harness.runtime.export.safetensors_writer import DTYPES, MODEL_STEM, SHARD_BYTES, write_shards
from harness.runtime.models.lora_merge import is_adapted
from harness.runtime.user_errors import user_error

ADAPTER = "adapter"
ADAPTER_CONFIG = "adapter_config.json"
_MAX_JSON_BYTES = 256 * 2**20
"""Bytes of a JSON file; a `tokenizer.json` may have tens of millions."""
_CODE_CONFIGS = ("config.json", "tokenizer_config.json")
"""Files whose `auto_map` names the classes that `transformers` then imports."""
_MODEL_ONLY_FILES = ("config.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How to export."""

    dtype: str | None = None
    """`float32`, `bfloat16` or `float16`; default: as trained."""
    shard_bytes: int = SHARD_BYTES
    """Size of a file at most; a tensor that is larger has one of its own."""
    lora: Literal["merge", "adapter"] = "merge"
    """Adapters: added into the weights, or alone, as `peft` reads them."""
    verify: bool = False
    """Load the folder with `transformers` and compare its logits with those of the checkpoint."""
    allow_code: bool = False
    """Python code that the model brings may be run."""


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
    """Write the Hugging Face folder `out`; it appears whole or not at all. For the options see `Options`.

    Raises Refused: CK101, CK105, CK120 and CK131 when the checkpoint cannot be used, CK106 when `out` is there already,
    CK124 to CK127 when it cannot be written or checked as asked, CK128 when the model brings code that nobody allowed.
    """
    options = ExportOptions(dtype, shard_bytes, lora, verify, allow_code)
    manifest = read_checked_manifest(checkpoint)
    if not allow_code:
        check_model_code(checkpoint, manifest)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise user_error("CK106", f"`{out}` exists", fix="name another folder, or remove it")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _write_folder(checkpoint, temporary, manifest, options, log)
        if out.exists():
            out.rmdir()
        temporary.replace(out)
    except OSError as error:
        raise user_error(
            "CK126",
            f"`{out}` could not be written: {(error.strerror or str(error)).lower()}",
            fix="make room there, or name another folder",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_folder(out.parent)
    return out


def _write_folder(
    checkpoint: Path, folder: Path, manifest: Any, options: ExportOptions, say: Callable[[str], None]
) -> None:
    chosen = options.dtype or manifest["dtype"]
    weights = open_checkpoint(checkpoint, manifest)
    adapted = is_adapted(weights.shapes)
    if options.lora == "adapter" and not adapted:
        raise user_error(
            "CK127", f"`{checkpoint}` has no LoRA adapters to export alone", fix="export it without `--lora adapter`"
        )
    adapter = _read_json(checkpoint / ADAPTER / ADAPTER_CONFIG) if adapted else {}
    alone = options.lora == "adapter"
    content = select_adapters(weights, adapter) if alone else merge_adapters(weights, adapter)
    export_checks.check_free_space(folder, content, DTYPES[chosen])
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint / HUGGING_FACE, folder, ignore=_ignore_links)
    model_spec = _model_spec(manifest)
    trusted = options.allow_code and bool(model_spec.get("trust_remote_code"))
    if alone:
        for name in _MODEL_ONLY_FILES:
            (folder / name).unlink(missing_ok=True)
        shutil.copy2(checkpoint / ADAPTER / ADAPTER_CONFIG, folder)
        _set_base_model(folder / ADAPTER_CONFIG, model_spec.get("name_or_path"))
    else:
        _write_config(folder, chosen)
        _copy_code(folder, model_spec)
    stem = "adapter_model" if alone else MODEL_STEM
    write_shards(content, folder, DTYPES[chosen], options.shard_bytes, stem=stem, log=say)
    export_checks.check_files(folder, content, DTYPES[chosen])
    if not alone:
        export_checks.check_architecture(folder, content, trust_remote_code=trusted)
    if options.verify:
        config = checkpoint / HUGGING_FACE
        export_checks.compare_logits(
            folder, weights, adapter_only=alone, adapter=adapter, config=config, trust_remote_code=trusted
        )
        say("checked: the same logits as the checkpoint's")
    for file in folder.rglob("*"):
        if file.is_file():
            _fsync_file(file)
    fsync_folder(folder)


def _model_spec(manifest: Any) -> dict[str, Any]:
    return (manifest.get("spec") or {}).get("model") or {}


def _ignore_links(folder: str, names: list[str]) -> list[str]:
    """A save writes none: one would bring a file of this machine into the export."""
    return [name for name in names if (Path(folder) / name).is_symlink()]


def check_model_code(checkpoint: Path, manifest: Any) -> None:
    """Raises Refused (CK128) where the manifest asks for the model's own code to be run and there is some. Imports and
    loads nothing.
    """
    if not _model_spec(manifest).get("trust_remote_code"):
        return
    folder = checkpoint / HUGGING_FACE
    brought = [path.name for path in sorted(folder.glob("*.py"))]
    named = [path for path in map(folder.joinpath, _CODE_CONFIGS) if path.exists() and _read_json(path).get("auto_map")]
    brought += [f"the `auto_map` of {path.name}" for path in named]
    if brought:
        raise user_error(
            "CK128",
            f"the model of `{checkpoint}` brings Python code, and nobody allowed to run it: {', '.join(brought[:4])}",
            key="model.trust_remote_code",
            notes=("transformers would import it here, with all rights that you have",),
            fix="read that code, then export with `--allow-local-code`",
        )


def _write_config(folder: Path, dtype: str) -> None:
    """Training has switched the key-value cache off, and the number format is that of the export.

    The file itself is edited: loading it as a configuration would run the code of a model that brings its own.
    """
    path = folder / "config.json"
    body = _read_json(path)
    body |= {"dtype": dtype, "use_cache": True}
    body.pop("torch_dtype", None)
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _copy_code(folder: Path, model_spec: dict[str, Any]) -> None:
    """Python files of a model that brings its own; those of the Hub are named in the configuration by repository."""
    named = _read_json(folder / "config.json").get("auto_map") or {}
    values = [v for value in named.values() for v in (value if isinstance(value, list) else [value]) if v]
    source = Path(str(model_spec.get("name_or_path") or ""))
    if all("--" in value for value in values):
        return
    files = sorted(source.glob("*.py")) if source.is_dir() else []
    if not files and not list(folder.glob("*.py")):
        raise user_error(
            "CK125",
            f"the model's own code (`{values[0].partition('.')[0]}.py`) is not in `{source}` any more",
            key="model.name_or_path",
            fix="put the model's folder back, or export where it is",
        )
    for file in files:
        shutil.copy2(file, folder)


def _set_base_model(path: Path, base: str | None) -> None:
    """`peft` finds the model to put the adapters into by this name."""
    body = _read_json(path)
    if base is not None:
        body["base_model_name_or_path"] = str(Path(base).resolve()) if Path(base).is_dir() else base
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        body = parse_json(read_regular(path, _MAX_JSON_BYTES).decode())
    except (OSError, ValueError):
        body = None
    if not isinstance(body, dict):
        raise user_error("CK101", f"`{path}` is missing or cannot be read", fix="name another checkpoint")
    return body


def _fsync_file(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
