# SPDX-License-Identifier: Apache-2.0
"""Every block of commands in the documentation is marked, can be typed, and prints what it shows where it is marked `run`.

`DOCS_WRITE=1 pytest tests/docs/test_console_blocks.py` writes what is printed into the pages.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from tests.support.command_checks import find_problems
from tests.support.markdown_blocks import (
    COMMAND_LANGUAGES,
    OTHER_LANGUAGES,
    PAGES,
    ROOT,
    Block,
    blocks_marked,
    command_lines,
    output_matches,
    read_blocks,
    split_console,
    write_files,
)

COMMAND_BLOCKS = [block for page in PAGES for block in read_blocks(page) if block.language in COMMAND_LANGUAGES]
RUN_PAGES = sorted({block.page for block in blocks_marked("run")})
PROGRAMS = ("harness ", "make ", "pip ", "python ", "$ ")


def run_command(command: str, folder: Path) -> str:
    """What a shell prints, on both streams, where a user would stand."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, text=True, check=False, stdout=-1, stderr=subprocess.STDOUT
    )
    return done.stdout


def write_output(block: Block, outputs: list[str]) -> None:
    """Put what was printed into the page, shortened where it was before: as many lines before and after `[...]`."""
    page = ROOT / block.page
    shown = split_console(block.text)
    text = "".join(
        f"$ {command}\n{shorten(expected, output)}" for (command, expected), output in zip(shown, outputs, strict=True)
    )
    page.write_text(page.read_text(encoding="utf-8").replace(block.text, text), encoding="utf-8")


def shorten(before: str, output: str) -> str:
    """The output, cut as the text before it was: of the lines that it shows, those that are most alike, in order."""
    new, chosen, place = output.splitlines(), [], 0
    if "[...]" not in before.splitlines():
        chosen = new
    else:
        for line in before.splitlines():
            if line == "[...]":
                chosen.append(line)
                continue
            ratios = [SequenceMatcher(None, line, other).ratio() for other in new[place:]]
            place += ratios.index(max(ratios)) + 1
            chosen.append(new[place - 1])
    for number, line in enumerate(before.splitlines()[: len(chosen)]):
        if line.endswith(" [...]"):
            chosen[number] = chosen[number][: len(line) - len(" [...]")].rstrip() + " [...]"
    return "".join(f"{line}\n" for line in chosen)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_names_its_language_and_every_command_block_its_mark(page: Path) -> None:
    for block in read_blocks(page):
        assert block.language in COMMAND_LANGUAGES + OTHER_LANGUAGES, f"{block}: language `{block.language}`"
        if block.language in COMMAND_LANGUAGES:
            assert block.mark is not None, (
                f"{block}: mark it run, run training, check-only or nightly (CONTRIBUTING.md)"
            )
        elif block.language == "text" and block.file is None:
            commands = [line for line in block.text.splitlines() if line.startswith(PROGRAMS)]
            assert not commands, f"{block}: commands belong in a marked `sh` or `console` block"


@pytest.mark.parametrize("block", COMMAND_BLOCKS, ids=str)
def test_the_commands_can_be_typed(block: Block) -> None:
    assert command_lines(block), f"{block}: no command"
    assert find_problems(block) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_and_targets_that_sentences_name_exist(page: Path) -> None:
    """Each figure has its command next to it: a script with these options, or a target."""
    text = re.sub(r"^(`{3,}).*?^\1\s*$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`((?:python|make) [^`]+)`", text):
        command = " ".join(span.split())
        if "-c" not in command.split() and "..." not in command:
            block = Block(str(page.relative_to(ROOT)), 0, "sh", "check-only", command + "\n")
            assert find_problems(block) == []


@pytest.mark.parametrize("page", RUN_PAGES)
def test_run_blocks_print_what_they_show(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    for block in [block for block in blocks_marked("run") if block.page == page]:
        assert block.language == "console", f"{block}: what runs has its output below it"
        shown = split_console(block.text)
        printed = [run_command(command, tmp_path) for command, _ in shown]
        for (command, expected), output in zip(shown, printed, strict=True):
            if os.environ.get("DOCS_WRITE") and not output_matches(expected, output):
                write_output(block, printed)
                break
            assert output_matches(expected, output), f"{block}: {command} printed\n{output}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("harness lunch ds_configs/demo.yaml", "is no command"),
        ("harness plan ds_configs/demo.yaml --no-such-option", "No such option"),
        ("harness launch ds_configs/demo.yaml --max-restarts many", "integer"),
        ("harness plan ds_configs/no-such-recipe.yaml", "does not exist"),
        ("harness plan my.yaml", "does not exist"),
        ("make coffee", "is no target"),
        ("pip install '.[trian]'", "no extra"),
        ("python benchmarks/peers.py --sort", "is no option"),
        ("python benchmarks/no_such.py", "does not exist"),
        ("fetch everything", "is no program"),
    ],
)
def test_a_wrong_command_is_found(text: str, problem: str) -> None:
    found = find_problems(Block("README.md", 10**6, "sh", "check-only", text + "\n"))
    assert any(problem in sentence for sentence in found)


def test_an_output_may_be_shortened_but_not_differ() -> None:
    assert output_matches("a\n[...]\nFound 1, [...]\n", "a\nb\nc\nFound 1, and more\n")
    assert output_matches("a\n[...]\nb\n", "a\nb\n")
    assert not output_matches("a\n[...]\nb\n", "a\nc\n")
    assert not output_matches("a\n", "a\nb\n")
