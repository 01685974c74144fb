# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as text and as JSON: the table of a run's checkpoints, a manifest, a comparison of two manifests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.checkpoints.checkpoint_list import CheckpointRow
from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.resume_compatibility import compare_manifests, flatten, format_value
from harness.checkpoints.verify_paths import VerifiedPath
from harness.units import format_bytes, format_count
from harness.views.style import Style, escape_unprintable

_MAX_WIDTH = 96


def render_checkpoints(folder: Path, rows: Sequence[CheckpointRow], evaluations: Evaluations, style: Style) -> str:
    """A table, newest first."""
    head = ("checkpoint", "tokens", "size", "files", "ranks", "ZeRO", "weights", "held-out loss", "saved")
    best = evaluations.best_step([r.manifest.step for r in rows if r.manifest])
    lines = [_format_cells(r, evaluations, best) for r in rows if r.manifest]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    out = [style.paint(_format_line(head, widths), "", bold=True), *(_format_line(line, widths) for line in lines)]
    broken = [escape_unprintable(f"{r.path.name}  not complete: {r.reason}") for r in rows if not r.manifest]
    out += [style.paint(line, "red") for line in broken]
    total = sum(r.manifest.bytes for r in rows if r.manifest)
    newest = _newest_complete(rows)
    latest = f", newest {newest}" if newest else ""
    return "\n".join([*out, "", f"{len(lines)} complete in {folder}, {format_bytes(total)}{latest}"])


def checkpoints_as_json(folder: Path, rows: Sequence[CheckpointRow], evaluations: Evaluations) -> str:
    """The same for programs."""
    best = evaluations.best_step([r.manifest.step for r in rows if r.manifest])
    checkpoints = [
        {
            "name": r.path.name,
            "path": str(r.path),
            "complete": r.manifest is not None,
            **({"reason": r.reason} if r.manifest is None else _checkpoint_as_dict(r.manifest, evaluations)),
        }
        for r in rows
    ]
    body = {
        "format_version": 1,
        "folder": str(folder),
        "newest": _newest_complete(rows),
        "best": next((r.path.name for r in rows if r.manifest and r.manifest.step == best), None),
        "checkpoints": checkpoints,
    }
    return json.dumps(body, indent=2)


def _newest_complete(rows: Sequence[CheckpointRow]) -> str | None:
    return next((row.manifest.folder.name for row in rows if row.manifest), None)


def render_verification(results: Sequence[VerifiedPath], style: Style, *, deep: bool) -> str:
    """One line per checkpoint, and a summary."""
    lines = []
    for result in results:
        state = style.paint("damaged", "red", bold=True) if result.is_damaged else style.paint("whole", "green")
        lines.append(f"{escape_unprintable(str(result.path))}  {state}")
    num_whole = sum(not result.is_damaged for result in results)
    how = "every byte was read" if deep else "names and sizes were checked"
    return "\n".join([*lines, f"{num_whole} of {len(results)} intact; {how}"])


def verification_as_json(results: Sequence[VerifiedPath], *, deep: bool) -> str:
    """The same for programs."""
    checkpoints = [
        {
            "path": str(result.path),
            "whole": not result.is_damaged,
            "findings": [finding.to_json() for finding in result.findings],
        }
        for result in results
    ]
    return json.dumps({"format_version": 1, "every_byte": deep, "checkpoints": checkpoints}, indent=2)


def render_manifest(manifest: Manifest, style: Style) -> str:
    """The manifest's fields as a table, with the number of files and the largest ones."""
    rows = []
    for key, value in flatten({k: v for k, v in manifest.body.items() if k not in {"files", "shape"}}).items():
        text = json.dumps(value) if isinstance(value, list | dict) else format_value(value)
        if key == "bytes":
            text = f"{text} ({format_bytes(value)})"
        rows.append((escape_unprintable(key), _truncate(escape_unprintable(text))))
    files = sorted(manifest.files.items(), key=lambda item: -item[1].bytes)
    rows.append(("files", f"{len(files)}, the largest:"))
    largest = [
        (escape_unprintable(name), format_bytes(r.bytes), escape_unprintable(r.sha256[:12])) for name, r in files[:8]
    ]
    rows += [("", f"{name}  {size}  sha256 {digest}") for name, size, digest in largest]
    width = max(len(key) for key, _ in rows)
    head = style.paint(escape_unprintable(str(manifest.folder)), "", bold=True)
    return "\n".join([head, *(f"  {key:<{width}}  {text}" for key, text in rows)])


def render_manifest_diff(one: Manifest, other: Manifest, style: Style) -> str:
    """One line per field that differs."""
    changes = compare_manifests(one, other)
    head = f"{escape_unprintable(str(one.folder))}\n{escape_unprintable(str(other.folder))}"
    if not changes:
        return f"{head}\nThe manifests are equal; files are not compared."
    cells = [
        (
            escape_unprintable(c.key),
            _truncate(escape_unprintable(format_value(c.was))),
            _truncate(escape_unprintable(format_value(c.now))),
        )
        for c in changes
    ]
    width = max(len(key) for key, _, _ in cells)
    lines = [f"  {key:<{width}}  {style.paint(old, 'red')} -> {style.paint(new, 'green')}" for key, old, new in cells]
    return "\n".join([head, *lines, f"{len(changes)} fields differ; files are not compared."])


def manifest_diff_as_json(one: Manifest, other: Manifest) -> str:
    """The same for programs."""
    changes = [{"key": c.key, "was": c.was, "now": c.now} for c in compare_manifests(one, other)]
    body = {"format_version": 1, "first": str(one.folder), "second": str(other.folder), "differences": changes}
    return json.dumps(body, indent=2)


def format_read_progress(done: int, total: int) -> str:
    """The progress of a verification: bytes read, and their total."""
    return f"read {format_bytes(done)} of {format_bytes(total)} ({100 * done // max(total, 1)} %)"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else text[: _MAX_WIDTH - 3] + "..."


def _format_cells(row: CheckpointRow, evaluations: Evaluations, best: int | None) -> tuple[str, ...]:
    manifest = row.manifest
    if manifest is None:
        return ()
    facts = _checkpoint_as_dict(manifest, evaluations)
    loss = "-" if facts["loss"] is None else f"{facts['loss']:.4f}" + (" (best)" if manifest.step == best else "")
    return (
        row.path.name,
        format_count(facts["tokens"]) if facts["tokens"] else "-",
        format_bytes(manifest.bytes),
        str(len(manifest.files)),
        str(manifest.world_size),
        str(manifest.zero_stage),
        escape_unprintable(manifest.dtype),
        loss,
        escape_unprintable(str(manifest.get("saved_at", "-"))),
    )


def _checkpoint_as_dict(manifest: Manifest, evaluations: Evaluations) -> dict[str, Any]:
    return {
        "step": manifest.step,
        "tokens": manifest["state"].get("tokens", 0),
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "world": manifest.world_size,
        "zero_stage": manifest.zero_stage,
        "dtype": manifest.dtype,
        "loss": evaluations.by_step.get(manifest.step, {}).get("loss"),
        "saved_at": manifest.get("saved_at"),
    }


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
