# SPDX-License-Identifier: Apache-2.0
"""A training command in a shell script: `swift sft --key value`, `llamafactory-cli train`, `trl sft`, `axolotl train`,
OpenRLHF, Megatron-DeepSpeed, and a script of one's own under `accelerate launch`, `deepspeed`, `torchrun` or `python`
that takes TrainingArguments.

Users of ms-swift keep their settings in such scripts. Nothing is run: variables that the script sets are filled in, and
what only a shell could compute stays as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.findings import Place
from harness.spec.parse.source import EntryPlace, KeyPath, Source

_PATTERNS = {
    "swift": r"(?:^|[/\s])(?:swift(?:/cli/|\s+)(?P<verb>sft|pt|rlhf)(?:\.py)?)(?=\s|$)",
    "megatron": r"(?:^|\s)megatron\s+(?P<verb>sft|pt|rlhf)(?=\s|$)",
    "llama-factory": r"(?:^|[/\s])(?:llamafactory-cli\s+(?P<verb>train)|train_bash\.py|src/train\.py)(?=\s|$)",
    "trl": r"(?:^|\s)(?:trl\s+|\S*/scripts/(?:run_)?)(?P<verb>sft|dpo|kto|reward|grpo|orpo)(?:\.py)?(?=\s|$)",
    "axolotl": r"(?:^|\s)\S*axolotl(?:\s+|[./]cli[./])(?P<verb>train)(?:\.py)?(?=\s|$)",
    "openrlhf": r"(?:^|\s)\S*openrlhf[./]cli[./]train_(?P<verb>\w+)(?:\.py)?(?=\s|$)",
    "script": (
        r"(?:^|[/\s])(?:accelerate(?:\s+|-)launch|deepspeed|torchrun|python[\d.]*)\s(?:.*?\s)??"
        r"(?P<script>[^\s-]\S*\.py)\s(?=.*--(?:model_(?:name_or_)?path|per_device_train_batch_size)[\s=])"
    ),
    "megatron-deepspeed": r"(?:^|\s)\S*(?P<verb>pretrain)_\w+\.py(?=\s)",
}
_PROGRAMS = {program: re.compile(pattern) for program, pattern in _PATTERNS.items()}
"""`script`: one of one's own with TrainingArguments, whatever it is called."""
_VERB = re.compile(r"(?:.*/)?(?:run_)?([a-z]+).*|.+")
_LAUNCHER_NAMES = {"nproc_per_node": "NPROC_PER_NODE", "nnodes": "NNODES"}
_LAUNCHER_NAMES |= {"num_gpus": "NPROC_PER_NODE", "num_nodes": "NNODES"}
"""Options of torchrun and of the `deepspeed` launcher -> the variables that count ranks."""
_ACCELERATE = re.compile(r"\S*accelerate\S* launch|\S* (\S*/)?accelerate-launch|-m accelerate\.commands\.launch")
"""Two words, the second of which begins the options of `accelerate launch`."""
_ACCELERATE_NAMES = ("config_file", "num_processes", "num_machines")
"""Options of `accelerate launch`, which the TRL command takes among its own."""
_FLAGS = frozenset(
    """cpu debug downcast_bf16 dynamo_use_dynamic dynamo_use_fullgraph dynamo_use_regional_compilation
    enable_cpu_affinity fp8_use_autocast_during_eval m module multi_gpu no_python no_tpu_cluster q quiet same_network
    tpu tpu_cluster tpu_use_sudo use_deepspeed use_fsdp use_megatron_lm use_parallelism_config""".split()
)
"""Options of `accelerate launch` without a value: a test asks the parser of the installed release for them."""
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(\S*|\"[^\"]*\"|'[^']*')\s*(?:#.*)?")
_COUNT = re.compile(r"[0-9]{1,6}")
_MAX_PLACES = 1000
_MAX_COMMAND = 100_000
"""Characters of a command; shells take about as many."""
_MAX_SEARCHED = 20_000
"""Characters of the script from the command on, in which its options have their places."""
_MAX_FILLED = 100_000
_MAX_DIGITS = 300
"""Longer numbers are infinite as floats."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^{}]*))?\}|\$(\w+)")
_QUOTIENT = re.compile(r"\$\(expr (\d+(?: / \d+)+)\)|\$\(\(\s*(\d+(?:\s*/\s*\d+)+)\s*\)\)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class ShellCommand(NamedTuple):
    """A command: its program and verb, its options with their places, and the variables that count ranks."""

    program: str
    verb: str
    source: Source
    ranks: int | None
    config: str
    """The YAML or JSON that it names before its options; empty if there is none."""
    others: int
    """Further training commands of the script."""
    hosts: int = 1
    launch: Mapping[str, Any] = MappingProxyType({})
    """Options of `accelerate launch` before the script, but those that count ranks or name its YAML."""
    script: str = ""
    """One of one's own, whose name has the verb: `sft_gpt_oss.py`."""


