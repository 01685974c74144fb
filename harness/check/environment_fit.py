# SPDX-License-Identifier: Apache-2.0
"""Can the packages of this machine run this spec? `doctor`, `validate-config --here`, `launch --dry-run` and `launch`
say it in the same words, before anything is compiled. Imports none of the packages.
"""

from __future__ import annotations

import os

from harness.facts.deepspeed_version import installed_source_folder
from harness.facts.tested_releases import TESTED_RELEASES, describe_untested
from harness.findings import Finding
from harness.hostinfo import machine
from harness.hostinfo.installed_packages import find_installation
from harness.patches.patch_registry import PatchFacts, PatchState, Switches, select_patches
from harness.patches.refused_patches import refusal_of
from harness.patches.targets import forget_modules
from harness.plan.settings.patch_facts import patch_facts
from harness.run.resolved_run import ResolvedRun


def check_environment(run: ResolvedRun) -> list[Finding]:
    """An error for each patch without which the ranks of this machine would refuse the run (EN130). None where there is
    no DeepSpeed.
    """
    if installed_source_folder() is None:
        return []
    environ = {**os.environ, **run.spec.launch.env}
    is_cpu = not machine.accelerators_for(environ)
    facts = patch_facts(run, on_cpu_accelerator=is_cpu, is_resumed=False)
    refused = find_refused(facts, run.spec.launch.patches)
    forget_modules()
    return [refusal_of(state) for state in refused]


def find_refused(facts: PatchFacts, switches: Switches = "auto") -> list[PatchState]:
    """The patches that a run with these facts needs and cannot have."""
    states = select_patches(facts, switches)
    return [state for state in states if state.state == "refused" and not state.patch.refuses_when_used]


def describe_releases() -> list[str]:
    """A line for each package that trains which no test ran with, or which hides another installation of itself."""
    lines = []
    for package in TESTED_RELEASES:
        untested = describe_untested(package)
        if untested:
            lines.append(f"{untested}; `harness doctor` lists the patches whose targets differ")
        lines += filter(None, [describe_hidden(package)])
    return lines


def describe_hidden(package: str) -> str:
    """A clause about two installations of a package, of which a new Python imports the first; else empty."""
    found = find_installation(package)
    hidden = found.find_hidden() if found is not None else ()
    if found is None or not hidden:
        return ""
    return f"{package} is imported from `{found.folder}`, which hides {' and '.join(f'`{each}`' for each in hidden)}"
