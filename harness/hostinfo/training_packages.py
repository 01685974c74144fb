# SPDX-License-Identifier: Apache-2.0
"""The packages that training needs and this Python lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from harness.findings import Finding, Fix
from harness.hostinfo import machine

PACKAGES = ("torch", "deepspeed", "transformers")


def install_command(extra: str) -> str:
    """The command that installs an extra of the harness, which no package index has."""
    return f"pip install '.[{extra}]' in a clone of the harness"


def missing_packages_finding(packages: Iterable[str] = PACKAGES, notes: tuple[str, ...] = ()) -> Finding | None:
    """EN002 with the names of the packages that this Python cannot import; None where it has them all."""
    missing = [name for name in packages if machine.package_version(name) is None]
    if not missing:
        return None
    names = " and ".join(f"`{name}`" for name in missing)
    fix = Fix(f"install the training extra there: {install_command('train')}")
    return Finding("EN002", "error", f"{names} are not installed for {sys.executable}", notes=notes, fix=fix)
