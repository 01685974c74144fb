# SPDX-License-Identifier: Apache-2.0
"""The harness under a DeepSpeed in which all targets of patches have other names: a run that needs none of these patches
trains, one that does goes on without it or is refused before there is an engine.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import deepspeed
import pytest

from harness.patches.patch_registry import all_patches
from tests.support.changed_sources import PACKAGES, rename_everywhere
from tests.support.training.forked_ranks import ForkedRanks

JOB = Path(__file__).parents[1] / "jobs" / "train_with_overlay.py"
KEPT = (
    *("__init__", "all_reduce", "forward", "load_state_dict", "step"),  # Python and torch call them
    *("tensor_fragment", "z3_leaf_module"),  # modules have these names, too
    "zero_optimization",  # a key of DeepSpeed's JSON, too
)
"""Names that are still there in a renamed definition's place: DeepSpeed would not run without them."""
ON_CPU = {"stage": 3, "offload_optimizer": {"device": "cpu"}}
RUNS: dict[str, dict[str, Any]] = {
    "cpu-offload-single-grad": {"zero": {"stage": 3}},
    "nvme-counters": {"zero": ON_CPU},
    "nvme-offload-no-grad-swap": {"zero": ON_CPU},
    "nvme-prefetch-duplicate": {"zero": ON_CPU},
    "nvme-release": {"zero": ON_CPU},
    "stage0-hidden-step": {"zero": {"stage": 1}, "precision": {"bf16": True}},
    "stage0-nonfinite-guard": {"zero": {"stage": 1}},
}
"""Runs that do not need a patch, as near to one that does as may be; stage 2 for others."""
GROUPS: dict[str, list[Any]] = {}
"""The sections of a run, as JSON -> the patches that it does not need."""
for _patch in all_patches():
    GROUPS.setdefault(json.dumps({"zero": {"stage": 2}, **RUNS.get(_patch.name, {})}), []).append(_patch)


@pytest.fixture
def train(fresh: ForkedRanks, tmp_path: Path) -> Any:
    """`train(patches, sections)`: what the job writes, and its output, under the overlay for these patches."""

    def run(patches: list[Any], sections: dict[str, Any], *, renamed: bool = True) -> tuple[dict[str, Any], str]:
        overlay, place = tmp_path / "overlay", tmp_path / f"renamed-{renamed}"
        if renamed:
            rename_everywhere(overlay, [target.name for patch in patches for target in patch.targets], KEPT)
        out = tmp_path / f"{place.name}.json"
        names = ",".join(patch.name for patch in patches)
        arguments = [str(overlay) if renamed else "none", names, json.dumps(sections), str(out), str(place)]
        answer = fresh.run(JOB, *arguments, ranks=1)
        return json.loads(out.read_text()), answer["output"][0]

    return run


def names_of(patch: Any) -> list[str]:
    """Its targets that are still defined in the overlay, or in a package that is imported without it."""
    return [
        target.name
        for target in patch.targets
        if re.split("[.:]", target.name)[-1] in KEPT or not target.name.startswith(PACKAGES)
    ]


def patch_of(name: str) -> Any:
    return next(patch for patch in all_patches() if patch.name == name)


@pytest.mark.parametrize("run", GROUPS)
def test_a_run_that_does_not_need_the_patches_trains(run: str, train: Any) -> None:
    outcome, output = train(GROUPS[run], {**json.loads(run), "train": {"max_steps": 1}})
    assert outcome["error"] is None
    assert len(outcome["losses"]) == 1
    for patch in GROUPS[run]:
        assert outcome["found"][patch.name] == names_of(patch)
        state = outcome["states"][patch.name]
        if state != "not needed":
            assert patch.kind in ("start-up", "measurement"), patch.name
            assert state.startswith("skipped: ")
            assert f"patch {patch.name}: {state.replace(': ', ', ')}" in output


def test_a_run_that_needs_a_memory_patch_trains_without_it(train: Any) -> None:
    patch, sections = patch_of("cpu-offload-single-grad"), {"zero": ON_CPU, "precision": {"bf16": True}}
    (without, output), (with_it, _) = train([patch], sections), train([patch], sections, renamed=False)
    reason = ", ".join(f"`{target.name}` is missing" for target in patch.targets)
    assert with_it["states"][patch.name] == "applied"
    assert without["states"].pop("one-pass-adam").startswith("skipped: ")  # it shares a target
    assert with_it["states"].pop("one-pass-adam") == "applied"
    assert without["states"] == {**with_it["states"], patch.name: f"skipped: {reason}"}
    assert output.count(f"patch {patch.name}: skipped, {reason}") == 1
    assert without["losses"] == with_it["losses"]
    assert len(without["losses"]) == 4
    assert (without["found"][patch.name], len(with_it["found"][patch.name])) == ([], len(patch.targets))


@pytest.mark.parametrize("name", ["stage0-hidden-step", "stage0-nonfinite-guard"])
def test_a_run_that_needs_a_correctness_patch_is_refused_before_there_is_an_engine(name: str, train: Any) -> None:
    patch = patch_of(name)
    outcome, _ = train([patch], {"zero": {"stage": 0}, "precision": {"bf16": True}})
    assert (outcome["engines"], outcome["losses"]) == (0, [])
    gate, message, *rest = outcome["error"]
    assert gate == "EN130"
    assert name in message
    assert deepspeed.__version__ in message
    assert all(f"`{target.name}` is missing" in message for target in patch.targets)
    ways_out = " ".join(rest)
    assert ", ".join(patch.tested) in ways_out
    assert "install" in ways_out
    assert f"launch.patches: {{{name}: off}}" in ways_out
