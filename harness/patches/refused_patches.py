# SPDX-License-Identifier: Apache-2.0
"""Patches whose targets are not as tested: the error of a run, and the release to install."""

from __future__ import annotations

from collections.abc import Iterable

from harness.facts.tested_releases import TESTED_RELEASES
from harness.findings import Finding, Fix
from harness.hostinfo.installed_packages import find_version
from harness.patches.patch_registry import Patch, PatchState


def advise_release(patch: Patch, changed: Iterable[str]) -> str:
    """The releases to install where these targets, `module:name`, are not as tested: a tested release of each package
    that has one of them.
    """
    return "; ".join(f"install {_tested(patch, package)}" for package in _packages_of(changed))


def refusal_of(state: PatchState) -> Finding:
    """The error for a patch that is refused (EN130)."""
    patch, packages = state.patch, _packages_of(state.changed)
    installed = " and ".join(f"{package} {find_version(package) or '(not installed)'}" for package in packages)
    tested = " and ".join(_tested(patch, package) for package in packages)
    switch = f", or set `launch.patches: {{{patch.name}: off}}` and `ignore: {{EN055: why}}`"
    advice = advise_release(patch, state.changed)
    return Finding(
        "EN130",
        "error",
        f"the patch `{patch.name}` does not match the installed {installed}: {state.reason}",
        "launch.patches",
        notes=(f"it was tested with {tested}", f"it is needed by {patch.when}"),
        fix=Fix(advice if patch.kind == "use" else advice + switch),
    )


def _packages_of(names: Iterable[str]) -> list[str]:
    """The packages of these definitions, `module:name`."""
    return sorted({name.partition(":")[0].partition(".")[0] for name in names})


def _tested(patch: Patch, package: str) -> str:
    """The package with its tested releases."""
    if package in TESTED_RELEASES:
        return f"{package} {' or '.join(TESTED_RELEASES[package])}"
    return f"{package} {' or '.join(patch.tested)}" if package == patch.package else f"another release of {package}"
