# SPDX-License-Identifier: Apache-2.0
"""No module of the harness needs a target of a patch while it is imported. Needs the training extra; seconds."""

from __future__ import annotations

import subprocess
import sys

from tests.support.training.runtime_helpers import ROOT

REMOVE_TARGETS_THEN_IMPORT = """
import importlib, sys
from pathlib import Path
from harness.patches.patch_registry import all_patches

removed = 0
for target in {target for patch in all_patches() for target in patch.targets}:
    module, _, path = target.name.partition(":")
    if not module.startswith("deepspeed."):
        continue
    owner = importlib.import_module(module)
    *scopes, name = path.split(".")
    for scope in scopes:
        owner = getattr(owner, scope, None)
    if name in vars(owner or sys) and not name.startswith("__"):
        delattr(owner, name)
        removed += 1
assert removed > 30, removed
for file in sorted(Path("harness").rglob("*.py")):
    parts = file.with_suffix("").parts
    needed_by_some_runs = ("deepspeed_io", "deferred_init")  # those that save or resume, and pipelines
    needed_by_some_runs += ("simulated_run", "simulated_save", "simulated_resume")  # a simulation saves and resumes
    if "workers" not in parts and not parts[-1].startswith("__") and parts[-1] not in needed_by_some_runs:
        importlib.import_module(".".join(parts))
print("imported")
"""


def test_no_module_needs_a_target_at_its_import():
    done = subprocess.run(
        [sys.executable, "-c", REMOVE_TARGETS_THEN_IMPORT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "imported"
