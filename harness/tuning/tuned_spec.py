# SPDX-License-Identifier: Apache-2.0
"""The fastest candidate as a spec: the user's own text with only the changed keys edited, and the evidence above it.
Writes no file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from harness.plan.search.spec_changes import SpecChanges, merge_changes
from harness.spec.parse.source import KeyPath, is_json, join_key, split_key
from harness.spec.parse.yaml_parser import parse_scalar
from harness.spec.text_editor import EditError, apply_edits
from harness.tuning.tune_report import TuneReport
from harness.units import format_bytes, format_seconds

HEADER_MARK = "Found by `harness tune`"
_WIDTH = 110


def edit_spec(
    text: str, file: str, candidate_changes: SpecChanges, overrides: Sequence[str], raw: Mapping[str, Any]
) -> tuple[str, bool]:
    """The text with the `--set` options and the candidate's keys in place, and whether comments and layout are kept.

    `raw` has the values of the text with the options: a layout that cannot be edited is written from them.
    """
    changes: dict[KeyPath, Any] = {
        split_key(key.strip()): parse_scalar(value) for key, value in map(_split_override, overrides)
    }
    changes = {
        path: value for path, value in changes.items() if not any(_overlaps(path, key) for key in candidate_changes)
    }
    text = strip_header(text)
    changes |= candidate_changes
    try:
        return (apply_edits(text, file, changes) if changes else text), True
    except EditError:
        return yaml.safe_dump(apply_changes(raw, candidate_changes), sort_keys=False, default_flow_style=False), False


def apply_changes(raw: Mapping[str, Any], changes: SpecChanges) -> dict[str, Any]:
    """Plain values with the keys in place."""
    result = dict(raw)
    for path, value in changes.items():
        change: Any = value
        for name in reversed(path):
            change = {name: change}
        result = merge_changes(result, change)
    return result


def _split_override(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _overlaps(path: KeyPath, key: KeyPath) -> bool:
    """Is one the other, or below it?"""
    short = min(len(path), len(key))
    return path[:short] == key[:short] and len(path) >= len(key)


def add_header(text: str, file: str, evidence: TuneReport) -> str:
    """The spec with the evidence as a comment above it; JSON has no comments."""
    return text if is_json(file, text) else f"{format_header(evidence)}\n{text}"


def strip_header(text: str) -> str:
    """The text without the header of an earlier `tune`."""
    if not text.startswith(f"# {HEADER_MARK}"):
        return text
    lines = text.split("\n")
    end = next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(lines[end + 1 if end < len(lines) and not lines[end].strip() else end :])


def format_header(evidence: TuneReport) -> str:
    """Comment lines: date, machine, changed keys, and each trial in one line."""
    ranking = evidence.ranking
    best = ranking.best
    paragraphs = [
        f"{HEADER_MARK} on {evidence.date}: {evidence.ranks} ranks, {evidence.machine}, {evidence.versions}; a step is "
        f"{evidence.global_batch} sequences in all of them.",
        "Changed: "
        + (
            ", ".join(f"{join_key(path)}={format_value(value)}" for path, value in best.candidate.changes.items())
            if best
            else ""
        ),
        f"Median seconds of {evidence.steps - evidence.skip} steps each, of one short run each:",
    ]
    lines = [line for part in paragraphs for line in textwrap.wrap(part, _WIDTH - 2)]
    for trial in evidence.trials:
        step = format_seconds(trial.median_step_seconds) if trial.median_step_seconds is not None else "-"
        rate = f"{trial.tokens_per_second:,.0f} tokens/s" if trial.tokens_per_second else ""
        peak = format_bytes(trial.gpu_peak or trial.host_peak or 0) if trial.gpu_peak or trial.host_peak else ""
        state = "" if trial.state == "measured" else trial.state
        mark = ">" if trial is best else " "
        parts = ", ".join(part for part in (rate, peak, state) if part)
        lines.append(f" {mark} {step:>8}  {trial.candidate.title}: {parts}")
    return "".join(f"# {line}\n" for line in lines)


def format_value(value: Any) -> str:
    """A value as `--set` takes it."""
    return "null" if value is None else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
