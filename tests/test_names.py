# SPDX-License-Identifier: Apache-2.0
"""The glossary of CONTRIBUTING.md, held over the syntax trees: names of modules, classes and public functions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "harness"
FIELD_NOUNS = {
    "autotuning",
    "batching",
    "binding",
    "checkpointing",
    "clipping",
    "folding",
    "launching",
    "mapping",
    "packing",
    "padding",
    "stopping",
    "string",
    "tuning",
}
"""Words in -ing that the field uses as nouns: core binding, early stopping, gradient clipping, bin packing."""
ADVERBS = {"ahead", "apart", "here", "together", "anew", "beside", "meanwhile"}
PRIVATE_WORDS = {
    "anew",
    "apart",
    "attest",
    "attestation",
    "beside",
    "corpus",
    "deed",
    "ladder",
    "lean",
    "mend",
    "onlooker",
    "orders",
    "rung",
    "settle",
    "starter",
    "told",
}
"""Words of our own for something that has a name in the field; the glossary has that name."""
PARTICIPLES = {
    "adopted",
    "asked",
    "begun",
    "checked",
    "chosen",
    "drawn",
    "fixed",
    "found",
    "given",
    "judged",
    "kept",
    "loaded",
    "made",
    "measured",
    "played",
    "prepared",
    "said",
    "seen",
    "swapped",
    "taken",
    "trained",
    "tuned",
    "wanted",
}
"""No name of a class or public function by itself: `CheckedFile` is a noun, `Checked` is not."""
BARE_VERBS = {"begin", "hold", "judge", "look", "mend", "note", "over", "play", "say", "settle", "take", "tell"}
"""Verbs that need an object: `log_step`, not `note`."""
QUESTION_WORDS = {"what", "which", "how", "who", "where"}
"""No first word of a module docstring."""
SHARED_BASE_NAMES = {"__init__", "__main__"}


def modules() -> list[Path]:
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def definitions(path: Path) -> Iterator[tuple[str, str]]:
    """(kind, name) of every class, public function and public method of a file."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield "class", node.name
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield "function", node.name


@pytest.mark.parametrize("path", modules(), ids=str)
def test_names_are_the_fields(path: Path) -> None:
    own = path.parent.name if path.stem == "__init__" else path.stem
    last = words(own)[-1] if words(own) else ""
    problems = []
    if last.endswith("ing") and last not in FIELD_NOUNS | {"nothing", "everything"}:
        problems.append(f"module `{own}` is a gerund")
    if own in ADVERBS or set(words(own)) & PRIVATE_WORDS:
        problems.append(f"module `{own}` has a word that the glossary replaces")
    for kind, name in definitions(path):
        parts = words(name)
        if set(parts) & PRIVATE_WORDS:
            problems.append(f"{kind} `{name}` has a word that the glossary replaces")
        if len(parts) == 1 and parts[0] in PARTICIPLES | ADVERBS | (BARE_VERBS if kind == "function" else set()):
            problems.append(f"{kind} `{name}` is a participle, an adverb or a verb without an object")
    assert not problems, "\n".join(problems)


def test_base_names_are_unique() -> None:
    """A stack trace or a search hit says which module it is. A command and its view share the command's name."""
    paths = defaultdict(list)
    for path in modules():
        if path.stem in SHARED_BASE_NAMES or path.is_relative_to("gates/rules"):
            continue
        paths[path.stem].append(path)
    ambiguous = {
        stem: sorted(map(str, where))
        for stem, where in paths.items()
        if len({path for path in where if path.parts[0] not in ("cli", "views")}) > 1
        or len([path for path in where if path.parts[0] == "views"]) > 1
    }
    assert not ambiguous


def test_files_are_short() -> None:
    """A command is one thin file; no file is longer than a newcomer reads at one go. Gates are read one at a time."""
    lines = {path: len((PACKAGE / path).read_text(encoding="utf-8").splitlines()) for path in modules()}
    limits = {
        path: 150 if path.parts[0] == "cli" else 520 if path.is_relative_to("gates/rules") else 400 for path in lines
    }
    assert not {path: count for path, count in lines.items() if count > limits[path]}


def repository_files() -> list[Path]:
    """Every Python file of the project: the package, its tests, benchmarks and scripts."""
    return sorted(
        path for folder in ("harness", "tests", "benchmarks", "launch") for path in (ROOT / folder).rglob("*.py")
    )


def test_module_docstrings_name_the_thing() -> None:
    """`Conversion of records`, not `What a record becomes`: a reader scans the first words of many files."""
    first_words = {
        path.relative_to(ROOT): docstring.split(maxsplit=1)[0].strip(",:'").removesuffix("'s").lower()
        for path in repository_files()
        if (docstring := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert len(first_words) > 500, "the docstrings were read"
    assert not {str(path): word for path, word in first_words.items() if word in QUESTION_WORDS}
