"""The plain command lines of `validate-config`, read without typer, whose import takes as long as all of the checking.

Only what is certainly right is read here; anything else, every mistake and `--help` among it, is left to typer. A test
compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.cli.validation import ValidateOptions

TEXTS = {
    "--hostfile": "hostfile",
    "--world-size": "world_size",
    "--deepspeed-version": "deepspeed_version",
    "--consumer": "consumer",
    "--stdin-filename": "stdin_filename",
    "--format": "format",
}
LISTS = {"--set": "overrides", "--select": "select", "--ignore": "ignore"}
FLAGS = {
    "--strict": "strict",
    "--fix": "fix",
    "--diff": "diff",
    "--dry-run": "diff",
    "--unsafe-fixes": "unsafe_fixes",
}
CHOICES = {"format": ("text", "json", "github", "sarif"), "consumer": ("hf", "accelerate", "deepspeed")}


def read(arguments: Sequence[str]) -> ValidateOptions | None:
    """The options that the arguments after `validate-config` ask for; None where typer must look."""
    found: dict[str, Any] = {}
    lists: dict[str, list[str]] = {"files": []}
    rest = list(reversed(arguments))
    while rest:
        word = rest.pop()
        name, equals, value = word.partition("=")
        if word == "--":
            lists["files"] += reversed(rest)
            break
        if not word.startswith("-") or word == "-":
            lists["files"].append(word)
        elif word in FLAGS:
            found[FLAGS[word]] = True
        elif name in TEXTS or name in LISTS:
            if not equals:
                value = rest.pop() if rest else ""
            if not value or value.startswith("-"):
                return None
            if name in LISTS:
                lists.setdefault(LISTS[name], []).append(value)
            elif found.setdefault(TEXTS[name], value) is not value:
                return None  # given twice
        else:
            return None
    return _options(found, lists)


def _options(found: dict[str, Any], lists: dict[str, list[str]]) -> ValidateOptions | None:
    size = found.get("world_size", "1")
    if not lists["files"] or "" in lists["files"] or not (size.isascii() and size.isdigit() and int(size[:9]) > 0):
        return None
    if any(found.get(name, words[0]) not in words for name, words in CHOICES.items()):
        return None
    if "world_size" in found:
        found["world_size"] = int(size)
    found |= {name: tuple(values) for name, values in lists.items()}
    return ValidateOptions(**found)
