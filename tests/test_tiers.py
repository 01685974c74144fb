# SPDX-License-Identifier: Apache-2.0
"""Tiers: a module has one, `-m` chooses them, and the light one imports nothing of the train extra."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import conftest
from tests.conftest import TESTS, TIERS, selected_tiers, tier_of

TRAIN_EXTRA = {
    "accelerate",
    "datasets",
    "deepspeed",
    "numpy",
    "peft",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
}
MODULES = sorted(TESTS.rglob("test_*.py"))
LIGHT = [path for path in MODULES if tier_of(path) == "light"]


def imports_at_top(path: Path) -> set[str]:
    """Modules that the file imports when it is imported itself."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_every_tier_has_tests() -> None:
    assert set(map(tier_of, MODULES)) == set(TIERS)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_a_light_module_imports_nothing_of_the_train_extra(path: Path) -> None:
    pending, seen = [path], set()
    while pending:
        names = imports_at_top(pending.pop()) - seen
        assert not {name.partition(".")[0] for name in names} & TRAIN_EXTRA, names
        seen |= names
        helpers = [TESTS.parent / f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests.")]
        pending += [file for file in helpers if file.is_file()]


@pytest.mark.parametrize(
    ("expression", "tiers"),
    [
        ("", TIERS),
        ("light", ["light"]),
        ("not hosts", ["light", "training", "gpu"]),
        ("light or (training and not gpu)", ["light", "training"]),
        ("skipif", TIERS),
        ("training and not skipif", TIERS),
    ],
)
def test_an_expression_chooses_tiers(expression: str, tiers: list[str]) -> None:
    config = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
    assert selected_tiers(config) == set(tiers)


def test_a_folder_gives_its_tier_and_a_module_its_own(tmp_path: Path) -> None:
    assert tier_of(TESTS / "training" / "plan" / "test_plan_counts.py") == "training"
    assert tier_of(TESTS / "training" / "plan" / "not_written_yet.py") == "training"
    assert tier_of(TESTS / "plan" / "not_written_yet.py") == "light"
    module = tmp_path / "test_a.py"
    module.write_text("import pytest\n\npytestmark = [*NEEDS_ROOT, pytest.mark.hosts]\n")
    assert tier_of(module) == "hosts"


@pytest.mark.parametrize(("is_night", "left"), [(False, ["day"]), (True, ["day", "night"])])
def test_what_is_of_the_night_is_left_out_by_day_and_not_skipped(
    is_night: bool, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "IS_NIGHT", is_night)
    deselected: list[str] = []
    hook = SimpleNamespace(pytest_deselected=lambda items: deselected.extend(item.name for item in items))
    config = SimpleNamespace(option=SimpleNamespace(markexpr="light"), hook=hook)
    items = [
        SimpleNamespace(
            name=name,
            path=Path(__file__),
            iter_markers=list,
            add_marker=lambda _: None,
            get_closest_marker=lambda mark, name=name: name == mark.removesuffix("ly"),
        )
        for name in ("day", "night")
    ]
    conftest.pytest_collection_modifyitems(config, items)
    assert [item.name for item in items] == left
    assert deselected == ([] if is_night else ["night"])
    module = tmp_path / "test_whole.py"
    module.write_text("pytestmark = [pytest.mark.light, pytest.mark.nightly]\n")
    assert conftest.pytest_ignore_collect(module, config) is (None if is_night else True)


def test_a_lock_that_a_killed_compiler_left_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left, held = (tmp_path / op / "lock" for op in ("cpu_adam", "async_io"))
    left.parent.mkdir()
    left.touch()
    held.parent.mkdir()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with held.open("w"):
        assert conftest.remove_locks_of_killed_compilers() == [left]
        assert held.exists()
    assert not left.exists()


def test_base_names_are_unique() -> None:
    """A name in a report says which module it is."""
    counts = Counter(path.stem for path in MODULES)
    assert [name for name, count in counts.items() if count > 1] == []
