# SPDX-License-Identifier: Apache-2.0
"""The tiers of the suite, and the rule that in CI a tier which should have run and did not is a failure.

A module belongs to one tier, by `pytestmark = pytest.mark.TIER` in the module or in the `conftest.py` of a folder above
it; a module without a mark is light. `pytest -m light` chooses a tier, `pytest -m "light or training"` several.

`pytest.mark.nightly`, of a module beside its tier, a test or a `pytest.param`, is for what HARNESS_NIGHTLY=1 runs alone:
else it is left out, not skipped, since what is skipped in CI is a failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.facts.deepspeed_version import installed_version
from harness.hostinfo.machine import package_version
from harness.hostinfo.torch_extensions import torch_extensions_dir
from harness.interpreter import freeze_imports
from harness.launching.ops.build_cache import find_op_folders, remove_stale_locks
from tests.support.object_store import s3, s3_server  # noqa: F401  (fixtures)

TESTS = Path(__file__).parent
HAS_DEEPSPEED = installed_version() is not None
TIERS = ("light", "training", "hosts", "gpu")
"""In the order in which they run: seconds before minutes, and before the ops that CI compiles meanwhile."""
MARK = re.compile(rf"^pytestmark = .*\bpytest\.mark\.({'|'.join(TIERS)})\b", re.MULTILINE)
NIGHTLY = re.compile(r"^pytestmark = .*\bpytest\.mark\.nightly\b", re.MULTILINE)
REMOVED_LOCKS = pytest.StashKey[list[Path]]()
IS_NIGHT = os.environ.get("HARNESS_NIGHTLY") == "1"
ALLOWED_SKIPS = (
    "this processor has no AVX512-FP16",
    "needs a GPU",
    "needs root",
    "needs chromium",
    "needs node",
    "needs slurm",
    "no control group with a memory limit",
    "WATCH_PROGRAMS names no",
)
"""Reasons that a machine may have; everything else must run in CI."""
if not HAS_DEEPSPEED:
    ALLOWED_SKIPS += ("needs DeepSpeed's files", "No module named 'accelerate'")
if "stores-test" not in os.environ.get("EXTRAS", "stores-test"):  # the oldest set of `.ci/run deps`
    ALLOWED_SKIPS += ("needs the extra stores-test",)
if (package_version("torch") or "3").startswith(("2.10.", "2.11.", "2.12.")):
    ALLOWED_SKIPS += ("needs torch 2.13",)


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tiers but their own, and refuse a tier that cannot run."""
    selected = selected_tiers(config)
    if selected != {"gpu"}:
        # Results are compared with the CPU's, and there are more ranks than a machine may have GPUs. A test about devices
        # makes some up (`support/fake_gpu.py`).
        os.environ |= {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if not HAS_DEEPSPEED and selected != {"light"} and ("light" not in selected or os.environ.get("CI")):
        raise pytest.UsageError("without DeepSpeed only `pytest -m light` can run: pip install -e '.[train,test]'")
    if selected != {"light"} and not hasattr(config, "workerinput"):
        config.stash[REMOVED_LOCKS] = remove_locks_of_killed_compilers()


def remove_locks_of_killed_compilers() -> list[Path]:
    """Locks that no process held. Ranks of the tests load ops without `harness launch`, and would wait for ever."""
    root = torch_extensions_dir()
    ops = [folder.name for folder in find_op_folders(root)]
    return [lock for lock, is_removed in remove_stale_locks(root, ops) if is_removed]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage collections leave out the tests and what they import, which saves a tenth of the time."""
    with freeze_imports():
        return (yield)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which tiers are left out."""
    left_out = [tier for tier in TIERS if not _can_run(tier, selected_tiers(config))]
    lines = [f"tiers left out: {', '.join(left_out)} (-m TIER runs one; CONTRIBUTING.md, Tests)"] if left_out else []
    lines += [f"removed {lock}: its compiler was killed" for lock in config.stash.get(REMOVED_LOCKS, [])]
    return lines if IS_NIGHT else [*lines, "the tests of the night are left out (HARNESS_NIGHTLY=1 runs them)"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no module of a tier that does not run: the light tier needs no torch, and collects in seconds."""
    if collection_path.is_dir():
        tier = tier_of(collection_path)
        return True if tier != "light" and not _can_run(tier, selected_tiers(config)) else None
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    if not IS_NIGHT and NIGHTLY.search(collection_path.read_text(encoding="utf-8")):
        return True
    return None if _can_run(tier_of(collection_path), selected_tiers(config)) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with its tier, put what needs seconds before what needs minutes, and leave the night's out by day."""
    for item in items:
        tier = tier_of(item.path)
        if {mark.name for mark in item.iter_markers() if mark.name in TIERS} - {tier}:
            raise pytest.UsageError(
                f"{item.nodeid}: write the tier in one line, `pytestmark = ...`, for the whole module"
            )
        item.add_marker(tier)
    items.sort(key=lambda item: TIERS.index(tier_of(item.path)))
    if not IS_NIGHT:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("nightly")])
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def selected_tiers(config: pytest.Config) -> set[str]:
    """The tiers that `-m` chooses: all of them where it is about other marks."""
    expression = config.option.markexpr
    names = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    if not names or names - set(TIERS):
        return set(TIERS)
    return {tier for tier in TIERS if eval(expression, {name: name == tier for name in TIERS})}  # noqa: S307  names of tiers


@cache
def tier_of(path: Path) -> str:
    """The tier of a module, or of the modules in a folder, read from the text: importing it may need torch."""
    source = path / "conftest.py" if path.is_dir() else path
    mark = MARK.search(source.read_text(encoding="utf-8")) if source.is_file() else None
    if mark:
        return mark[1]
    return tier_of(path.parent) if TESTS in path.parents else "light"


def _can_run(tier: str, selected: set[str]) -> bool:
    return tier in selected and (tier == "light" or HAS_DEEPSPEED)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """In CI a module that skips itself while it is imported fails."""
    report = yield
    return _fail_unexpected_skip(report, collector.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """In CI a skip without an allowed reason fails."""
    report = yield
    return _fail_unexpected_skip(report, item.nodeid)


def _fail_unexpected_skip(report, name: str):
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"{name} skipped in CI, where it should have run: {reason}"
    return report


@pytest.fixture
def write(tmp_path: Path):
    """`write("a.yaml", text)` makes a file in the test's own folder and returns its path as text."""

    def make(name: str, text: str | bytes) -> str:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)

    return make
