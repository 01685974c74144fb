# SPDX-License-Identifier: Apache-2.0
"""The documents of the project, their fenced blocks, and how each block of commands is marked.

An HTML comment on the line before the fence marks a block: `<!-- run -->` (executed by the light tier, its output compared),
`<!-- run training -->` (executed by the training tier), `<!-- check-only -->` (commands, options and files must exist) and
`<!-- nightly -->` (executed with HARNESS_NIGHTLY=1). `<!-- file: NAME -->` makes a block an input file of its page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKS = ("run", "run training", "check-only", "nightly")
COMMAND_LANGUAGES = ("console", "sh")
OTHER_LANGUAGES = ("ini", "json", "python", "text", "toml", "yaml", "{toctree}")
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / folder / "README.md" for folder in ("benchmarks", "ds_configs", "harness", "hostfiles", "launch")),
        *(ROOT / "docs").glob("*.md"),
    ]
)
FENCE = re.compile(r"^(\s*)(`{3,})\s*(\S*)\s*$")
COMMENT = re.compile(r"^\s*<!-- (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: its page relative to the repository, the line of its fence, its language, comment and text."""

    page: str
    line: int
    language: str
    comment: str
    text: str

    @property
    def mark(self) -> str | None:
        return self.comment if self.comment in MARKS else None

    @property
    def file(self) -> str | None:
        return self.comment.removeprefix("file: ") if self.comment.startswith("file: ") else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order. Raises ValueError for a fence that is never closed."""
    lines = page.read_text(encoding="utf-8").splitlines()
    name, blocks, number = str(page.relative_to(ROOT)), [], 0
    while number < len(lines):
        opening = FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != opening[2]:
            end += 1
        if end == len(lines):
            raise ValueError(f"{name}:{number + 1}: the fence is not closed")
        comment = COMMENT.match(lines[number - 1]) if number else None
        text = "".join(line.removeprefix(opening[1]) + "\n" for line in lines[number + 1 : end])
        blocks.append(Block(name, number + 1, opening[3], comment[1] if comment else "", text))
        number = end + 1
    return blocks


def blocks_marked(mark: str, pages: list[Path] = PAGES) -> list[Block]:
    """The blocks of all pages with this mark."""
    return [block for page in pages for block in read_blocks(page) if block.mark == mark]


def write_files(page: str, folder: Path) -> None:
    """Put the input files of a page into a folder, and the recipes and hostfiles beside them."""
    for name in ("ds_configs", "hostfiles"):
        (folder / name).symlink_to(ROOT / name)
    for block in read_blocks(ROOT / page):
        if block.file is not None:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")


def command_lines(block: Block) -> list[str]:
    """The commands of a block: lines after `$ ` of a console, all lines of a script; a backslash continues a line."""
    joined = block.text.replace("\\\n", " ")
    if block.language == "console":
        return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def split_console(text: str) -> list[tuple[str, str]]:
    """A console as (command, output) in order."""
    pieces = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    return list(zip(pieces[1::2], pieces[2::2], strict=True))


def output_matches(shown: str, printed: str) -> bool:
    """Whether `printed` is what is shown. A line `[...]` stands for any lines, ` [...]` at the end of one for its rest."""
    pattern = ""
    for line in shown.splitlines():
        if line == "[...]":
            pattern += r"(?:.*\n)*?"
        elif line.endswith(" [...]"):
            pattern += re.escape(line.removesuffix("[...]")) + ".*\n"
        else:
            pattern += re.escape(line) + "\n"
    return re.fullmatch(pattern, printed) is not None
