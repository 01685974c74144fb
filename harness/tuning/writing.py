"""The fastest candidate as a spec: the user's own text with only the changed keys edited, and the evidence above it.

Writes no file.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from harness.plan.ask import merged
from harness.spec.edit import CannotEdit, apply
from harness.spec.source import Path, dotted, is_json, split_key
from harness.spec.yaml_source import scalar
from harness.tuning.evidence import Evidence
from harness.tuning.keys import Sets
from harness.units import format_bytes, format_seconds

MARK = "Found by `harness tune`"
_WIDTH = 110


def edited(text: str, file: str, sets: Sets, overrides: Sequence[str], raw: Mapping[str, Any]) -> tuple[str, bool]:
    """The text with the `--set` options and the candidate's keys in place, and whether comments and layout were kept.

    `raw` is what the text says with the options, for a layout that cannot be edited: it is written anew then.
    """
    changes: dict[Path, Any] = {split_key(key.strip()): scalar(value) for key, value in map(_parted, overrides)}
    changes = {path: value for path, value in changes.items() if not any(_touches(path, key) for key in sets)}
    text = without_head(text)
    changes |= sets
    try:
        return (apply(text, file, changes) if changes else text), True
    except CannotEdit:
        return yaml.safe_dump(laid_over(raw, sets), sort_keys=False, default_flow_style=False), False


def laid_over(raw: Mapping[str, Any], sets: Sets) -> dict[str, Any]:
    """Plain values with the keys in place."""
    result = dict(raw)
    for path, value in sets.items():
        change: Any = value
        for name in reversed(path):
            change = {name: change}
        result = merged(result, change)
    return result


def _parted(override: str) -> tuple[str, str]:
    key, _, value = override.partition("=")
    return key, value


def _touches(path: Path, key: Path) -> bool:
    """Is one the other, or below it?"""
    short = min(len(path), len(key))
    return path[:short] == key[:short] and len(path) >= len(key)


def with_head(text: str, file: str, evidence: Evidence) -> str:
    """The spec with the evidence as a comment above it; JSON has no comments."""
    return text if is_json(file, text) else f"{head(evidence)}\n{text}"


def without_head(text: str) -> str:
    """Without what an earlier tuning has written above it."""
    if not text.startswith(f"# {MARK}"):
        return text
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(lines[end + 1 if end < len(lines) and not lines[end].strip() else end :])


def head(evidence: Evidence) -> str:
    """Comment lines: when, on what, what was changed, and each trial in one line."""
    ranking = evidence.ranking
    best = ranking.best
    found = [
        f"{MARK} on {evidence.date}: {evidence.ranks} ranks, {evidence.machine}, {evidence.versions}; a step is "
        f"{evidence.global_batch} sequences in all of them.",
        "Changed: " + (", ".join(f"{dotted(p)}={told(v)}" for p, v in best.candidate.sets.items()) if best else ""),
        f"Median seconds of {evidence.steps - evidence.skip} steps each, of one short run each:",
    ]
    lines = [line for part in found for line in textwrap.wrap(part, _WIDTH - 2)]
    for trial in evidence.trials:
        step = format_seconds(trial.step) if trial.step is not None else "-"
        rate = f"{trial.tokens_per_second:,.0f} tokens/s" if trial.tokens_per_second else ""
        peak = format_bytes(trial.gpu_peak or trial.host_peak or 0) if trial.gpu_peak or trial.host_peak else ""
        what = "" if trial.state == "measured" else trial.state
        mark = ">" if trial is best else " "
        parts = ", ".join(part for part in (rate, peak, what) if part)
        lines.append(f" {mark} {step:>8}  {trial.candidate.title}: {parts}")
    return "".join(f"# {line}\n" for line in lines)


def told(value: Any) -> str:
    """A value as `--set` takes it."""
    return "null" if value is None else yaml.safe_dump(value, default_flow_style=True).split("\n")[0]
