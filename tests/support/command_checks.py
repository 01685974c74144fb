# SPDX-License-Identifier: Apache-2.0
"""Whether a command of the documentation can be typed: the program, its options and the files that it names exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.main import get_command

from harness.cli.app import build_app
from harness.cli.command_list import COMMANDS
from tests.support.markdown_blocks import ROOT, Block, command_lines, read_blocks

FOREIGN = {"bash", "cat", "cd", "cp", "export", "git", "hf", "mkdir", "pre-commit", "source", "ssh", "touch"}
"""Programs of others, which are not checked."""
OF_DEEPSPEED = {"deepspeed.checkpoint.ds_to_universal", "zero_to_fp32.py", "zero_to_torch.py"}
"""A module of DeepSpeed, and the scripts that it writes into a checkpoint."""
SEPARATORS = {"|", "||", "&&", "&", ";"}
WRITES = {">", ">>", "--out", "--output", "-o", "--plot", "--write"}
"""Words after which comes a file that the command makes."""
SUFFIXES = (".csv", ".json", ".jsonl", ".log", ".py", ".toml", ".yaml", ".yml")
OUTPUTS = {"checkpoint-500", "data", "my-70b-sft", "rehearsals", "runs", "tuning"}
"""Folders that runs and users make."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def find_problems(block: Block) -> list[str]:
    """A sentence for each thing that the block's commands name and that does not exist."""
    files = {other.file for other in read_blocks(ROOT / block.page) if other.file is not None}
    earlier = [other for other in read_blocks(ROOT / block.page) if other.mark and other.line <= block.line]
    made = {name for other in earlier for line in command_lines(other) for name in _files_made(line)}
    return [
        f"{block}: {line.strip()}: {problem}"
        for line in command_lines(block)
        for words in split_words(line)
        for problem in _problems_of(words, files | made)
    ]


def split_words(line: str) -> list[list[str]]:
    """The simple commands of a line, without redirections, variables in front and `sudo`."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in SEPARATORS:
            commands.append([])
        elif word in (">", ">>", "<"):
            next(words)
        elif not commands[-1] and (word == "sudo" or re.fullmatch(r"[A-Z_]+=.*", word)):
            continue
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def _files_made(line: str) -> Iterator[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = list(lexer)
    for word, following in pairwise(words):
        if word in WRITES:
            yield following
    if words and words[0] == "cp":
        yield words[-1]


def _problems_of(words: list[str], known: set[str]) -> Iterator[str]:
    program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
    if program in FOREIGN:
        yield from _missing_files(arguments[:-1] if program == "cp" else arguments, known)
        return
    if program == "python" and OF_DEEPSPEED.intersection(Path(word).name for word in arguments):
        return
    yield from _missing_files(arguments, known)
    if program == "harness":
        yield from _problems_of_harness(arguments)
    elif program == "make":
        yield from (f"`make {word}` is no target" for word in arguments if "=" not in word and word not in TARGETS)
    elif program == "python":
        yield from _problems_of_python(arguments) if arguments[0] not in known else ()
    elif program == "pip":
        extras = {extra for word in arguments for found in re.findall(r"\[(.+)\]", word) for extra in found.split(",")}
        yield from (f"there is no extra `{name}`" for name in extras - set(PROJECT["optional-dependencies"]))
    elif program == "pytest":
        return
    elif "/" in program:
        if not (ROOT / program).is_file():
            yield f"`{program}` does not exist"
    else:
        yield f"`{program}` is no program that the documentation may use without a check"


def _problems_of_harness(arguments: list[str]) -> Iterator[str]:
    if arguments in (["--version"], ["--help"]):
        return
    if not arguments or arguments[0] not in COMMANDS:
        yield f"`harness {' '.join(arguments[:1])}` is no command"
        return
    application: Any = get_command(build_app(arguments[:1]))
    try:
        application.commands[arguments[0]].make_context(arguments[0], arguments[1:])
    except Exception as error:
        yield str(error)


def _problems_of_python(arguments: list[str]) -> Iterator[str]:
    if arguments[:1] == ["-m"]:
        module = arguments[1]
        if module in ("pip", "pytest", "venv"):
            yield from _problems_of([module, *arguments[2:]], set()) if module == "pip" else ()
            return
        path = ROOT / module.replace(".", "/")
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        rest = arguments[2:]
    elif arguments[:1] == ["-c"]:
        return
    else:
        file, rest = ROOT / arguments[0], arguments[1:]
    if not file.is_file():
        yield f"`{file.relative_to(ROOT)}` does not exist"
        return
    text = file.read_text(encoding="utf-8")
    yield from (f"`{word}` is no option of it" for word in rest if word.startswith("--") and f'"{word}"' not in text)


def _missing_files(words: list[str], known: set[str]) -> Iterator[str]:
    top = {path.name for path in ROOT.iterdir()}
    previous = ""
    for word in words:
        is_output, previous = previous in WRITES, word
        first = Path(word).parts[0] if Path(word).parts else ""
        if is_output or word in known or word.startswith(("-", "/", "~")) or first in OUTPUTS or "*" in word:
            continue
        if ("/" in word and first in top) or word.endswith(SUFFIXES):
            path = word.partition("::")[0]
            if "=" not in word and not (ROOT / path).exists():
                yield f"`{word}` does not exist"
