# SPDX-License-Identifier: Apache-2.0
"""Names of other training programs for keys of a run spec, and for settings that it does not have.

The list is `trainer_names.txt`. Imported for unknown keys alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def _read_names(arrow: str) -> dict[str, str]:
    """Name -> the right side of its line, of the lines with this arrow."""
    lines = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    parts = (line.partition(f" {arrow} ") for line in lines if not line.startswith("#"))
    return {name: right for names, found, right in parts if found for name in names.split()}


SPEC_KEYS: Mapping[str, str] = _read_names("->")
"""Another program's name -> the key of a run spec."""
ADVICE: Mapping[str, str] = _read_names("=>")
"""Another program's name -> what to do instead."""
