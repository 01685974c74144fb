# SPDX-License-Identifier: Apache-2.0
"""The report of a run: counts, by family, and each disagreement with its file and how to run it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from .case import Json, file_text
from .known import KNOWN
from .outcome import CLASSES, Outcome

SHOWN = ("crash", "missed", "false-alarm", "page", "unknown")
WORDS = {
    "agree-good": "accepted, and DeepSpeed does what was asked",
    "agree-bad": "refused, and DeepSpeed refuses, crashes, hangs or does something else",
    "told": "accepted with a warning, and DeepSpeed does something else",
    "explained": "refused on purpose although DeepSpeed runs it (the gate says why)",
    "known": "a disagreement with a reason in `known.py`",
    "missed": "accepted, and DeepSpeed refuses, crashes, hangs or silently does something else",
    "false-alarm": "refused, and DeepSpeed does what was asked",
    "page": "a gate's Example or Use instead does not do what the page says",
    "crash": "our own side crashed",
    "unknown": "the runner died",
}


def family(outcome: Outcome) -> str:
    """Who should have noticed: the family of the fault, or `good`."""
    return outcome.case.faults[0].partition(":")[0] if outcome.case.faults else "good"


def as_json(outcomes: Sequence[Outcome], about: Json) -> str:
    """Everything, for machines: one case a line. What follows from the id is left out where both sides agree."""
    head = {"format_version": 1, **about, "counts": dict(Counter(o.kind for o in outcomes))}
    lines = [json.dumps(_short(o)) for o in outcomes]
    return json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n"


def _short(outcome: Outcome) -> Json:
    case = outcome.case
    found = {
        "id": case.id,
        "class": outcome.kind,
        "form": case.form,
        "world": case.world,
        "faults": case.faults,
        "features": case.features,
        "errors": outcome.errors,
        "warnings": outcome.warnings,
        "deepspeed": outcome.did,
        "why": outcome.why,
        "seconds": outcome.seconds,
    }
    return found if outcome.kind.startswith("agree") else {**found, "case": case.to_json()}


def markdown(outcomes: Sequence[Outcome], about: Json) -> str:
    """The same for people."""
    counts = Counter(o.kind for o in outcomes)
    lines = [
        f"# Conformance, {about['date']}",
        "",
        f"{len(outcomes)} cases; {', '.join(f'{k} {v}' for k, v in about.items() if k not in ('date', 'format_version'))}.",
        "",
        "| Class | Cases | Meaning |",
        "| --- | --- | --- |",
        *[f"| {kind} | {counts[kind]} | {WORDS[kind]} |" for kind in CLASSES],
        "",
        "## By what was made wrong",
        "",
        *_table(outcomes),
        "",
        "## Disagreements",
        "",
    ]
    shown = [o for o in outcomes if o.kind in SHOWN]
    lines += [line for o in shown for line in _disagreement(o)] or ["None.", ""]
    lines += ["## Told by a warning", "", *_told(outcomes), ""]
    lines += ["## Explained and known", "", *_explained(outcomes), ""]
    lines += ["## What DeepSpeed did", "", *_did(outcomes)]
    return "\n".join(lines) + "\n"


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    families = sorted({family(o) for o in outcomes})
    counts = Counter((family(o), o.kind) for o in outcomes)
    kinds = [k for k in CLASSES if any(o.kind == k for o in outcomes)]
    rows = [f"| {f} | {' | '.join(str(counts[f, k] or '') for k in kinds)} |" for f in families]
    return [f"| Family | {' | '.join(kinds)} |", "| --- |" + " --- |" * len(kinds), *rows]


def _disagreement(outcome: Outcome) -> list[str]:
    case = outcome.case
    suffix, text = file_text(case)
    degrees = [f"{k} {v}" for k, v in case.degrees.items() if v > 1]
    return [
        f"### {outcome.kind}: {case.id}",
        "",
        f"* made wrong: {'; '.join(case.faults) or 'nothing'}; {case.world} ranks{', ' if degrees else ''}{', '.join(degrees)}; "
        f"options {json.dumps(case.options)}",
        f"* DeepSpeed: {outcome.did}",
        f"* we: {'; '.join(f'{s} {g}: {m}' for g, s, m in outcome.findings) or 'nothing'} {outcome.why}",
        f"* again: `python -m tests.conformance --only {case.id}`",
        "",
        f"```{suffix[1:]}",
        text.rstrip("\n"),
        "```",
        "",
    ]


def _told(outcomes: Sequence[Outcome]) -> list[str]:
    lines = [
        f"* {o.case.id}, {'; '.join(o.case.faults) or 'good'}: {o.did}; {o.why}" for o in outcomes if o.kind == "told"
    ]
    return lines or ["None."]


def _explained(outcomes: Sequence[Outcome]) -> list[str]:
    found = Counter((o.kind, o.why) for o in outcomes if o.kind in ("explained", "known"))
    lines = [f"* {count} x {kind}: {why}" for (kind, why), count in sorted(found.items())]
    hit = {o.why.partition(":")[0] for o in outcomes if o.kind == "known"}
    lines += [f"* stale: `{k.name}` in `known.py` matched nothing in this run" for k in KNOWN if k.name not in hit]
    return lines or ["None."]


def _did(outcomes: Sequence[Outcome]) -> list[str]:
    words: Counter[str] = Counter()
    for o in outcomes:
        words[o.did.partition(":")[0].partition(" at ")[0] if not o.did.startswith("runs") else _ran(o.did)] += 1
    seconds = sorted(o.seconds for o in outcomes)
    total = sum(seconds)
    middle = seconds[len(seconds) // 2] if seconds else 0.0
    return [
        *[f"* {word}: {count}" for word, count in words.most_common()],
        "",
        f"Seconds a case: median {middle:.1f}, mean {total / max(1, len(seconds)):.1f}, "
        f"longest {max(seconds, default=0.0):.1f}; {total / 60:.0f} minutes in all.",
    ]


def _ran(did: str) -> str:
    return "runs, silently different" if "different" in did else "runs as asked" if "ignored" not in did else "runs"


def line(outcome: Outcome) -> str:
    """One line of progress."""
    said = ",".join(outcome.errors) or ("~" + ",".join(outcome.warnings) if outcome.warnings else "-")
    return (
        f"{outcome.case.id} {outcome.kind:<11} {said:<20} {'; '.join(outcome.case.faults)[:70]} | {outcome.did[:150]}"
    )
