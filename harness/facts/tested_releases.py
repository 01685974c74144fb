# SPDX-License-Identifier: Apache-2.0
"""Releases of the packages that train, with which the tests ran, as of 2026-11-28: torch 2.14 its simulation and its
light tests alone. `.ci/run deps SET` runs them with other releases.
"""

from __future__ import annotations

from harness.hostinfo.installed_packages import find_version

TESTED_RELEASES: dict[str, tuple[str, ...]] = {
    "deepspeed": ("0.19.8",),
    "torch": ("2.13", "2.14"),
    "transformers": ("5.24",),
    "accelerate": ("1.15",),
}
"""A release of two numbers stands for all with these."""


def is_tested(package: str, version: str) -> bool:
    """Is this release one that the tests ran with? Labels of a build (`+cu130`) do not count."""
    return f"{version.partition('+')[0]}.".startswith(tuple(f"{release}." for release in TESTED_RELEASES[package]))


def describe_untested(package: str) -> str:
    """A clause about the installed release of this package if no test ran with it; else empty."""
    version = find_version(package)
    if version is None or is_tested(package, version):
        return ""
    return f"{package} {version} is untested, the harness was tested with {' and '.join(TESTED_RELEASES[package])}"
