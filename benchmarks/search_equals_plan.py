# SPDX-License-Identifier: Apache-2.0
"""Does the search of `harness plan` say what the plan of its spec says? 300 drawn questions, with CPU time of each.

Models, GPUs, hosts, disks, lengths and batches are drawn by the seed of `tests/support/drawn_questions.py`. Nothing is
trained.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.drawn_questions import SEED, Question, ask, draw_questions  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="questions; default 300")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/search-equals-plan-DATE.md")
    options = parser.parse_args()
    found: Counter[str] = Counter()
    differences, seconds = [], []
    for index, question in enumerate(draw_questions(options.count)):
        begun = time.process_time()
        answer = ask(question, random.Random(SEED + index))  # noqa: S311 - no secret
        seconds.append(time.process_time() - begun)
        found[answer.outcome] += 1
        found["rows compared"] += answer.num_compared
        differences += [f"* {describe(question)}: {text}" for text in answer.disagreements]
        print(
            f"{index + 1:4d} {describe(question)}: {answer.outcome}, {len(answer.disagreements)} differences",
            file=sys.stderr,
        )
    today = date.today().isoformat()
    lines = [
        f"# Search and plan, {options.count} drawn questions, {today}",
        "",
        f"deepspeed-harness {version('deepspeed-harness')}, seed {SEED}: `python benchmarks/search_equals_plan.py`.",
        "Of each question the best and two more rows are compared with the plan of the spec that is written for",
        "them: seconds a step, peaks of GPU, host and NVMe, and the verdict, to the digit. No row of the output that",
        "fits and passes the gates may be faster than the best by more than the 1 % that counts as equally fast.",
        "",
        "| | |",
        "| --- | ---: |",
        *(f"| {name} | {number:,} |" for name, number in sorted(found.items())),
        f"| differences | {len(differences):,} |",
        f"| CPU seconds of a question, the comparison included: median | {median(seconds):.1f} |",
        f"| the same, most | {max(seconds):.1f} |",
        "",
        *differences,
    ]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if options.write:
        target = ROOT / "benchmarks" / "results" / f"search-equals-plan-{today}.md"
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}", file=sys.stderr)


def describe(question: Question) -> str:
    """The question in a line."""
    memory, disks = question.host_memory or "unknown memory", question.nvme or "no disks"
    machine = f"{question.gpus} x {question.gpu}, {memory}, {disks}"
    return f"{question.model}, {machine}, length {question.max_length}, {question.tokens_per_step:,} tokens"


if __name__ == "__main__":
    main()
