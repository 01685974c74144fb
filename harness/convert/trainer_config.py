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
from harness.convert.accelerate_launch import add_launch_options, take_precision
from harness.convert.evaluation_settings import finish_evaluation
from harness.convert.preference_settings import convert_preferences, find_objective, finish_preferences
from harness.convert.program_clashes import find_clashes
from harness.convert.programs.arctic import ARCTIC_TRAINING, flatten_values
from harness.convert.programs.axolotl import AXOLOTL
from harness.convert.programs.command_flags import BY_FLAGS, rename_flags
from harness.convert.programs.hf_trainer import HF_TRAINER
from harness.convert.programs.llama_factory import LLAMA_FACTORY
from harness.convert.programs.ms_swift import MS_SWIFT, fill_preset
from harness.convert.programs.trl import TRL
from harness.convert.trainer_file import Program, TrainerFile, add_leftover_notes, apply_defaults
from harness.convert.unsupported_methods import METHOD_KEYS, find_unsupported_methods
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix, Place
from harness.spec.accelerate_config import to_deepspeed_json
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
_OTHER_LOSSES = frozenset("grpo gspo rloo orpo cpo gkd bco prm online nash xpo tpo ppo gold mpo sdft ssd".split())
"""First words of scripts of TRL that train by a loss that a run spec does not have."""
_OWN_VERBS = ("sft", "dpo", "kto", "reward")
"""Commands of TRL whose script of an example is known."""
_SHELL_FORMATS: dict[str, ConfigFormat] = {
    "swift": "swift-config",
    "llama-factory": "llama-factory-yaml",
    "trl": "trl-yaml",
    "axolotl": "axolotl-yaml",
}


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
    file_format = detect_format(source)
    if file_format is None or file_format not in (["swift-config"] if is_json(file, text) else PROGRAMS):
        return None
    return _load_source(source, file_format, target, release)


def _load_script(file: str, text: str, target: DeepSpeedTarget, release: str | None) -> TrainerConfig:
    command = shell_command.find_training_command(file, text)
    if command is None:
        message = (
            "this script contains none of the supported commands: `swift sft`, `swift pt`, `swift rlhf`, "
            "`llamafactory-cli train`, `trl sft`, `trl dpo`, `trl kto`, `trl reward`, `axolotl train`, "
            "`openrlhf.cli.train_sft`, Megatron-DeepSpeed, or a launcher with a script and `--model_name_or_path`"
        )
        raise UserError([Finding("SP016", "error", message, place=Place(file, 1, 1))])
    by_megatron = command.program == "megatron-deepspeed" and not command.source.data.get("deepspeed_config")
    if command.program == "megatron" or by_megatron:
        message = "this script trains with Megatron, without DeepSpeed: there is nothing to convert"
        raise UserError([Finding("SP016", "error", message, place=command.source.place(()))])
    command = command._replace(verb="reward") if command.verb == "rm" else command  # OpenRLHF's name for it
    script, verb = command.script, command.verb
    if re.search(r"vlm|vision|multimodal", script):
        message = f"`{script}` trains on images by its name, which a run spec does not read"
        fix = Fix("train it with its own program; text alone can be converted under another name")
        raise UserError([Finding("SP040", "error", message, place=command.source.place(()), fix=fix)])
    if (command.program in ("trl", "openrlhf") and verb not in _OWN_VERBS) or verb in _OTHER_LOSSES:
        message = f"`{script or f'{command.program} {verb}'}` trains by another loss, which a run spec does not have"
        fix = Fix("train it with its own program; a DeepSpeed JSON is checked with `harness validate-config`")
        raise UserError([Finding("SP040", "error", message, place=command.source.place(()), fix=fix)])
    source = _with_config(command) if command.config else command.source
    if command.verb == "rlhf":
        source.data.setdefault("rlhf_type", "dpo")
    source = rename_flags(command.program, source) if command.program in BY_FLAGS else source
    if script:
        found = detect_format(source._replace(syntax="yaml"))
        file_format = found if found in PROGRAMS else "trainer-yaml"
        file_format = "trl-yaml" if verb in _OWN_VERBS and found == "trainer-yaml" else file_format
    else:
        file_format = _SHELL_FORMATS.get(command.program, "trainer-yaml")
    config = _load_source(source, file_format, target, release, command)
    if config.file is not None and script and verb not in _OWN_VERBS:
        text = f"`{script}` is a script of its own: the spec trains the next token, with the Trainer's defaults"
        config.file.draft.add_note(command.source.place(()), f"{text}; compare what the script does")
    if config.file is not None and command.others:
        place = command.source.place(())
        config.file.draft.add_note(
            place, f"{command.others} more training commands in this script: the first is converted"
        )
    return config


