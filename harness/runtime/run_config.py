# SPDX-License-Identifier: Apache-2.0
"""The run directory as a rank sees it: the two files of its configuration, and the paths that it writes to.

The launching side creates it; nothing here changes a decision.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.run.resolved_run import ResolvedRun
from harness.runtime.user_errors import user_error


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths below one run directory."""

    root: Path

    @property
    def checkpoints(self) -> Path:
        """Complete checkpoints, and `latest`."""
        return self.root / "checkpoints"

    @property
    def data(self) -> Path:
        """Tokenised text."""
        return self.root / "data"

    @property
    def status(self) -> Path:
        """One file a rank."""
        return self.root / "status"

    @property
    def metrics(self) -> Path:
        """One JSON object a line, from rank 0."""
        return self.root / "metrics.jsonl"

    @property
    def stop(self) -> Path:
        """The ranks stop once this file is there."""
        return self.root / "stop"


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The run, the DeepSpeed JSON, and the sha256 of the bytes of both files."""

    run: ResolvedRun
    ds_config: dict[str, Any]
    sha256: str


def launch_expects_accelerators(run_dir: RunDir) -> bool | None:
    """True when the launch was planned for accelerators; None where nothing says so, as in a run started by hand."""
    try:
        launch = json.loads((run_dir.root / "launch.json").read_bytes())
    except (OSError, ValueError):
        return None
    has_accelerators = launch.get("accelerated") if isinstance(launch, dict) else None
    return has_accelerators if isinstance(has_accelerators, bool) else None


def load_run_config(run_dir: RunDir) -> RunConfig:
    """Read `spec.resolved.json` and `ds_config.json`. Raises UserError (EN101) when either cannot be used."""
    digest = hashlib.sha256()
    bodies: list[Any] = []
    for name in ("spec.resolved.json", "ds_config.json"):
        path = run_dir.root / name
        try:
            raw = path.read_bytes()
            bodies.append(json.loads(raw))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise user_error(
                "EN101", f"`{path}` cannot be read: {reason.lower()}", fix="start the run with `harness launch`"
            ) from None
        digest.update(raw)
    try:
        run = ResolvedRun.from_json(bodies[0])
    except (ValueError, KeyError) as error:
        raise user_error("EN101", f"`{run_dir.root / 'spec.resolved.json'}` cannot be used: {error}") from None
    return RunConfig(run, bodies[1], digest.hexdigest())
