# SPDX-License-Identifier: Apache-2.0
"""The rules by which an answer of the diagnosis is right, half right, wrong or unknown. Reads case folders only.

A case is a folder with `expected.json` and `job.log`, or several files `*.log` of one job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from harness.diagnosis import Diagnosis
from harness.diagnosis.run_diagnosis import diagnose_run

Grade = Literal["right", "half", "wrong", "wrong and certain", "unknown"]
GRADES: tuple[Grade, ...] = get_args(Grade)
AREAS = frozenset(
    "trainer-accelerate lora zero3-gather offload nvme checkpoint versions launcher-hosts nccl-network memory ops-build "
    "data-model precision pipeline-tp cluster other".split()
)
EXPECTED = "expected.json"


@dataclass(frozen=True, slots=True)
class LogCase:
    """The logs of one failed job and the conditions that a right answer meets."""

    name: str
    folder: Path
    logs: tuple[Path, ...]
    area: str
    about: str
    must: tuple[str, ...]
    must_not: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    rank: int | None = None
    host: str | None = None
    state: str = "failed"


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """The grade of the answer to one case, and the conditions that the answer does not meet."""

    case: LogCase
    diagnosis: Diagnosis
    grade: Grade
    failed_conditions: tuple[str, ...] = ()


def find_cases(folder: Path) -> list[LogCase]:
    """Every case below a folder, by name. Raises ValueError for a case that cannot be graded."""
    return [read_case(path.parent) for path in sorted(folder.rglob(EXPECTED))]


def read_case(folder: Path) -> LogCase:
    """The case in a folder. Raises ValueError where a key or a pattern is not as the rules take it."""
    values = json.loads((folder / EXPECTED).read_text(encoding="utf-8"))
    logs = tuple(sorted(folder.glob("*.log")))
    problems = [] if logs else ["has no log"]
    problems += [f"`{key}` is missing" for key in ("thread", "cause", "about", "must", "area") if key not in values]
    if problems:
        raise ValueError(f"{folder.name}: {', '.join(problems)}")
    case = LogCase(
        name=folder.name,
        folder=folder,
        logs=logs,
        area=values["area"],
        about=values["about"],
        must=tuple(values["must"]),
        must_not=tuple(values.get("must_not", ())),
        accept=tuple(values.get("accept", ())),
        rank=values.get("rank"),
        host=values.get("host"),
        state=values.get("state", "failed"),
    )
    if case.area not in AREAS:
        problems.append(f"`area` is `{case.area}`")
    for pattern in (case.about, *case.must, *case.must_not):
        try:
            re.compile(pattern)
        except re.error as error:
            problems.append(f"`{pattern}`: {error}")
    if problems:
        raise ValueError(f"{folder.name}: {', '.join(problems)}")
    return case


def diagnose_case(case: LogCase) -> Diagnosis:
    """The diagnosis of `harness explain --log`: of the one log, or of the folder with all logs of the job."""
    return diagnose_run(case.logs[0] if len(case.logs) == 1 else case.folder)


def answer_text(diagnosis: Diagnosis) -> str:
    """What the command prints in its own words, without the quoted log: title, phase, allocation, change and notes.

    A new field of a diagnosis that a reader sees belongs here.
    """
    rows = [row.text for row in (diagnosis.phase, diagnosis.allocation) if row is not None]
    if diagnosis.state == "failed" and not diagnosis.cause:
        parts = (*rows, *diagnosis.notes)  # the title of an unknown cause quotes the log
    else:
        parts = (diagnosis.title, *rows, diagnosis.change, *diagnosis.notes)
    text, quoted = " ".join(" ".join(parts).split()), " ".join(diagnosis.message.split())
    return text.replace(quoted, " ") if quoted else text


def grade_answer(case: LogCase, diagnosis: Diagnosis) -> GradedAnswer:
    """Grade a diagnosis by the rules.

    Right: all conditions are met. Wrong: it names a cause that is not accepted, or not of the right area, or says what
    a right answer must not. Unknown: it names none. Half: all others.
    """
    text = answer_text(diagnosis)
    is_accepted = not case.accept or diagnosis.cause in case.accept
    is_about = _is_in(case.about, text)
    denials = [f"says `{pattern}`" for pattern in case.must_not if _is_in(pattern, text)]
    failed = [] if diagnosis.state == case.state else [f"state is `{diagnosis.state}`, not `{case.state}`"]
    failed += [] if is_accepted else [f"cause is not one of {', '.join(case.accept)}"]
    failed += [f"does not say `{pattern}`" for pattern in case.must if not _is_in(pattern, text)]
    failed += denials
    if case.rank is not None and diagnosis.rank != case.rank:
        failed.append(f"rank is {diagnosis.rank}, not {case.rank}")
    if case.host is not None and diagnosis.host != case.host:
        failed.append(f"host is `{diagnosis.host}`, not `{case.host}`")
    if not failed:
        return GradedAnswer(case, diagnosis, "right")
    if not diagnosis.cause:
        return GradedAnswer(case, diagnosis, "unknown", tuple(failed))
    failed += [] if is_about else [f"is not about `{case.about}`"]
    if is_accepted and is_about and not denials:
        return GradedAnswer(case, diagnosis, "half", tuple(failed))
    grade: Grade = "wrong and certain" if diagnosis.confidence == "certain" else "wrong"
    return GradedAnswer(case, diagnosis, grade, tuple(failed))


def grade_cases(cases: Iterable[LogCase]) -> list[GradedAnswer]:
    """Diagnose and grade every case."""
    return [grade_answer(case, diagnose_case(case)) for case in cases]


def digest_cases(cases: Sequence[LogCase]) -> str:
    """The sha256 over names and bytes of all inputs, logs and expectations, independent of where the folders are."""
    digest = hashlib.sha256()
    for case in sorted(cases, key=lambda case: case.name):
        for file in sorted([*case.logs, case.folder / EXPECTED]):
            content = file.read_bytes()
            digest.update(f"{case.name}/{file.name} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _is_in(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None