def _with_config(command: shell_command.ShellCommand) -> Source:
    """The YAML or JSON that a command names; its options win over the keys of the file."""
    options, config = command.source, command.config
    path = find_referenced_file(options.file, config)
    if path is None:
        message = f"`{config}`, which has the settings of this command, is not on this machine"
        notes = tuple(find_clashes(options, command))
        raise UserError([Finding("SP021", "error", message, place=options.place(()), notes=notes)])
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
    objective = find_objective(source, command.verb if command is not None else "")
    methods = find_unsupported_methods(source, objective)
    if methods:
        first = methods[0]._replace(notes=(*methods[0].notes, *find_clashes(source, command)))
        loaded = LoadedSpec(
            source.file, source, None, (first, *methods[1:]), code=ExitCode.FINDINGS, format=file_format
        )
        return TrainerConfig(loaded, None)
    program = BY_FLAGS.get(command.program if command is not None else "", PROGRAMS[file_format])
    values = flatten_values(source.data) if program is ARCTIC_TRAINING else dict(source.data)
    file = TrainerFile(
        program, source, values, release or program.releases[1], ranks=command.ranks if command else None
    )
    file.launch = dict(command.launch) if command is not None else {}
    if command is not None and command.ranks:
        _put_ranks(file, command.ranks, command.hosts)
    if command is not None and command.verb == "pt":
        file.put("data.assistant_only_loss", False)
    _count_processes(file)
    fragment, json_file = _read_json(file)
    zero = fragment.source.data.get("zero_optimization")
    for clash in find_clashes(source, command, zero.get("stage") if isinstance(zero, Mapping) else None):
        file.draft.add_note(source.place(()), f"for its own program: {clash}")
    is_left_open = fragment.source.data.get("gradient_clipping") == "auto" and "config_file" in values
    if is_left_open and values.get("max_grad_norm") and ("gradient_clipping",) not in fragment.source.spots:
        text = "accelerate before 0.30 clips only at a `gradient_clipping` of `config_file`, which is not there"
        file.draft.add_note(source.place(("max_grad_norm",)), f"for its own program: `max_grad_norm`: {text}")
    loaded = load_deepspeed_json(fragment, (), target, "deepspeed" if program is ARCTIC_TRAINING else "hf")
    has_errors = any(map(is_error_of_file, loaded.findings))
    loaded = loaded._replace(format=file_format)
    if loaded.spec is None and not has_errors:
        raise UserError(list(loaded.findings))
    _convert_values(file, objective)
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
        accelerate = _read_accelerate(file)
        if accelerate is not None:
            return accelerate, ""
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


_PROFILES = {"single_gpu": "zero0", "multi_gpu": "zero0", "zero1": "zero1", "zero2": "zero2", "zero3": "zero3"}
"""TRL's own configurations of accelerate by name -> those of ms-swift with the same stage."""


