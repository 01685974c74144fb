# SPDX-License-Identifier: Apache-2.0
"""A folder of somebody else's: modules of the names that our programs import, each of which leaves a mark. No tests."""

from __future__ import annotations

from pathlib import Path

MODULES = ("json", "torch", "transformers", "deepspeed", "numpy", "logging", "harness/__init__")
MARK = "imported-"


def foreign(folder: Path) -> Path:
    """Put them there; a module that is imported writes `imported-NAME` and ends its program."""
    for name in MODULES:
        file = folder / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        mark = folder / (MARK + file.relative_to(folder).parts[0].removesuffix(".py"))
        file.write_text(f"import os\nopen({str(mark)!r}, 'a').write(str(os.getpid()) + chr(10))\nos._exit(77)\n")
    return folder


def imported(folder: Path) -> list[str]:
    """Which of them were imported."""
    return sorted(path.name.removeprefix(MARK) for path in folder.glob(f"{MARK}*"))
