# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.logs --score [FOLDER ...]`: the grades of all cases below the folders, and their counts."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.logs.grading import GRADES, GradedAnswer, answer_text, digest_cases, find_cases, grade_cases

CASES = Path(__file__).parent / "cases"
COLUMNS = ("name", "area", "grade", "id", "confidence", "rank")


def render_score(answers: Sequence[GradedAnswer], digest: str) -> str:
    """A line a case, then the counts."""
    rows = [COLUMNS, *(row_of(answer) for answer in answers)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    areas = sorted({answer.case.area for answer in answers})
    counts = {area: Counter(a.grade for a in answers if a.case.area == area) for area in areas}
    width = max(len(area) for area in (*areas, "all"))
    lines += ["", "  ".join(["area".ljust(width), *GRADES, "cases"])]
    for area, count in [*counts.items(), ("all", Counter(answer.grade for answer in answers))]:
        cells = [str(count[grade]).rjust(len(grade)) for grade in GRADES]
        lines.append("  ".join([area.ljust(width), *cells, str(count.total()).rjust(5)]))
    num_right = sum(answer.grade == "right" for answer in answers)
    num_certain = sum(answer.grade == "wrong and certain" for answer in answers)
    lines += ["", f"right: {num_right} of {len(answers)} ({100 * num_right / max(len(answers), 1):.0f} %)"]
    lines += [f"wrong and certain: {num_certain}", *_rates_by_confidence(answers), f"sha256 of the inputs: {digest}"]
    return "\n".join(lines)


def row_of(answer: GradedAnswer) -> tuple[str, ...]:
    """The cells of a case, none of them empty or with a space: a saved score is read again with `--baseline`."""
    diagnosis = answer.diagnosis
    rank = "-" if diagnosis.rank is None else str(diagnosis.rank)
    grade = answer.grade.replace(" ", "-")
    return answer.case.name, answer.case.area, grade, diagnosis.cause or "-", diagnosis.confidence, rank


def read_baseline(file: Path) -> dict[str, tuple[str, str]]:
    """(grade, id) by name, from a saved score."""
    grades = {grade.replace(" ", "-") for grade in GRADES}
    rows = (line.split() for line in file.read_text(encoding="utf-8").splitlines())
    return {row[0]: (row[2], row[3]) for row in rows if len(row) == len(COLUMNS) and row[2] in grades}


def render_changes(answers: Iterable[GradedAnswer], baseline: Mapping[str, tuple[str, str]]) -> str:
    """The cases whose grade or id differs from a saved score, the worse ones first."""
    order = [grade.replace(" ", "-") for grade in ("right", "half", "unknown", "wrong", "wrong and certain")]
    changes: list[tuple[int, str]] = []
    rows = {row[0]: row for row in map(row_of, answers)}
    for name, row in rows.items():
        if name not in baseline:
            changes.append((3, f"new     {name}: {row[2]} {row[3]}"))
        elif (row[2], row[3]) != baseline[name]:
            old = baseline[name]
            better = order.index(old[0]) - order.index(row[2])
            word = "better" if better > 0 else "worse" if better < 0 else "other id"
            line = f"{word.ljust(8)}{name}: {old[0]} {old[1]} -> {row[2]} {row[3]}"
            changes.append((0 if better < 0 else 1 if better > 0 else 2, line))
    changes += [(4, f"gone    {name}") for name in baseline if name not in rows]
    return "\n".join(line for _, line in sorted(changes)) or "no change from the baseline"


def render_failures(answers: Iterable[GradedAnswer]) -> str:
    """Of each case that is not right: the answer, and the conditions that it does not meet."""
    blocks = []
    for answer in answers:
        if answer.grade == "right":
            continue
        diagnosis, case = answer.diagnosis, answer.case
        head = f"{case.name} ({case.area}): {answer.grade}, {diagnosis.cause or 'no cause'}, {diagnosis.confidence}"
        text = textwrap.fill(
            answer_text(diagnosis) or "-", 110, initial_indent="  says  ", subsequent_indent="        "
        )
        conditions = [f"  fails {condition}" for condition in answer.failed_conditions]
        blocks.append("\n".join([head, f"  quotes {diagnosis.message[:160] or '-'}", text, *conditions]))
    return "\n\n".join(blocks)


def _rates_by_confidence(answers: Sequence[GradedAnswer]) -> list[str]:
    lines = []
    for confidence in ("certain", "likely"):
        named = [a for a in answers if a.diagnosis.cause and a.diagnosis.confidence == confidence]
        lines.append(f"{confidence}: {sum(a.grade == 'right' for a in named)} of {len(named)} right")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score; 0 where every case could be graded, 2 where a folder has none."""
    parser = argparse.ArgumentParser(prog="python -m tests.logs", description=__doc__)
    parser.add_argument("--score", nargs="*", type=Path, metavar="FOLDER", required=True, help="default: the committed")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="a saved score; print what changed since")
    parser.add_argument("--failures", action="store_true", help="print the answers that are not right, and why")
    options = parser.parse_args(arguments)
    folders = options.score or [CASES]
    cases = [case for folder in folders for case in find_cases(folder)]
    if not cases:
        print(f"no {'/expected.json, '.join(map(str, folders))}/expected.json", file=sys.stderr)
        return 2
    answers = grade_cases(cases)
    print(render_score(answers, digest_cases(cases)))
    if options.baseline:
        print(f"\n{render_changes(answers, read_baseline(options.baseline))}")
    if options.failures:
        print(f"\n{render_failures(answers)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
