# SPDX-License-Identifier: Apache-2.0
"""The parts of a model that a run did not train: towers for images and sound, beside a text model.

A run of a composite trains its text model. The export has every tensor of the source: trained ones under the names of
the source, all others as its files have them, with its configuration and the files of its processors. A composite that
was not pretrained has no such parts: its export is the text model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from harness.errors import UserError, user_error
from harness.runtime.export.export_tensors import ExportTensors
from harness.runtime.export.model_files import ADAPTER_CONFIG, read_json, write_json
from harness.runtime.models.lora import shorten_names
from harness.runtime.models.safetensors_reader import SafetensorsFiles, open_safetensors
from harness.runtime.models.stored_names import build_source, match_sources, names_by_parameter
from harness.runtime.text_part import SOURCE_KIND, build_text_model, is_text_part, names_in_composite
from harness.runtime.user_errors import first_error_line
from harness.spec.run_spec import ModelSpec

_CONFIG = "config.json"
_PEFT_PREFIX = "base_model.model."
_PROCESSOR_FILES = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def add_source_parts(
    folder: Path, trained: ExportTensors, model: Mapping[str, Any], log: Callable[[str], None]
) -> ExportTensors:
    """The tensors of the whole export, and its configuration and processor files in `folder`, which has the
    configuration of the checkpoint. The trained tensors alone for a model that was trained whole, which as a composite
    has processors, too (Gemma 3).

    `model`: the `model` section of the run spec. Raises UserError (CK125) where the source is not here any more.
    """
    if model.get("trust_remote_code") and "auto_map" in read_json(folder / _CONFIG):
        return trained
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, TypeError):  # `export_checks.check_architecture` says it
        return trained
    is_new = model.get("name_or_path") is None or model.get("random_init")
    if getattr(config, SOURCE_KIND, None) is None and not is_text_part(config):
        if config.sub_configs and not is_new:
            _copy_processors(_source(model), folder, log)
        return trained
    if is_new:
        text = config.get_text_config()
        write_json(folder / _CONFIG, {**text.to_dict(), "architectures": [type(build_text_model(config)).__name__]})
        return trained
    spec = _source(model)
    try:
        files, whole = open_safetensors(spec), build_source(spec, config)
        _copy_files(spec, folder, (_CONFIG, *_PROCESSOR_FILES))
    except (OSError, ValueError, SafetensorError) as error:
        raise _source_error(spec, first_error_line(error)) from None
    if files is None or whole is None:
        raise _source_error(spec, "it has no safetensors")
    exported = _join(trained, files, _match(build_text_model(config), whole, trained, files, spec))
    untrained = len(exported.stored_bytes)
    log(
        f"{len(exported.shapes)} tensors, as many as its source has: {len(exported.shapes) - untrained} trained, and"
        f" {untrained} from `{spec.name_or_path}`, as they are"
    )
    return exported


def place_adapters(folder: Path, adapters: ExportTensors, model: Mapping[str, Any], checkpoint: Path) -> ExportTensors:
    """Adapters of a text model for the composite that their base is, where `transformers` builds all of it: under its
    names, which `adapter_config.json` in `folder` then has too. `checkpoint`: its folder of configurations.

    Raises UserError (CK125) where the source is not here any more.
    """
    if "auto_map" in read_json(checkpoint / _CONFIG):
        return adapters
    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    spec = ModelSpec(name_or_path=model.get("name_or_path"), revision=model.get("revision"))
    try:
        whole = build_source(spec, config) if getattr(config, SOURCE_KIND, None) else None
    except (OSError, ValueError) as error:
        raise _source_error(spec, first_error_line(error)) from None
    names = names_in_composite(build_text_model(config), whole) if whole and not is_text_part(whole.config) else None
    if whole is None or names is None:
        return adapters
    modules = {name.rpartition(".")[0]: there.rpartition(".")[0] for name, there in names.items()}
    placed = {_place(name, modules): name for name in adapters.shapes}
    body = read_json(folder / ADAPTER_CONFIG)
    if isinstance(body.get("target_modules"), list):
        adapted = {name.removeprefix(_PEFT_PREFIX).partition(".lora_")[0] for name in placed if ".lora_" in name}
        body["target_modules"] = shorten_names(adapted, [name for name, _ in whole.named_modules()])
        write_json(folder / ADAPTER_CONFIG, body)
    shapes = {there: adapters.shapes[name] for there, name in placed.items()}
    return ExportTensors(shapes, lambda there: adapters.get(placed[there]))


def _place(name: str, modules: Mapping[str, str]) -> str:
    """The name of an adapter's tensor in the composite. `modules`: paths there by paths in the text model."""
    parts = name.removeprefix(_PEFT_PREFIX).split(".")
    owner = next(n for n in range(len(parts), -1, -1) if n == 0 or ".".join(parts[:n]) in modules)
    path = modules.get(".".join(parts[:owner]))
    return name if path is None else f"{_PEFT_PREFIX}{'.'.join([path, *parts[owner:]])}"