def is_shell_script(file: str, text: str) -> bool:
    """Is it a script by its name or its first line?"""
    return file.endswith((".sh", ".bash")) or (text.startswith("#!") and "sh" in text.split("\n", 1)[0])


def find_training_command(file: str, text: str) -> ShellCommand | None:
    """The first training command of the script; None for a script without one."""
    variables: dict[str, str] = {}
    commands: list[tuple[str, re.Match[str], int, str]] = []
    for first_line, line in _logical_lines(text):
        assignment = _ASSIGNMENT.fullmatch(line)
        command = line if assignment is None else assignment[2].strip("\"'")
        if assignment is not None:
            variables[assignment[1]] = _fill_in(command, variables)
            if " " not in command or " -" not in variables[assignment[1]]:  # no command, which `eval` would run
                continue
        for program, pattern in _PROGRAMS.items():
            match = pattern.search(command)
            if match is not None:
                commands.append((program, match, first_line, command))
                break
    if not commands:
        return None
    program, match, first_line, line = commands[0]
    parts = (line[:_MAX_COMMAND][: match.end()], line[:_MAX_COMMAND][match.end() :])
    before, after = (_split_words(_fill_in(part, variables)[:_MAX_COMMAND]) for part in parts)
    names = match.groupdict()
    launcher = dict(_launcher_options(before))
    options, config = _read_options(after)
    options = _turn_off(options)
    options |= {name: _read_value(launcher[name]) for name in _ACCELERATE_NAMES if name in launcher}
    spots = _find_places(file, text, first_line, options)
    inline = {name: value for name, _, value in (word.partition("=") for word in before) if value}
    variables = {**variables, **inline, **launcher}
    ranks, nodes = _count_ranks(variables), variables.get("NNODES", "1")
    hosts = int(nodes) if _COUNT.fullmatch(nodes) else 1
    source = Source(file, "yaml", text, options, spots)
    own = _read_launch_options(before)
    script = names.get("script") or ""
    verb = names.get("verb") or _VERB.sub(r"\1", script) or "train"
    return ShellCommand(program, verb, source, ranks, config, len(commands) - 1, hosts, own, script)


