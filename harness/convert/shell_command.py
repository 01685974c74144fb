# SPDX-License-Identifier: Apache-2.0
"""A training command in a shell script: `swift sft --key value` and `llamafactory-cli train --key value`.

Users of ms-swift keep their settings in such scripts. Nothing is run: variables that the script sets are filled in, and
what only a shell could compute stays as it is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from harness.findings import Place
from harness.spec.parse.source import EntryPlace, KeyPath, Source

_PROGRAMS = (
    ("swift", re.compile(r"(?:^|[/\s])(?:swift(?:/cli/|\s+)(?P<verb>sft|pt|rlhf)(?:\.py)?)(?=\s|$)")),
    ("megatron", re.compile(r"(?:^|\s)megatron\s+(?P<verb>sft|pt|rlhf)(?=\s|$)")),
    (
        "llama-factory",
        re.compile(r"(?:^|[/\s])(?:llamafactory-cli\s+(?P<verb>train)|train_bash\.py|src/train\.py)(?=\s|$)"),
    ),
)
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(\S*|\"[^\"]*\"|'[^']*')\s*(?:#.*)?")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")
_QUOTIENT = re.compile(r"\$\(expr (\d+(?: / \d+)+)\)|\$\(\(\s*(\d+(?:\s*/\s*\d+)+)\s*\)\)")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class ShellCommand(NamedTuple):
    """A command: its program and verb, its options with their places, and the variables that count ranks."""

    program: str
    verb: str
    source: Source
    ranks: int | None
    config: str
    """The YAML or JSON that it names before its options; empty where there is none."""
    others: int
    """Further training commands of the script."""


def is_shell_script(file: str, text: str) -> bool:
    """Is it a script by its name or its first line?"""
    return file.endswith((".sh", ".bash")) or (text.startswith("#!") and "sh" in text.split("\n", 1)[0])


def find_training_command(file: str, text: str) -> ShellCommand | None:
    """The first training command of the script; None for a script without one."""
    variables: dict[str, str] = {}
    commands: list[tuple[str, str, int, str]] = []
    for first_line, line in _logical_lines(text):
        assignment = _ASSIGNMENT.fullmatch(line)
        if assignment is not None:
            variables[assignment[1]] = _fill_in(assignment[2].strip("\"'"), variables)
            continue
        for program, pattern in _PROGRAMS:
            match = pattern.search(line)
            if match is not None:
                commands.append((program, match["verb"] or "train", first_line, line))
                break
    if not commands:
        return None
    program, verb, first_line, line = commands[0]
    words = _split_words(_fill_in(line, variables))
    options, config = _read_options(words)
    spots = _find_places(file, text, first_line, options)
    inline = {name: value for name, _, value in (word.partition("=") for word in words) if value}
    ranks = _count_ranks({**variables, **inline, **dict(_launcher_options(words))})
    source = Source(file, "yaml", text, options, spots)
    return ShellCommand(program, verb, source, ranks, config, len(commands) - 1)


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
    """Variables that the script sets, defaults in `${NAME:-default}`, and whole quotients."""
    text = _VARIABLE.sub(lambda m: variables.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), text)

    def divide(match: re.Match[str]) -> str:
        total, *parts = (int(number) for number in (match[1] or match[2]).split("/"))
        return str(total // prod(parts)) if all(parts) else match[0]

    return _QUOTIENT.sub(divide, text)


def _split_words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # an open quote
        return line.split()


def _read_options(words: list[str]) -> tuple[dict[str, Any], str]:
    options: dict[str, Any] = {}
    config = ""
    name = ""
    seen_program = False
    for word in words:
        if word in (";", "&&", "||", "|", "&") or word.startswith((">", "2>")):
            if seen_program:
                break
            continue
        if re.search(r"(^|/)(sft|pt|rlhf|train|train_bash)(\.py)?$", word):
            seen_program = True
            options, name = {}, ""
        elif word.startswith("--") and len(word) > 2:
            name, has_value, value = word[2:].partition("=")
            name = name.replace("-", "_")
            options[name] = _read_value(value) if has_value else True
        elif seen_program and config and not name and "=" in word:  # LLaMA-Factory's `key=value` after a file
            key, _, value = word.partition("=")
            options[key] = _read_value(value)
        elif name:
            value = _read_value(word)
            previous = options[name]
            if previous is True:
                options[name] = value
            else:
                options[name] = [*(previous if isinstance(previous, list) else [previous]), value]
        elif seen_program and word.endswith((".yaml", ".yml", ".json")):
            config = word
    return options, config


def _read_value(text: str) -> Any:
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if _NUMBER.fullmatch(text):
        number = float(text)
        return int(number) if re.fullmatch(r"[-+]?\d+", text) else number
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _find_places(file: str, text: str, first_line: int, options: dict[str, Any]) -> dict[KeyPath, EntryPlace]:
    lines = text.split("\n")
    spots: dict[KeyPath, EntryPlace] = {(): EntryPlace(None, Place(file, first_line, 1))}
    for name in options:
        pattern = re.compile(rf"(?:--|(?<=\s)){re.escape(name).replace('_', '[-_]')}(?=[\s=\\]|$)")
        for number, line in enumerate(lines[first_line - 1 :], first_line):
            match = pattern.search(line)
            if match is not None:
                place = Place(file, number, match.start() + 1, match.end() - match.start())
                spots[(name,)] = EntryPlace(place, place)
                break
    return spots


def _launcher_options(words: list[str]) -> Iterator[tuple[str, str]]:
    """torchrun's `--nproc_per_node` and `--nnodes`, by the names of their variables."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, has_value, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in ("nproc_per_node", "nnodes"):
            yield name.upper(), value if has_value else following


def _count_ranks(variables: dict[str, str]) -> int | None:
    """`NPROC_PER_NODE` and `NNODES`, as ms-swift and torchrun read them."""
    per_node, nodes = variables.get("NPROC_PER_NODE", ""), variables.get("NNODES", "1")
    if not per_node.isdigit():
        devices = variables.get("CUDA_VISIBLE_DEVICES", "")
        is_single = re.fullmatch(r"\d+", devices) is not None
        return 1 if is_single else None
    return int(per_node) * int(nodes) if nodes.isdigit() else None
