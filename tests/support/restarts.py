# SPDX-License-Identifier: Apache-2.0
"""The attempts of a run, as `restarts.json` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.launching.supervise.restart_files import RESTARTS
from harness.run_records.run_files import json_of


def read_restarts(run_dir: Path) -> list[dict[str, Any]]:
    """The attempts in `restarts.json`; empty when the run was never restarted."""
    attempts = json_of(run_dir / RESTARTS).get("attempts")
    return [attempt for attempt in attempts if isinstance(attempt, dict)] if isinstance(attempts, list) else []
