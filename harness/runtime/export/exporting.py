"""From a checkpoint to the folder: in a temporary one beside it, which gets its name when all has been checked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.files import parse_json, read_regular, sync_folder
from harness.runtime.checkpoint import HUGGING_FACE, read_manifest
from harness.runtime.export import checking
from harness.runtime.export.content import adapters_alone, merged
from harness.runtime.export.writing import DTYPES, MODEL, SHARD_BYTES, write_shards
from harness.runtime.models.merging import is_adapted
from harness.runtime.refusals import refusal
from harness.runtime.shards import open_checkpoint

ADAPTER = "adapter"
ADAPTER_CONFIG = "adapter_config.json"
_LARGEST = 256 * 2**20
"""Bytes of a JSON file; a `tokenizer.json` may have tens of millions."""
_NAME_CODE = ("config.json", "tokenizer_config.json")
"""Files whose `auto_map` names the classes that `transformers` then imports."""
_ONLY_OF_MODELS = ("config.json", "generation_config.json")


@dataclass(frozen=True, slots=True)
class Options:
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


def export(
    checkpoint: Path,
    out: Path,
    dtype: str | None = None,
    shard_bytes: int = SHARD_BYTES,
    *,
    lora: Literal["merge", "adapter"] = "merge",
    verify: bool = False,
    allow_code: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Write the Hugging Face folder `out`; it appears whole or not at all. For the options see `Options`.

    Raises Refused: CK101, CK105, CK120 and CK131 when the checkpoint cannot be used, CK106 when `out` is there already,
    CK124 to CK127 when it cannot be written or checked as asked, CK128 when the model brings code that nobody allowed.
    """
    options = Options(dtype, shard_bytes, lora, verify, allow_code)
    manifest = read_manifest(checkpoint)
    if not allow_code:
        refuse_code(checkpoint, manifest)
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise refusal("CK106", f"`{out}` exists", fix="name another folder, or remove it")
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        _make(checkpoint, temporary, manifest, options, say)
        if out.exists():
            out.rmdir()
        temporary.replace(out)
    except OSError as error:
        raise refusal(
            "CK126",
            f"`{out}` could not be written: {(error.strerror or str(error)).lower()}",
            fix="make room there, or name another folder",
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(out.parent)
    return out


def _make(checkpoint: Path, folder: Path, manifest: Any, options: Options, say: Callable[[str], None]) -> None:
    chosen = options.dtype or manifest["dtype"]
    weights = open_checkpoint(checkpoint, manifest)
    adapted = is_adapted(weights.shapes)
    if options.lora == "adapter" and not adapted:
        raise refusal(
            "CK127", f"`{checkpoint}` has no LoRA adapters to export alone", fix="export it without `--lora adapter`"
        )
    adapter = _read_json(checkpoint / ADAPTER / ADAPTER_CONFIG) if adapted else {}
    alone = options.lora == "adapter"
    content = adapters_alone(weights, adapter) if alone else merged(weights, adapter)
    checking.refuse_lack_of_room(folder, content, DTYPES[chosen])
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(checkpoint / HUGGING_FACE, folder, ignore=_links)
    model_spec = _model_spec(manifest)
    trusted = options.allow_code and bool(model_spec.get("trust_remote_code"))
    if alone:
        for name in _ONLY_OF_MODELS:
            (folder / name).unlink(missing_ok=True)
        shutil.copy2(checkpoint / ADAPTER / ADAPTER_CONFIG, folder)
        _name_base(folder / ADAPTER_CONFIG, model_spec.get("name_or_path"))
    else:
        _write_config(folder, chosen)
        _copy_code(folder, model_spec)
    stem = "adapter_model" if alone else MODEL
    write_shards(content, folder, DTYPES[chosen], options.shard_bytes, stem=stem, say=say)
    checking.compare_files(folder, content, DTYPES[chosen])
    if not alone:
        checking.compare_with_architecture(folder, content, trusted=trusted)
    if options.verify:
        config = checkpoint / HUGGING_FACE
        checking.compare_logits(folder, weights, alone=alone, adapter=adapter, config=config, trusted=trusted)
        say("checked: the same logits as the checkpoint's")
    for file in folder.rglob("*"):
        if file.is_file():
            _sync(file)
    sync_folder(folder)


def _model_spec(manifest: Any) -> dict[str, Any]:
    return (manifest.get("spec") or {}).get("model") or {}


def _links(folder: str, names: list[str]) -> list[str]:
    """A save writes none: one would bring a file of this machine into the export."""
    return [name for name in names if (Path(folder) / name).is_symlink()]


def refuse_code(checkpoint: Path, manifest: Any) -> None:
    """Raises Refused (CK128) where the manifest asks for the model's own code to be run and there is some. Imports and
    loads nothing.
    """
    if not _model_spec(manifest).get("trust_remote_code"):
        return
    folder = checkpoint / HUGGING_FACE
    brought = [path.name for path in sorted(folder.glob("*.py"))]
    named = [path for path in map(folder.joinpath, _NAME_CODE) if path.exists() and _read_json(path).get("auto_map")]
    brought += [f"the `auto_map` of {path.name}" for path in named]
    if brought:
        raise refusal(
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
        raise refusal(
            "CK125",
            f"the model's own code (`{values[0].partition('.')[0]}.py`) is not in `{source}` any more",
            key="model.name_or_path",
            fix="put the model's folder back, or export where it is",
        )
    for file in files:
        shutil.copy2(file, folder)


def _name_base(path: Path, base: str | None) -> None:
    """`peft` finds the model to put the adapters into by this name."""
    body = _read_json(path)
    if base is not None:
        body["base_model_name_or_path"] = str(Path(base).resolve()) if Path(base).is_dir() else base
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        body = parse_json(read_regular(path, _LARGEST).decode())
    except (OSError, ValueError):
        body = None
    if not isinstance(body, dict):
        raise refusal("CK101", f"`{path}` is missing or cannot be read", fix="name another checkpoint")
    return body


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
