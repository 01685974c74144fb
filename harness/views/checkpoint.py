"""Checkpoints as text and as JSON: a table of a run's, what a manifest says, two of them side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.evaluations import Evaluations
from harness.checkpoints.manifest import Manifest
from harness.checkpoints.resume_compatibility import SettingChange, flatten, meaning_of
from harness.checkpoints.resume_compatibility import format_value as plain
from harness.findings import Finding
from harness.units import format_bytes, format_count
from harness.views.findings_json import finding_as_dict
from harness.views.style import Style, escape_unprintable

_MAX_WIDTH = 96


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """A checkpoint of a run; without a manifest that can be used, why."""

    path: Path
    manifest: Manifest | None
    reason: str


def render_checkpoints(
    folder: Path, rows: Sequence[CheckpointRow], known: Evaluations, newest: str | None, style: Style
) -> str:
    """A table, newest first."""
    head = ("checkpoint", "tokens", "size", "files", "ranks", "ZeRO", "weights", "held-out loss", "saved")
    best = known.best_step([r.manifest.step for r in rows if r.manifest])
    lines = [_format_cells(r, known, best) for r in rows if r.manifest]
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    out = [style.paint(_format_line(head, widths), "", bold=True), *(_format_line(line, widths) for line in lines)]
    broken = [escape_unprintable(f"{r.path.name}  not complete: {r.reason}") for r in rows if not r.manifest]
    out += [style.paint(line, "red") for line in broken]
    whole = len(lines)
    total = sum(r.manifest.bytes for r in rows if r.manifest)
    latest = f", newest {newest}" if newest else ""
    return "\n".join([*out, "", f"{whole} complete in {folder}, {format_bytes(total)}{latest}"])


def checkpoints_as_json(folder: Path, rows: Sequence[CheckpointRow], known: Evaluations, newest: str | None) -> str:
    """The same for programs."""
    found = [
        {
            "name": r.path.name,
            "path": str(r.path),
            "complete": r.manifest is not None,
            **({"reason": r.reason} if r.manifest is None else _checkpoint_as_dict(r.manifest, known)),
        }
        for r in rows
    ]
    return json.dumps({"format_version": 1, "folder": str(folder), "newest": newest, "checkpoints": found}, indent=2)


def render_verification(results: Sequence[tuple[Path, list[Finding]]], style: Style, *, deep: bool) -> str:
    """A line for each, and a summary."""
    lines = []
    for path, found in results:
        errors = sum(f.is_error for f in found)
        words = style.paint("damaged", "red", bold=True) if errors else style.paint("whole", "green")
        lines.append(f"{escape_unprintable(str(path))}  {words}")
    bad = sum(any(f.is_error for f in found) for _, found in results)
    how = "every byte was read" if deep else "names and sizes were looked at"
    return "\n".join([*lines, f"{len(results) - bad} of {len(results)} in order; {how}"])


def verification_as_json(results: Sequence[tuple[Path, list[Finding]]], *, deep: bool) -> str:
    """The same for programs."""
    found = [
        {"path": str(p), "whole": not any(f.is_error for f in fs), "findings": [finding_as_dict(f) for f in fs]}
        for p, fs in results
    ]
    return json.dumps({"format_version": 1, "every_byte": deep, "checkpoints": found}, indent=2)


def render_manifest(manifest: Manifest, style: Style) -> str:
    """The manifest's fields as a table; of the files only the number and the largest."""
    rows = []
    for key, value in flatten({k: v for k, v in manifest.body.items() if k not in {"files", "shape"}}).items():
        text = json.dumps(value) if isinstance(value, list | dict) else plain(value)
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


def compare_manifests(one: Manifest, other: Manifest) -> list[SettingChange]:
    """Every field that is not the same, files and checksums left out. `meaning` is that of a change in the spec."""
    left_out = ("files", "checksum", "name", "tag", "saved_at", "bytes", "shape")
    was, now = (flatten({k: v for k, v in m.body.items() if k not in left_out}) for m in (one, other))
    keys = [k for k in sorted({*was, *now}) if was.get(k) != now.get(k)]
    return [SettingChange(k, was.get(k), now.get(k), meaning_of(k.removeprefix("spec."))) for k in keys]


def render_manifest_diff(one: Manifest, other: Manifest, style: Style) -> str:
    """One line a field."""
    changes = compare_manifests(one, other)
    head = f"{escape_unprintable(str(one.folder))}\n{escape_unprintable(str(other.folder))}"
    if not changes:
        return f"{head}\nThe manifests say the same of both; files are not compared."
    cells = [
        (
            escape_unprintable(c.key),
            _truncate(escape_unprintable(plain(c.was))),
            _truncate(escape_unprintable(plain(c.now))),
        )
        for c in changes
    ]
    width = max(len(key) for key, _, _ in cells)
    lines = [f"  {key:<{width}}  {style.paint(was, 'red')} -> {style.paint(now, 'green')}" for key, was, now in cells]
    return "\n".join([head, *lines, f"{len(changes)} fields differ; files are not compared."])


def manifest_diff_as_json(one: Manifest, other: Manifest) -> str:
    """The same for programs."""
    changes = [{"key": c.key, "was": c.was, "now": c.now} for c in compare_manifests(one, other)]
    body = {"format_version": 1, "first": str(one.folder), "second": str(other.folder), "differences": changes}
    return json.dumps(body, indent=2)


def format_read_progress(done: int, total: int) -> str:
    """How far reading has come."""
    return f"read {format_bytes(done)} of {format_bytes(total)} ({100 * done // max(total, 1)} %)"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_WIDTH else text[: _MAX_WIDTH - 3] + "..."


def _format_cells(row: CheckpointRow, known: Evaluations, best: int | None) -> tuple[str, ...]:
    manifest = row.manifest
    if manifest is None:
        return ()
    facts = _checkpoint_as_dict(manifest, known)
    loss = "-" if facts["loss"] is None else f"{facts['loss']:.4f}" + (" (best)" if manifest.step == best else "")
    return (
        row.path.name,
        format_count(facts["tokens"]),
        format_bytes(manifest.bytes),
        str(len(manifest.files)),
        str(manifest.world_size),
        str(manifest.zero_stage),
        escape_unprintable(manifest.dtype),
        loss,
        escape_unprintable(str(manifest.get("saved_at", "-"))),
    )


def _checkpoint_as_dict(manifest: Manifest, known: Evaluations) -> dict[str, Any]:
    return {
        "step": manifest.step,
        "tokens": manifest["state"].get("tokens", 0),
        "bytes": manifest.bytes,
        "files": len(manifest.files),
        "world": manifest.world_size,
        "zero_stage": manifest.zero_stage,
        "dtype": manifest.dtype,
        "loss": known.by_step.get(manifest.step, {}).get("loss"),
        "saved_at": manifest.get("saved_at"),
    }


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
