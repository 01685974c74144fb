# SPDX-License-Identifier: Apache-2.0
"""Packages that are not as tested, and the true sentence about them at once: editable ones, CUDA builds, other releases."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import pytest

from harness.check import environment_fit
from harness.facts.deepspeed_version import installed_source_folder
from harness.launching.programs.doctor_checks import _check_patches
from harness.launching.setup import launch_checks
from harness.patches import patch_registry, targets
from harness.patches.patch_registry import PatchState, find_patch
from harness.patches.refused_patches import advise_release, refusal_of
from harness.patches.targets import Target, check_target, compute_digest
from harness.runtime.simulation import native_library
from harness.runtime.simulation.native_library import SimulationUnavailableError, load_native_library
from harness.views.doctor import render_checks
from harness.views.style import style_for


class EditableFinder:
    """The finder of `pip install -e` (PEP 660): the package is in no folder of `sys.path`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(self.folder)]) if name == "deepspeed" else None


@pytest.fixture
def editable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    runtime = tmp_path / "source" / "deepspeed" / "runtime"
    runtime.mkdir(parents=True)
    (runtime / "engine.py").write_text("def load(): return 1\n", encoding="utf-8")
    for folder in (runtime, runtime.parent):
        (folder / "__init__.py").write_text("def top(): return 2\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not Path(entry or ".", "deepspeed").is_dir()])
    monkeypatch.setattr(sys, "meta_path", [EditableFinder(tmp_path / "source"), *sys.meta_path])
    compute_digest.cache_clear()
    targets.forget_modules()
    yield runtime.parent
    compute_digest.cache_clear()
    targets.forget_modules()


def test_an_editable_package_is_found(editable: Path) -> None:
    assert installed_source_folder() == editable
    for name in ("deepspeed.runtime.engine:load", "deepspeed.runtime:top", "deepspeed:top"):
        assert check_target(Target(name)) == "as tested", name
    assert check_target(Target("deepspeed.runtime.engine:save")) == "missing"


def _change_target(monkeypatch: pytest.MonkeyPatch, patch_name: str) -> None:
    changed = {target.name for target in find_patch(patch_name).targets}
    monkeypatch.setattr(
        patch_registry, "check_target", lambda target: "changed" if target.name in changed else "as tested"
    )


def test_a_patch_of_every_saving_run_is_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec
    from tests.support.plan_inputs import TINY

    spec = RunSpec.model_validate(
        {
            "model": {"config": TINY},
            "data": {"train": "builtin:python-docs", "max_length": 64},
            "train": {"max_steps": 1, "per_device_train_batch_size": 1},
            "zero": {"stage": 3},
        }
    )
    run = resolve_run(spec, name="run", cluster=None, world_size=2)
    monkeypatch.setattr(environment_fit, "installed_source_folder", Path)
    monkeypatch.setattr(patch_registry, "check_target", lambda _: "as tested")
    assert environment_fit.check_environment(run) == []
    _change_target(monkeypatch, "checkpoint-engine")
    (finding,) = environment_fit.check_environment(run)
    assert finding.gate == "EN130"
    assert "`checkpoint-engine` does not match" in finding.message
    softened = launch_checks.soften_for_dry_run([finding], has_local_ranks=True)
    assert [each.severity for each in softened] == ["error"]
    (row,) = (row for row in _check_patches() if row.name == "checkpoint-engine")
    assert (row.state, row.means) == ("missing", "; ".join((finding.message, *finding.notes)))


def test_the_fix_names_the_package_whose_target_changed() -> None:
    patch = find_patch("zero3-pretrained-weights")
    of_transformers = [target.name for target in patch.targets if target.name.startswith("transformers")]
    assert of_transformers
    advice = advise_release(patch, of_transformers)
    assert "install transformers 5.24" in advice
    assert "deepspeed" not in advice
    assert "install deepspeed 0.19.8" in advise_release(patch, ["deepspeed.runtime.engine:x", *of_transformers])
    state = PatchState(patch, "refused", "`x` is missing", tuple(of_transformers))
    assert "deepspeed" not in refusal_of(state).fix.title.partition(", or set")[0]


def test_doctor_names_a_patch_of_every_run_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launching.programs.doctor_checks.installed_source_folder", Path)
    monkeypatch.setattr(patch_registry, "check_target", lambda _: "changed")
    states = {row.name: row.state for row in _check_patches()}
    for patch in patch_registry.all_patches():
        is_plain = not patch.may_be_skipped and any(patch.is_needed(patch_registry.PatchFacts(n)) for n in range(4))
        assert states[patch.name] == ("missing" if is_plain and not patch.refuses_when_used else "note")
    assert "missing" in states.values()


def test_doctor_says_which_runs_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.launching.programs.doctor_checks.installed_source_folder", Path)
    monkeypatch.setattr(
        patch_registry, "check_target", lambda t: "changed" if "PipelineModule._build" in t.name else "as tested"
    )
    text = render_checks(list(_check_patches()), style_for(io.StringIO()))
    last = text.splitlines()[-1]
    assert last.startswith(f"Training can start here, except {find_patch('pipeline-stages').when}; ")


@pytest.mark.parametrize("build", ["hip", "xpu"])
def test_a_torch_that_cannot_simulate_is_named(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "find_torch_build", lambda: build)
    with pytest.raises(SimulationUnavailableError, match=f"a build for {build.upper()}") as refused:
        load_native_library()
    assert "torch 2.13 or 2.14" in refused.value.fix
