# SPDX-License-Identifier: Apache-2.0
"""Files of training programs for `harness adopt`, read with the DeepSpeed JSON that they name and merged with it as the
program does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.convert import shell_command
from harness.convert.evaluation_settings import finish_evaluation
from harness.convert.programs.arctic import ARCTIC_TRAINING, flatten_values
from harness.convert.programs.axolotl import AXOLOTL
from harness.convert.programs.hf_trainer import HF_TRAINER
from harness.convert.programs.llama_factory import LLAMA_FACTORY
from harness.convert.programs.ms_swift import MS_SWIFT, fill_preset
from harness.convert.programs.trl import TRL
from harness.convert.trainer_file import Program, TrainerFile, add_leftover_notes, apply_defaults
from harness.convert.unsupported_methods import METHOD_KEYS, find_unsupported_methods
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix, Place
from harness.spec.config_format import ConfigFormat, detect_format
from harness.spec.deepspeed_mapping import DeepSpeedJson
from harness.spec.parse.source import Source, is_json, read_text
from harness.spec.parse.source_parser import parse
from harness.spec.referenced_files import find_referenced_file, read_deepspeed_json
from harness.spec.spec_loader import LoadedSpec, load_deepspeed_json

PROGRAMS: dict[str, Program] = {
    "axolotl-yaml": AXOLOTL,
    "llama-factory-yaml": LLAMA_FACTORY,
    "trainer-yaml": HF_TRAINER,
    "trl-yaml": TRL,
    "swift-config": MS_SWIFT,
    "arctic-yaml": ARCTIC_TRAINING,
}
_NO_DEEPSPEED = (
    "no `deepspeed` in this file: where `accelerate launch --config_file` starts it, the sharding stands in that file:"
    " set `zero` as there (`harness adopt` converts it); without one it is stage 0"
)
_SHELL_FORMATS: dict[str, ConfigFormat] = {"swift": "swift-config", "llama-factory": "llama-factory-yaml"}


class TrainerConfig(NamedTuple):
    """A file of a training program, converted without its DeepSpeed JSON; `loaded` has that JSON. With findings in
    `loaded` alone, nothing was converted.
    """

    loaded: LoadedSpec
    file: TrainerFile | None
    json_file: str = ""
    """The DeepSpeed JSON that was read; empty for one in the file itself, and for none."""
    has_json: bool = False


def is_error_of_file(finding: Finding) -> bool:
    """Must the user correct it first? An old name that accelerate does not know has a meaning here."""
    return finding.is_error and finding.gate != "SP014"


def load_trainer_config(file: str, target: DeepSpeedTarget, release: str | None = None) -> TrainerConfig | None:
    """A training program's file with the DeepSpeed JSON that it names; None for other files. Raises UserError."""
    if file == "-":
        return None
    text = read_text(file)
    if shell_command.is_shell_script(file, text):
        return _load_script(file, text, target, release)
    try:
        source = parse(text, file)
    except UserError:
        if is_json(file, text):
            return None  # DeepSpeed's own reader takes more than JSON
        raise
    if is_json(file, text):
        return (
            _load_source(source, "swift-config", target, release) if detect_format(source) == "swift-config" else None
        )
    file_format = detect_format(source)
    if file_format is None or file_format not in PROGRAMS:
        return None
    return _load_source(source, file_format, target, release)


def _load_script(file: str, text: str, target: DeepSpeedTarget, release: str | None) -> TrainerConfig:
    command = shell_command.find_training_command(file, text)
    if command is None:
        message = (
            "this script contains none of the supported commands: `swift sft`, `swift pt` or `llamafactory-cli train`"
        )
        raise UserError([Finding("SP016", "error", message, place=Place(file, 1, 1))])
    if command.program == "megatron":
        message = "this script trains with Megatron, without DeepSpeed: there is nothing to convert"
        raise UserError([Finding("SP016", "error", message, place=command.source.place(()))])
    source = _with_config(command.source, command.config) if command.config else command.source
    if command.verb == "rlhf":
        source.data.setdefault("rlhf_type", "dpo")
    config = _load_source(source, _SHELL_FORMATS[command.program], target, release, command)
    if config.file is not None and command.others:
        place = command.source.place(())
        config.file.draft.add_note(
            place, f"{command.others} more training commands in this script: the first is converted"
        )
    return config


def _with_config(options: Source, config: str) -> Source:
    """The YAML or JSON that a command names; its options win over the keys of the file."""
    path = find_referenced_file(options.file, config)
    if path is None:
        message = f"`{config}`, which has the settings of this command, is not on this machine"
        raise UserError([Finding("SP021", "error", message, place=options.place(()))])
    source = parse(read_text(path), path)
    spots = {**source.spots, **{key: spot for key, spot in options.spots.items() if key}}
    lines = {**source.extra_lines, options.file: options.text.split("\n")}
    return source._replace(data={**source.data, **options.data}, spots=spots, extra_lines=lines)


