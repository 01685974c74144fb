# SPDX-License-Identifier: Apache-2.0
"""Verify the checkpoints that paths name: of a run all of them, and its pointer `latest`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.checkpoints.checkpoint_list import find_checkpoints_folder, is_checkpoint
from harness.checkpoints.latest import LATEST, describe_stale_latest, list_checkpoints, verify_with_name
from harness.checkpoints.verify import ProgressCallback
from harness.findings import Finding, Fix
from harness.run_records.run_list import is_run_dir


class VerifiedPath(NamedTuple):
    """A checkpoint, or the pointer `latest`, and what is wrong with it."""

    path: Path
    findings: list[Finding]

    @property
    def is_damaged(self) -> bool:
        """Is there an error among the findings?"""
        return any(finding.is_error for finding in self.findings)


def verify_paths(paths: Iterable[Path], *, deep: bool, progress: ProgressCallback | None = None) -> list[VerifiedPath]:
    """Each checkpoint by itself, and, of a run, whether `latest` names the newest that is whole. A folder without that
    file that no run wrote, such as one of downloads, lacks nothing.
    """
    results: list[VerifiedPath] = []
    for path in paths:
        if is_checkpoint(path):
            results.append(VerifiedPath(path, verify_with_name(path, deep=deep, progress=progress)))
        else:
            results += _verify_run(path, deep=deep, progress=progress)
    return results


def _verify_run(path: Path, *, deep: bool, progress: ProgressCallback | None) -> list[VerifiedPath]:
    folder = find_checkpoints_folder(path)
    results = [VerifiedPath(p, verify_with_name(p, deep=deep, progress=progress)) for p in list_checkpoints(folder)]
    newest = next((result.path for result in results if not result.is_damaged), None)
    has_pointer = (folder / LATEST).exists() or (folder / LATEST).is_symlink() or is_run_dir(folder.parent)
    stale = describe_stale_latest(folder, newest) if has_pointer else None
    if stale:
        fix = Fix("nothing for a resume, which does not use it; the next save rewrites it")
        finding = Finding("CK115", "error", f"`{folder / LATEST}`: {stale}", fix=fix)
        results.append(VerifiedPath(folder / LATEST, [finding]))
    return results