def _read_accelerate(file: TrainerFile) -> DeepSpeedJson | None:
    """The JSON in the accelerate YAML of the command, whose options win over it, or behind the name of one of TRL's
    own; None without either.
    """
    if file.program not in (HF_TRAINER, TRL):
        return None
    key = file.name_of("config_file", "accelerate_config")
    name = file.take_value("config_file", "accelerate_config")
    if str(name) in _PROFILES:
        preset = fill_preset({"deepspeed": _PROFILES[str(name)]})
        return DeepSpeedJson(file.source._replace(data=preset or {}, spots={}))
    empty = file.source._replace(data={}, spots={})
    path = None if name is None else find_referenced_file(file.source.file, str(name))
    source = None if path is None else parse(read_text(path), path)
    if name is not None and source is None:
        file.add_manual(key, "is not on this machine: set `zero` as there (`harness adopt` converts it)")
    if name is None and not file.launch:
        return None
    source = add_launch_options(file, source or empty)
    ranks = source.data.get("num_processes")
    if file.ranks is None and isinstance(ranks, int) and source.data.get("num_machines", 1) == 1:
        _put_ranks(file, ranks)
    kind = source.data.get("distributed_type")
    if kind == "DEEPSPEED":
        return to_deepspeed_json(source)
    take_precision(file, source)
    if kind == "FSDP":
        text = f"set `zero` as `harness adopt {name}` writes it" if name else "set `zero.stage`: 3, which shards so"
        file.add_manual(key, f"is for FSDP: {text}")
    return DeepSpeedJson(empty)


def _count_processes(file: TrainerFile) -> None:
    """`--num_processes` of all machines, as `accelerate launch` and the TRL command take it."""
    if file.program not in (HF_TRAINER, TRL):
        return
    ranks, hosts = file.take_value("num_processes"), file.take_value("num_machines") or 1
    if not isinstance(ranks, int) or not isinstance(hosts, int) or hosts < 1 or ranks < hosts:
        return
    _put_ranks(file, ranks, hosts)


def _put_ranks(file: TrainerFile, ranks: int, hosts: int = 1) -> None:
    file.ranks = ranks
    if hosts == 1:
        file.put("launch.num_gpus", ranks)
    else:
        file.put("cluster.num_nodes", hosts)
        file.put("cluster.gpus_per_node", ranks // hosts)


def _convert_values(file: TrainerFile, objective: str | None) -> None:
    """The program's own keys; what only a shell could compute is left to the user. `objective`: of preferences."""
    for name, value in list(file.values.items()):
        problem = "" if name.endswith("_token") else _find_unusable_part(value)  # `<|im_end|>` is one
        if problem:
            key = file.program.keys.get(name)
            file.add_manual(name, problem + (f": set `{key}`" if key else ""))
            del file.values[name]
    if objective is not None:
        convert_preferences(file, objective)
    file.take_value(*(METHOD_KEYS & file.values.keys()))
    for name, key in file.program.keys.items():
        value = file.values.get(name)
        if value is not None and value != "":
            file.handled.add(name)
            file.put(key, value)
    file.program.convert(file)
    _add_quantised_note(file)
    apply_defaults(file)
    if objective is not None:
        finish_preferences(file)
    finish_evaluation(file)
    add_leftover_notes(file)


_QUANTISED = re.compile(r"(?i)(gptq|awq|aqlm|gguf|bnb|nf4|fp4|[48]-?bit|int[48])(?![a-z0-9])")
_OTHER_WEIGHTS = re.compile(r"(?i)(?<![a-z])(gptq|awq|aqlm|gguf)(?![a-z])")
"""Formats whose weights a run never loads (MD046), where a model's name ends with them."""


def _add_quantised_note(file: TrainerFile) -> None:
    """A model that is quantised by its name: no key of the file says so."""
    model = file.draft.get("model.name_or_path")
    name = next(
        (name for name, key in file.program.keys.items() if key == "model.name_or_path" and name in file.values), ""
    )
    if name and isinstance(model, str) and _OTHER_WEIGHTS.search(model.rsplit("/", 1)[-1]):
        message = f"`{file.show(name)}` has quantised weights by its name, and a run spec supports only 4-bit weights"
        message += " of bitsandbytes under LoRA"
        fix = Fix("name the model of 16 bits that it was made from; QLoRA over that one can be converted")
        raise UserError([Finding("SP040", "error", message, name, file.source.place((name,)), fix=fix)])
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
