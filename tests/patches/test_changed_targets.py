# SPDX-License-Identifier: Apache-2.0
"""Every target of every patch, renamed and changed in a copy of its source file: the patch is skipped or refused, and no
other patch is. Nothing is imported of the packages that are patched.
"""

from __future__ import annotations

from functools import cache

import pytest

from harness.facts.deepspeed_version import installed_source_folder
from harness.patches import targets
from harness.patches.patch_registry import PatchFacts, all_patches, select_patches
from tests.support.changed_sources import change_definition, find_source, rename_definition

pytestmark = pytest.mark.skipif(installed_source_folder() is None, reason="needs DeepSpeed's files")
CHANGES = {"missing": rename_definition, "changed": change_definition}
CASES = [
    pytest.param(patch, target, change, id=f"{patch.name}-{target.name}-{change}")
    for patch in all_patches()
    for target in patch.targets
    for change in CHANGES
    if target.digest or change == "missing"  # without a digest it only has to exist
]
RUNS = [
    PatchFacts(stage, optimizer, device, device, is_swapping_pipelined=True, overlap_step_gib=1)
    for stage in range(4)
    for optimizer in ("adamw", "muon")
    for device in ("none", "cpu", "nvme")
]
RUNS += [  # and each other fact, the other way
    PatchFacts(stage)._replace(**{name: not default if isinstance(default, bool) else 2})
    for stage in (2, 3)
    for name, default in PatchFacts._field_defaults.items()
    if isinstance(default, int) and name != "stage"
]


@pytest.fixture
def overlay(monkeypatch: pytest.MonkeyPatch):
    """`overlay(target, change)` answers with the target's file, changed, in place of the installed one."""

    def write(name: str, change: str) -> None:
        module, _, qualified_name = name.partition(":")
        text = CHANGES[change](find_source(module).read_text(encoding="utf-8"), qualified_name)
        read = targets.read_module_source
        monkeypatch.setattr(targets, "read_module_source", lambda other: text if other == module else read(other))
        for function in (targets._parse_module, targets.compute_digest):
            monkeypatch.setattr(targets, function.__name__, read_again(function, module))

    return write


def read_again(function, module):
    """The cached function of a name, which computes it again for names of this module."""
    again = cache(function.__wrapped__)
    return lambda name: (again if name.partition(":")[0] == module else function)(name)


def is_part(name: str, other: str) -> bool:
    """Is the definition `name` the definition `other`, or inside it?"""
    return f"{name}.".startswith(f"{other}.")


@pytest.mark.parametrize(("patch", "target", "change"), CASES)
def test_a_changed_target_skips_or_refuses_its_patches_alone(patch, target, change, overlay):
    assert any(map(patch.is_needed, RUNS))
    overlay(target.name, change)
    assert patch.find_changed_targets()[target.name] == change
    states = [select_patches(run, "auto") for run in RUNS]
    for index, other in enumerate(all_patches()):
        changed = [t.name for t in other.targets if is_part(target.name, t.name) and t.digest]
        gone = [t.name for t in other.targets if is_part(t.name, target.name) and change == "missing"]
        for state in (selected[index] for run, selected in zip(RUNS, states, strict=True) if other.is_needed(run)):
            assert state.patch == other
            if not changed and not gone:
                assert state.state == "applied"
                continue
            may_run = other.kind in ("memory", "performance", "start-up", "measurement")
            assert state.state == ("skipped" if may_run else "refused")
            assert all(
                f"`{name}` is {'missing' if name in gone else 'changed'}" in state.reason for name in changed + gone
            )
