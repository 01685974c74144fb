# SPDX-License-Identifier: Apache-2.0
"""The parts of a model that a run did not train: towers for images and sound, beside a text model.

`AutoModelForCausalLM` builds the text part of some composites (Qwen3.5, Llama 4). Their export has every tensor of the
source: trained ones under the names of the source, all others as its files have them, with its configuration and the
files of its processors. A composite that was not pretrained has no such parts: its export is the text model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from harness.errors import UserError
from harness.runtime.export.export_tensors import ExportTensors
from harness.runtime.export.model_files import read_json, write_json
from harness.runtime.models.safetensors_reader import SafetensorsFiles, open_safetensors
from harness.runtime.models.stored_names import is_text_part, match_sources, names_by_parameter
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.run_spec import ModelSpec

_CONFIG = "config.json"
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
    if not is_text_part(config):
        if config.sub_configs and not is_new:
            _copy_processors(_source(model), folder, log)
        return trained
    if is_new:
        text = config.get_text_config()
        write_json(folder / _CONFIG, {**text.to_dict(), "architectures": [type(_build_on_meta(config)).__name__]})
        return trained
    spec = _source(model)
    try:
        files = open_safetensors(spec)
        _copy_files(spec, folder, (_CONFIG, *_PROCESSOR_FILES))
    except (OSError, ValueError, SafetensorError) as error:
        raise _source_error(spec, first_error_line(error)) from None
    if files is None:
        raise _source_error(spec, "it has no safetensors")
    exported = _join(trained, files, _match(config, trained, files, spec))
    log(f"{len(exported.stored_bytes)} tensors that were not trained come from `{spec.name_or_path}`, as they are")
    return exported


def _match(
    config: PreTrainedConfig, trained: ExportTensors, files: SafetensorsFiles, spec: ModelSpec
) -> dict[str, str]:
    """The trained tensor of each stored name. Raises UserError (CK125) for one without a place in the source."""
    text_model = _build_on_meta(config)
    text_model.tie_weights()
    sources = match_sources(text_model, files)
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


def _build_on_meta(config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def _source_error(spec: ModelSpec, reason: str) -> UserError:
    return user_error(
        "CK125",
        f"the export needs every tensor of `{spec.name_or_path}`, of which the run trained the text part: {reason}",
        key="model.name_or_path",
        notes=("without them the export would start with random weights there",),
        fix="restore the model's folder, or export where it exists",
    )
