# SPDX-License-Identifier: Apache-2.0
"""Puts both sides together: agree-good, agree-bad, told, missed, false alarm. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.gates.registry import all_gates

from . import compare, ours
from .case import Case, Json
from .known import KNOWN

CLASSES = ("agree-good", "agree-bad", "told", "explained", "known", "missed", "false-alarm", "page", "crash", "unknown")


@dataclass(frozen=True)
class Outcome:
    """One case, judged."""

    case: Case
    kind: str
    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    findings: tuple[tuple[str, str, str], ...]
    did: str
    """What DeepSpeed did, in a line."""
    why: str = ""
    seconds: float = 0.0

    def to_json(self) -> Json:
        return {
            "case": self.case.to_json(),
            "kind": self.kind,
            "findings": self.findings,
            "did": self.did,
            "why": self.why,
            "seconds": self.seconds,
        }

    @staticmethod
    def of(body: Json) -> Outcome:
        findings = tuple((f[0], f[1], f[2]) for f in body["findings"])
        errors = tuple(f[0] for f in findings if f[1] == "error")
        warnings = tuple(f[0] for f in findings if f[1] == "warning")
        case = Case.of(body["case"])
        return Outcome(case, body["kind"], errors, warnings, findings, body["did"], body["why"], body["seconds"])


def judged(case: Case, judge: Any, release: str = ours.VERSION, **more: Any) -> Outcome:
    """Ask both sides. `judge` runs this release of DeepSpeed; `more` is for its job."""
    said = ours.verdict(case, release)
    if case.page:
        return _page(case, said, judge)
    job = ours.job(case, said)
    meant = case.meant if case.meant is not None else job["config"]
    if case.form == "spec" and said.rendered is not None:
        meant = said.rendered
    degrees = said.degrees if said.degrees is not None and case.form == "spec" else case.degrees
    asked = compare.asked_of(meant if isinstance(meant, dict) else {}, case.world, degrees)
    job |= {"meant": meant, "asked": asked, **more}
    answer = judge.run(job)
    return settle(case, said, answer, meant, asked, job, release)


BROKEN = ("raises", "asserts", "crashes", "hangs")


def _page(case: Case, said: ours.Verdict, judge: Any) -> Outcome:
    """A gate's page: the Example does what the gate says of it, Use instead runs as asked."""
    job = ours.job(case, said)
    asked = compare.asked_of(job["config"], case.world, said.degrees or case.degrees)
    job |= {"meant": job["config"], "asked": asked}
    answer = judge.run(job)
    did, bad, _ = _did(job["config"], asked, answer, job)
    ran = answer["outcome"] in ("ran", "leaves")
    if case.page == "instead" and said.refused:
        kind, why = "explained", "right where there is CUDA; here the gates refuse it too"
    elif case.page == "instead":
        kind, why = ("agree-good", "") if not bad else ("page", "`Use instead` does not do what it asks")
    elif (case.page in BROKEN) == (not ran):
        kind, why = "agree-bad", ""
    else:
        kind, why = "page", f"the page says `{case.page}`"
    return Outcome(case, kind, said.errors, said.warnings, said.findings, did, why, float(answer.get("seconds", 0)))


def settle(
    case: Case, said: ours.Verdict, answer: Json, meant: Json, asked: Json, job: Json, release: str = ours.VERSION
) -> Outcome:
    """The class of a case from both answers."""
    did, bad, small = _did(meant, asked, answer, job)
    if not bad and case.meant is not None and _ignored(case, answer):
        bad, did = True, did + "; the misspelt key is ignored"
    kind, why = _class(case, said, answer, bad, small, release)
    seconds = float(answer.get("seconds", 0.0))
    return Outcome(case, kind, said.errors, said.warnings, said.findings, did, why or said.crash, seconds)


def _did(meant: Json, asked: Json, answer: Json, job: Json) -> tuple[str, bool, bool]:
    """(in a line, is it bad, is it a small difference)."""
    outcome = answer["outcome"]
    if outcome != "ran":
        error = answer.get("error") or {}
        text = f"{outcome} at {answer.get('phase')}: {error.get('type', '')} {error.get('message', '')}".strip()
        return " ".join(text.split())[:400], True, False
    found = compare.differences(meant, asked, answer, job)
    large = [d.what for d in found if d.large]
    small = [d.what for d in found if not d.large]
    if large:
        return "runs, silently different: " + "; ".join([*large, *small])[:600], True, False
    return ("runs; " + "; ".join(small))[:400] if small else "runs as asked", False, bool(small)


def _ignored(case: Case, answer: Json) -> bool:
    """A misspelt key that DeepSpeed did not refuse was not read, whatever came of it."""
    return answer["outcome"] == "ran"


def _tellers(said: ours.Verdict) -> list[str]:
    """Warnings about something that DeepSpeed does silently: a gate's, an unknown key's, an odd type's, an
    old name's."""
    silent = {g.id for g in all_gates() if g.upstream in ("silent", "wrong")}
    return [w for w in dict.fromkeys(said.warnings) if w in silent or w in ("SP005", "SP006", "SP014")]


def _class(  # noqa: PLR0911
    case: Case, said: ours.Verdict, answer: Json, bad: bool, small: bool, release: str
) -> tuple[str, str]:
    """(class, why)."""
    if said.crash or answer["outcome"] == "unknown":
        return ("crash", said.crash) if said.crash else ("unknown", "the server died")
    if said.refused and (bad or small):
        return "agree-bad", ""
    tellers = _tellers(said)
    # a small difference: an option was read otherwise than it was written
    wrong = bad or (small and not tellers)
    if not wrong and not said.refused:
        return "agree-good", ""
    for known in KNOWN:
        if known.matches(case, said.errors, answer):
            return "known", f"{known.name}: {known.reason}"
    if said.refused:
        return _alarm(said, release)
    if answer["outcome"] in ("ran", "leaves") and tellers:
        return "told", f"a warning tells it: {', '.join(tellers)}"
    return "missed", ""


def _alarm(said: ours.Verdict, release: str) -> tuple[str, str]:
    """Refused although DeepSpeed does as asked: explained where every gate that objects says why."""
    reasons = ours.policies(release)
    if all(gate in reasons for gate in said.errors):
        return "explained", "; ".join(f"{g}: {reasons[g]}" for g in dict.fromkeys(said.errors))
    return "false-alarm", ""
