# SPDX-License-Identifier: Apache-2.0
"""The small files of an exported model: configuration, the model's own Python code, adapter configuration."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from harness.checkpoints.manifest import Manifest
from harness.file_io import open_regular, parse_json, read_regular
from harness.runtime.checkpoint import HUGGING_FACE
from harness.runtime.user_errors import user_error

ADAPTER = "adapter"
ADAPTER_CONFIG = "adapter_config.json"
_MAX_JSON_BYTES = 256 * 2**20
"""Bytes of a JSON file; a `tokenizer.json` may have tens of millions."""
_CODE_CONFIGS = ("config.json", "tokenizer_config.json")
"""Files whose `auto_map` names the classes that `transformers` then imports."""
_MAX_LAYERS = 4096
"""Layers, and experts of a layer, of any model; `transformers` builds as many in seconds."""
_LAYER_KEYS = frozenset(
    "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers"
    " num_nextn_predict_layers num_experts num_local_experts n_routed_experts n_shared_experts".split()
)
_MODEL_ONLY_FILES = ("config.json", "generation_config.json")


def check_model_code(checkpoint: Path, manifest: Manifest) -> None:
    """Raises UserError (CK128) where the manifest asks to run the model's own code and the checkpoint holds some.
    Imports and loads nothing.
    """
    if not model_spec(manifest).get("trust_remote_code"):
        return
    folder = checkpoint / HUGGING_FACE
    code = [path.name for path in sorted(folder.glob("*.py"))]
    configs = [
        path for path in map(folder.joinpath, _CODE_CONFIGS) if path.exists() and read_json(path).get("auto_map")
    ]
    code += [f"the `auto_map` of {path.name}" for path in configs]
    if code:
        raise user_error(
            "CK128",
            f"the model of `{checkpoint}` has Python code, and running it was not allowed: {', '.join(code[:4])}",
            key="model.trust_remote_code",
            notes=("transformers would import it, with all your rights",),
            fix="read that code, then export with `--allow-local-code`",
        )


def model_spec(manifest: Manifest) -> dict[str, Any]:
    """The `model` section of the run spec in a manifest; empty if there is none."""
    return (manifest.get("spec") or {}).get("model") or {}


def copy_hugging_face_files(manifest: Manifest, folder: Path) -> None:
    """Create `folder` with the Hugging Face files that the manifest lists: through a link, another file of this machine
    would get into the export. Raises OSError.
    """
    folder.mkdir()
    for name in manifest.local_files:
        if name.startswith(f"{HUGGING_FACE}/"):
            target = folder / name.removeprefix(f"{HUGGING_FACE}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            with open_regular(manifest.folder / name, follow=False) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)


def check_layer_count(folder: Path, num_tensors: int) -> None:
    """Raises UserError (CK125) where `config.json` has far more layers or experts than the checkpoint has tensors:
    building the model would not end.
    """
    limit = max(_MAX_LAYERS, num_tensors)
    pending: list[Any] = [read_json(folder / "config.json")]
    while pending:
        value = pending.pop()
        for key, child in value.items() if isinstance(value, dict) else ():
            if key in _LAYER_KEYS and isinstance(child, int | float) and child > limit:
                raise user_error(
                    "CK125",
                    f"the configuration of the checkpoint has `{key}` {child:,}, for {num_tensors:,} tensors",
                    notes=("the harness removed the partial export",),
                    fix="name another checkpoint",
                )
            pending.append(child)


def write_model_config(folder: Path, dtype: str) -> None:
    """Set the dtype of the export in `config.json`, and the key-value cache, which training has switched off.

    It edits the file itself: loading it as a configuration would run the code of a model that brings its own.
    """
    path = folder / "config.json"
    body = read_json(path)
    body |= {"dtype": dtype, "use_cache": True}
    body.pop("torch_dtype", None)
    write_json(path, body)


def copy_model_code(folder: Path, model: dict[str, Any]) -> None:
    """Copy the Python files of a model that brings its own; `config.json` names those of the Hub by repository."""
    auto_map = read_json(folder / "config.json").get("auto_map")
    values = auto_map.values() if isinstance(auto_map, dict) else ()
    named = [name for value in values for name in (value if isinstance(value, list) else [value])]
    classes = [name for name in named if isinstance(name, str) and name]
    source = Path(str(model.get("name_or_path") or ""))
    if all("--" in name for name in classes):
        return
    files = sorted(source.glob("*.py")) if source.is_dir() else []
    if not files and not list(folder.glob("*.py")):
        raise user_error(
            "CK125",
            f"the model's own code (`{classes[0].partition('.')[0]}.py`) is not in `{source}` any more",
            key="model.name_or_path",
            fix="restore the model's folder, or export where it exists",
        )
    for file in files:
        shutil.copy2(file, folder)


def read_adapter_config(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's adapter configuration. Raises UserError (CK101)."""
    return read_json(checkpoint / ADAPTER / ADAPTER_CONFIG)


def write_adapter_config(checkpoint: Path, folder: Path, base_model: str | None) -> None:
    """Replace the model's configuration by that of its adapters; `peft` finds the base model by its name there."""
    for name in _MODEL_ONLY_FILES:
        (folder / name).unlink(missing_ok=True)
    path = folder / ADAPTER_CONFIG
    shutil.copy2(checkpoint / ADAPTER / ADAPTER_CONFIG, path)
    body = read_json(path)
    if base_model is not None:
        is_folder = Path(base_model).is_dir()
        body["base_model_name_or_path"] = str(Path(base_model).resolve()) if is_folder else base_model
    write_json(path, body)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError (CK101)."""
    try:
        body = parse_json(read_regular(path, _MAX_JSON_BYTES, follow=False).decode())
    except (OSError, ValueError):
        body = None
    if not isinstance(body, dict):
        raise user_error("CK101", f"`{path}` is missing or cannot be read", fix="name another checkpoint")
    return body


def write_json(path: Path, body: dict[str, Any]) -> None:
    """Write an object with sorted keys."""
    path.write_text(json.dumps(body, indent=2, sort_keys=True) + "\n", encoding="utf-8")
