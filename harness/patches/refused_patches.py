# SPDX-License-Identifier: Apache-2.0
"""Patches whose targets are not as tested: the error of a run, and the release to install."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from harness.findings import Finding, Fix
from harness.patches.patch_registry import Patch, PatchState


def advise_release(patch: Patch, changed: Iterable[str]) -> str:
    """What to install where these targets, `module:name`, are not as tested: the tested release of the patch's own
    package; of another one, which has no tested release, an older or newer one than the installed.
    """
    packages = sorted({name.partition(".")[0].partition(":")[0] for name in changed})
    others = [package for package in packages if package != patch.package]
    advice = [f"install {patch.package} {' or '.join(patch.tested)}"] if patch.package in packages or not others else []
    advice += [f"install another release of {other} than {_release(other)}, which does not have it" for other in others]
    return "; ".join(advice)


def refusal_of(state: PatchState) -> Finding:
    """The error for a patch that is refused (EN130)."""
    patch = state.patch
    switch = f", or set `launch.patches: {{{patch.name}: off}}` and `ignore: {{EN055: why}}`"
    advice = advise_release(patch, state.changed)
    return Finding(
        "EN130",
        "error",
        f"the patch `{patch.name}` does not match this {patch.package} {_release(patch.package)}: {state.reason}",
        "launch.patches",
        notes=(f"it was tested with {patch.package} {', '.join(patch.tested)}", f"it is needed by {patch.when}"),
        fix=Fix(advice if patch.kind == "use" else advice + switch),
    )


def _release(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