def _match(
    text_model: PreTrainedModel,
    whole: PreTrainedModel,
    trained: ExportTensors,
    files: SafetensorsFiles,
    spec: ModelSpec,
) -> dict[str, str]:
    """The trained tensor of each stored name. Raises UserError (CK125) for one without a place in the source."""
    text_model.tie_weights()
    sources = match_sources(text_model, files, whole)
    if sources is None:
        raise _source_error(spec, "its files hold weights that `transformers` merges or splits when it loads them")
    stored = {key: name for name, key in sources.items() if name in trained.shapes}
    placed = {
        name
        for aliases in names_by_parameter(text_model).values()
        if {*aliases} & {*stored.values()}
        for name in aliases
    }
    homeless = sorted(set(trained.shapes) - placed - set(stored.values()))
    if homeless:
        raise _source_error(spec, f"it has no place for the trained `{homeless[0]}`")
    for key, name in stored.items():
        if tuple(trained.shapes[name]) != files.shapes[key]:
            raise _source_error(spec, f"its `{key}` has another shape than the trained `{name}`")
    return stored


def _join(trained: ExportTensors, files: SafetensorsFiles, stored: Mapping[str, str]) -> ExportTensors:
    """Every tensor of the files, those of `stored` with trained values."""
    shapes = {key: torch.Size(shape) for key, shape in files.shapes.items()}
    untrained = {key: files.bytes_of(key) for key in shapes if key not in stored}

    def get(key: str) -> torch.Tensor:
        return trained.get(stored[key]) if key in stored else files.read(key)

    return ExportTensors(shapes, get, untrained)


def _source(model: Mapping[str, Any]) -> ModelSpec:
    return ModelSpec(name_or_path=model["name_or_path"], revision=model.get("revision"))


def _copy_processors(spec: ModelSpec, folder: Path, log: Callable[[str], None]) -> None:
    """The files of the source's processors; a line in the log where the source is not here any more."""
    try:
        _copy_files(spec, folder, _PROCESSOR_FILES)
    except (OSError, ValueError) as error:
        log(f"no files of processors, which `{spec.name_or_path}` may have: {first_error_line(error)}")


def _copy_files(spec: ModelSpec, folder: Path, names: Sequence[str]) -> None:
    """The source's configuration, and other files that the folder lacks. Raises OSError."""
    for name in names:
        path = cached_file(
            str(spec.name_or_path),
            name,
            revision=spec.revision or "main",
            _raise_exceptions_for_missing_entries=name == _CONFIG,
        )
        if path is not None and (name == _CONFIG or not (folder / name).exists()):
            shutil.copyfile(path, folder / name)


def _source_error(spec: ModelSpec, reason: str) -> UserError:
    return user_error(
        "CK125",
        f"the export needs every tensor of `{spec.name_or_path}`, of which the run trained the text part: {reason}",
        key="model.name_or_path",
        notes=("without them the export would start with random weights there",),
        fix="restore the model's folder, or export where it exists",
    )
