# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that a checkpoint came from: its own run's, the one which that run resumed, and so on.

By manifests, `launch.json` and `resume.json`, as far as their folders are still there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.checkpoints.manifest import read_manifest
from harness.checkpoints.store_source import StoreSource
from harness.checkpoints.stored_run import RunStep
from harness.errors import UserError
from harness.file_io import parse_json


@dataclass(frozen=True, slots=True)
class Lineage:
    """The run and step of each checkpoint, the nearest first, and those that a store had."""

    steps: tuple[RunStep, ...] = ()
    sources: tuple[StoreSource, ...] = ()

    def runs_at(self, url: str | None) -> tuple[str, ...]:
        """Ids of the runs, and of those that wrote this prefix if one of them came from it."""
        stored = (run for source in self.sources if source.url == url for run in source.runs)
        return tuple(dict.fromkeys([*(run for run, _ in self.steps), *stored]))


def find_lineage(checkpoint: Path | None) -> Lineage:
    """That of a checkpoint on the disk, itself first."""
    steps, sources, seen = list[RunStep](), list[StoreSource](), set[Path]()
    while checkpoint is not None and checkpoint not in seen:
        seen.add(checkpoint)
        try:
            manifest = read_manifest(checkpoint)
        except (OSError, UserError):
            manifest = None
        if manifest is not None and manifest.get("run_id"):
            steps.append((str(manifest.get("run_id")), manifest.step))
        run_dir = checkpoint.parent.parent
        source = StoreSource.read(run_dir)
        if source is not None:
            sources.append(source)
        checkpoint = resumed_checkpoint(run_dir)
    steps += [(source.run_id, source.step) for source in sources if source.run_id]
    return Lineage(tuple(dict.fromkeys(steps)), tuple(sources))


def resumed_checkpoint(run_dir: Path) -> Path | None:
    """The one that the first attempt of a run resumed from; a later one may resume from the run's own."""
    try:
        resume = parse_json((run_dir / "launch.json").read_bytes()).get("resume")
    except (OSError, ValueError, AttributeError):
        return None
    return Path(resume) if isinstance(resume, str) else None
