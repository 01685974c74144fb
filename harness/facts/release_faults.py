# SPDX-License-Identifier: Apache-2.0
"""Faults of DeepSpeed's releases, one row a fault, and the grid that found most of them.

The grid (`python -m tests.releases`) compares each release with one plain torch process over a covering array of
settings. A row names the settings in which a fault was seen; a test holds that the
rows and the grid agree, release by release and cell by cell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.facts.deepspeed_version import parse_version

_DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
TRIED: tuple[str, ...] = tuple(_DATA["tried"])
"""The releases that the grid was run on."""
DRAWN: dict[str, int] = _DATA["drawn"]
"""Of random JSONs that releases and gates judged: `releases`, `cases`, and those judged `different`."""


@dataclass(frozen=True, slots=True)
class ReleaseFault:
    """One fault. `first` and `last` are the releases that have it (`last` empty: the newest has it), `values` those
    of the grid's dimensions with which it was seen (a dimension that is not named has all), `fault` the words of the
    grid for what is trained instead. `hidden_by`: values with which the weights can be right all the same, as where
    gradients of the wrong length are clipped. `gate` is the finding of `validate-config`.
    """

    name: str
    first: str
    last: str
    settings: str
    effect: str
    workaround: str
    gate: str = ""
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hidden_by: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fault: str = ""
    evidence: str = "the grid"

    def applies_to(self, release: str) -> bool:
        """Has this release the fault?"""
        version = parse_version(release)
        is_late_enough = not self.first or version >= parse_version(self.first)
        return is_late_enough and (not self.last or version <= parse_version(self.last))


RELEASE_FAULTS = tuple(ReleaseFault(**row) for row in _DATA["fault"])
RELEASE_CHANGES = tuple(ReleaseFault(**row) for row in _DATA["change"])
"""Changes that are no faults of the trained numbers; none is in the grid."""