def _load_source(
    source: Source,
    file_format: ConfigFormat,
    target: DeepSpeedTarget,
    release: str | None,
    command: shell_command.ShellCommand | None = None,
) -> TrainerConfig:
    methods = find_unsupported_methods(source)
    if methods:
        loaded = LoadedSpec(source.file, source, None, methods, code=ExitCode.FINDINGS, format=file_format)
        return TrainerConfig(loaded, None)
    program = PROGRAMS[file_format]
    values = flatten_values(source.data) if program is ARCTIC_TRAINING else dict(source.data)
    file = TrainerFile(
        program, source, values, release or program.releases[1], ranks=command.ranks if command else None
    )
    if command is not None and command.ranks and command.hosts == 1:
        file.put("launch.num_gpus", command.ranks)
    elif command is not None and command.ranks:
        file.put("cluster.num_nodes", command.hosts)
        file.put("cluster.gpus_per_node", command.ranks // command.hosts)
    if command is not None and command.verb == "pt":
        file.put("data.assistant_only_loss", False)
    fragment, json_file = _read_json(file)
    loaded = load_deepspeed_json(fragment, (), target, "deepspeed" if program is ARCTIC_TRAINING else "hf")
    has_errors = any(map(is_error_of_file, loaded.findings))
    loaded = loaded._replace(format=file_format)
    if loaded.spec is None and not has_errors:
        raise UserError(list(loaded.findings))
    _convert_values(file)
    return TrainerConfig(loaded, file, json_file, bool(fragment.source.data))


def _read_json(file: TrainerFile) -> tuple[DeepSpeedJson, str]:
    """The DeepSpeed JSON in the file, under its name, or by a word of ms-swift."""
    source = file.source
    deepspeed = file.take_value("deepspeed")
    if isinstance(deepspeed, Mapping):
        spots = {path[1:]: spot for path, spot in source.spots.items() if path[:1] == ("deepspeed",)}
        return DeepSpeedJson(source._replace(data=dict(deepspeed), spots=spots)), ""
    preset = fill_preset(file.values) if file.program is MS_SWIFT else None
    if preset is not None:
        return DeepSpeedJson(source._replace(data=preset, spots={})), ""
    if not isinstance(deepspeed, str) or not deepspeed:
        if file.program in (HF_TRAINER, TRL):
            name = next(iter(file.values), "")
            file.draft.add_note(source.place((name,), of_key=True), _NO_DEEPSPEED)
        return DeepSpeedJson(source._replace(data={}, spots={})), ""
    path = find_referenced_file(source.file, deepspeed)
    if path is None:
        file.add_manual("deepspeed", "is not on this machine: set `zero.stage` and its other settings")
        return DeepSpeedJson(source._replace(data={}, spots={})), ""
    document = read_deepspeed_json(path)
    lines = {**source.extra_lines, path: document.source.text.split("\n")}
    merged = source._replace(data=document.source.data, spots=document.source.spots, extra_lines=lines)
    return DeepSpeedJson(merged, document.findings), path


def _convert_values(file: TrainerFile) -> None:
    """The program's own keys; what only a shell could compute is left to the user."""
    for name, value in list(file.values.items()):
        problem = "" if name.endswith("_token") else _find_unusable_part(value)  # `<|im_end|>` is one
        if problem:
            key = file.program.keys.get(name)
            file.add_manual(name, problem + (f": set `{key}`" if key else ""))
            del file.values[name]
    file.take_value(*(METHOD_KEYS & file.values.keys()))
    for name, key in file.program.keys.items():
        value = file.values.get(name)
        if value is not None and value != "":
            file.handled.add(name)
            file.put(key, value)
    file.program.convert(file)
    _add_quantised_note(file)
    apply_defaults(file)
    finish_evaluation(file)
    add_leftover_notes(file)


_QUANTISED = re.compile(r"(?i)(gptq|awq|aqlm|gguf|bnb|nf4|fp4|[48]-?bit|int[48])(?![a-z0-9])")


def _add_quantised_note(file: TrainerFile) -> None:
    """A model that is quantised by its name: no key of the file says so."""
    model = file.draft.get("model.name_or_path")
    name = next(
        (name for name, key in file.program.keys.items() if key == "model.name_or_path" and name in file.values), ""
    )
    if name and isinstance(model, str) and _QUANTISED.search(model):
        file.add_lossy(name, "quantised weights by its name; a run spec trains over weights of 16 and 32 bit")


def _find_unusable_part(value: Any) -> str:
    """Why a value, or an entry of a list, says nothing; empty where all of it does."""
    for part in value if isinstance(value, list) else [value]:
        if _is_template(part):
            return f"`{part}` is not set in this file"
        if isinstance(part, float) and not math.isfinite(part):
            return "it is no number"
    return ""


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and ("$" in value or value.startswith(("{{", "<"))) and "\n" not in value


def wrong_release_error(program: Program, release: str) -> UserError:
    """A release of the program whose defaults nobody has read."""
    first, last = program.releases
    message = f"the defaults of {program.name} {release} are not known"
    return UserError([Finding("SP011", "error", message, fix=Fix(f"name a release from {first} to {last}"))])
