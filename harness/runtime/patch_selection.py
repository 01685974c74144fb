# SPDX-License-Identifier: Apache-2.0
"""The patches of a run, and the error for one that must not be made on the installed release."""

from __future__ import annotations

import sys
from typing import Any

from deepspeed.accelerator import get_accelerator

from harness.errors import UserError
from harness.patches.patch_registry import PatchFacts, PatchStates, find_patch, select_patch, select_patches
from harness.patches.refused_patches import refusal_of
from harness.patches.targets import forget_modules
from harness.plan.settings.patch_facts import patch_facts
from harness.run.resolved_run import ResolvedRun


def resolve_patches(
    run: ResolvedRun, ds_config: dict[str, Any], *, is_main_process: bool, is_resumed: bool = True
) -> PatchStates:
    """The patches of this run; those that are skipped are printed. Raises UserError (EN130) for a patch that training
    is wrong without, and whose target is not the tested one.
    """
    is_cpu = get_accelerator().device_name() == "cpu"
    facts = patch_facts(run, ds_config, on_cpu_accelerator=is_cpu, is_resumed=is_resumed)
    states = select_patches(facts, run.spec.launch.patches)
    forget_modules()
    for state in states:
        if state.state == "skipped" and is_main_process:
            line = f"patch {state.patch.name}: skipped, {state.reason}"
            print(line, file=sys.stderr, flush=True)  # noqa: T201
    refused = states.find_refused()
    if refused is not None:
        raise UserError([refusal_of(refused)])
    return states


def check_usable(name: str) -> None:
    """Raises UserError (EN130) where a target of `name` has changed, a patch of kind `use` that is about to be used."""
    state = select_patch(find_patch(name)._replace(is_needed=lambda _: True), PatchFacts(), "auto")
    if state.state == "refused":
        raise UserError([refusal_of(state)])