def _read_launch_options(words: list[str]) -> dict[str, Any]:
    """What stands between `accelerate launch` and its script: a value each, True for a flag."""
    pairs = enumerate(zip(["", *words], words, strict=False), 1)
    rest = next((words[end:] for end, pair in pairs if _ACCELERATE.fullmatch(" ".join(pair))), [])
    options: dict[str, Any] = {}
    is_taken = False
    for word, following in pairwise([*rest, ""]):
        if is_taken:
            is_taken = False
        elif not word.startswith("-"):
            break
        else:
            name, has_value, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            is_taken = not has_value and name not in _FLAGS
            options[name] = _read_value(value or following) if has_value or is_taken else True
    return {name: value for name, value in options.items() if name not in (*_LAUNCHER_NAMES, *_ACCELERATE_NAMES)}


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, and the number of the first; comments are left out."""
    parts: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), 1):
        if not parts:
            start = number
        stripped = line.strip()
        if stripped.startswith("#"):
            if not parts:
                continue
            stripped = ""
        if stripped.endswith("\\"):
            parts.append(stripped[:-1])
            continue
        parts.append(stripped)
        joined = " ".join(part for part in parts if part)
        parts = []
        if joined:
            yield start, joined


def _fill_in(text: str, variables: dict[str, str]) -> str:
    """Variables that the script sets, defaults in `${NAME:-default}`, and whole quotients. A text that doubles from
    line to line keeps its variables.
    """

    def value_of(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    if sum(len(value_of(match)) for match in _VARIABLE.finditer(text)) <= _MAX_FILLED:
        text = _VARIABLE.sub(value_of, text)

    def divide(match: re.Match[str]) -> str:
        if len(match[0]) > _MAX_DIGITS:
            return match[0]
        total, *parts = (int(number) for number in (match[1] or match[2]).split("/"))
        return str(total // prod(parts)) if all(parts) else match[0]

    return _QUOTIENT.sub(divide, text)


def _split_words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an open quote
        return line.split()


def _read_options(words: list[str]) -> tuple[dict[str, Any], str]:
    """The options behind a program, up to the end of its command, and the file that it names before them."""
    options: dict[str, Any] = {}
    config = ""
    name = ""
    for word in words:
        if word in (";", "&&", "||", "|", "&") or word.startswith((">", "2>")):
            break
        if word.startswith("--") and len(word) > 2:
            name, has_value, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = _read_value(value) if has_value else True
        elif config and not name and "=" in word:  # LLaMA-Factory's `key=value` after a file
            key, _, value = word.partition("=")
            options[key] = _read_value(value)
        elif name:
            value = _read_value(word)
            previous = options[name]
            if previous is True:
                options[name] = value
            else:
                options[name] = previous if isinstance(previous, list) else [previous]
                options[name].append(value)
        elif word.endswith((".yaml", ".yml", ".json")):
            config = word
    return options, config


def _turn_off(options: dict[str, Any]) -> dict[str, Any]:
    """`--no_name`, by which HfArgumentParser turns off what is on by default, as the option that it is for."""
    names = [name for name, value in options.items() if value is True and name.startswith("no_") and name != "no_cuda"]
    return {k.removeprefix("no_") if k in names else k: False if k in names else v for k, v in options.items()}


def _read_value(text: str) -> Any:
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if len(text) <= _MAX_DIGITS and _NUMBER.fullmatch(text):
        number = float(text)
        return int(number) if re.fullmatch(r"[-+]?\d+", text) else number
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _find_places(file: str, text: str, first_line: int, options: dict[str, Any]) -> dict[KeyPath, EntryPlace]:
    lines = "\n".join(text.split("\n")[first_line - 1 :])[:_MAX_SEARCHED].split("\n")
    spots: dict[KeyPath, EntryPlace] = {(): EntryPlace(None, Place(file, first_line, 1))}
    for name in list(options)[:_MAX_PLACES]:
        pattern = re.compile(rf"(?:--(?:no[-_])?|(?<=\s)){re.escape(name).replace('_', '[-_]')}(?=[\s=\\]|$)")
        for number, line in enumerate(lines, first_line):
            match = pattern.search(line)
            if match is not None:
                place = Place(file, number, match.start() + 1, match.end() - match.start())
                spots[(name,)] = EntryPlace(place, place)
                break
    return spots


def _launcher_options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Options of the launcher that count ranks, by the names of their variables, and those of `accelerate launch`."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in (*_LAUNCHER_NAMES, *_ACCELERATE_NAMES):
            yield _LAUNCHER_NAMES.get(name, name), value if has_value else following


def _count_ranks(variables: dict[str, str]) -> int | None:
    """`NPROC_PER_NODE` and `NNODES`, as ms-swift and torchrun read them."""
    per_node, nodes = variables.get("NPROC_PER_NODE", ""), variables.get("NNODES", "1")
    if not _COUNT.fullmatch(per_node):
        devices = variables.get("CUDA_VISIBLE_DEVICES", "")
        is_single = re.fullmatch(r"\d+", devices) is not None
        return 1 if is_single else None
    return int(per_node) * int(nodes) if _COUNT.fullmatch(nodes) else None
