# SPDX-License-Identifier: Apache-2.0
"""One row of `harness doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckState = Literal["ok", "note", "missing"]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One fact. `note`: a feature will not work, or a hint; `missing`: no training can start without it."""

    area: str
    name: str
    value: str
    state: CheckState = "ok"
    means: str = ""
    fix: str = ""
    limits: str = ""
    """The runs that cannot start, where others can."""
