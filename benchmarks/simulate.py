# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's engine at full size on a simulated GPU, for every large recipe: bytes next to the plan's, time, memory.

One recipe after the other, rank 0, two steps of two micro-batches and an evaluation. Nothing is trained, no GPU is
used. Exit code 1 if a phase differs by more than 2 % and no reason is known, or if a recipe fails for another reason
than that the simulation refuses it (MM007).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
PATTERNS = ("llama-3.1-*.yaml", "qwen2.5-72b-*.yaml")
PHASES = ("load", "forward", "backward", "step")
TIMES = ("compute", "collectives", "copies", "CPU optimizer", "disk", "host")


class Answer(NamedTuple):
    """One recipe: its JSON answer, or why there is none, and the seconds that the command took."""

    recipe: str
    body: dict[str, Any] | None
    words: str
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = "names below ds_configs, without `.yaml`, each with settings: `NAME,KEY=VALUE`; default: all large ones"
    parser.add_argument("recipes", nargs="*", help=text)
    parser.add_argument("--layers", help="simulate so many layers and half as many, and extrapolate")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/simulate-DATE.md")
    options = parser.parse_args()
    names = options.recipes or sorted(file.stem for pattern in PATTERNS for file in (ROOT / "ds_configs").glob(pattern))
    answers = []
    for name in names:
        answers.append(simulate(name, options.layers))
        print(f"{name}: {answers[-1].seconds:.0f} s {answers[-1].words}", file=sys.stderr)
    today = date.today().isoformat()
    text = render(answers, today, " ".join(options.recipes))
    print(text)
    if options.write:
        target = ROOT / "benchmarks" / "results" / f"simulate-{today}.md"
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}", file=sys.stderr)
    differing = [line for answer in answers for line in _unexplained(answer)]
    for line in differing:
        print(line, file=sys.stderr)
    return int(bool(differing) or any(answer.body is None and "MM007" not in answer.words for answer in answers))


def simulate(name: str, layers: str | None) -> Answer:
    """Run the command for one recipe."""
    recipe, *settings = name.split(",")
    command = [sys.executable, "-m", "harness", "simulate", f"ds_configs/{recipe}.yaml", "--format", "json"]
    command += [f"--set={setting}" for setting in settings]
    command += ["--layers", layers] if layers else []
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if not done.stdout.startswith("{"):
        return Answer(name, None, " ".join(done.stderr.split())[-300:], seconds)
    return Answer(name, json.loads(done.stdout), "", seconds)


def render(answers: list[Answer], today: str, chosen: str = "") -> str:
    """The table by recipe, then the groups that differ."""
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("deepspeed-harness", "deepspeed", "torch", "transformers")
    )
    lines = [
        f"# The engine on a simulated GPU, {today}",
        "",
        f"{versions}: `python benchmarks/simulate.py {chosen}{' ' * bool(chosen)}--write`. GiB a rank of tensors,"
        " planned / simulated.",
        "The process is the one that simulates: its seconds, and the most memory that it held.",
        "",
        "| Recipe | "
        + " | ".join(f"GPU, {phase}" for phase in PHASES)
        + " | host, load | host, step | seconds | GiB |",
        "| --- | " + " | ".join("---:" for _ in range(len(PHASES) + 4)) + " |",
        *(_row(answer) for answer in answers),
        "",
        "## Groups that differ by more than 2 % of the tier",
        "",
        *(line for answer in answers for line in _differences(answer)),
        "",
        "## Seconds a step",
        "",
        "Planned / simulated, by the same rates. Of each kind of work busy and, in brackets, not hidden.",
        "",
        "| Recipe | step | " + " | ".join(TIMES) + " |",
        "| --- | " + " | ".join("---:" for _ in range(len(TIMES) + 1)) + " |",
        *(_times(answer) for answer in answers),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(answer: Answer) -> str:
    if answer.body is None:
        return f"| {answer.recipe} | {answer.words} |"
    rows = {(row["tier"], row["phase"]): row for row in answer.body["phases"]}
    cells = [
        _pair(rows.get(key)) for key in [*(("gpu", phase) for phase in PHASES), ("host", "load"), ("host", "step")]
    ]
    simulation = answer.body["simulation"]
    return (
        f"| {answer.recipe} | {' | '.join(cells)} | {simulation['seconds']:.0f}"
        f" | {simulation['process_bytes'] / GIB:.2f} |"
    )


def _unexplained(answer: Answer) -> list[str]:
    """Phases that the plan gets wrong by more than 2 %, without a reason that is known."""
    rows = answer.body["phases"] if answer.body is not None else []
    return [
        f"{answer.recipe}, {row['tier']}, {row['phase']}: planned {row['planned'] / GIB:.2f}, simulated"
        f" {row['simulated'] / GIB:.2f} GiB, and no reason is known"
        for row in rows
        if row["differs"] and not row["reason"]
    ]


def _pair(row: dict[str, Any] | None) -> str:
    return "" if row is None else f"{row['planned'] / GIB:.2f} / {row['simulated'] / GIB:.2f}"


def _differences(answer: Answer) -> list[str]:
    if answer.body is None:
        return []
    whole = {tier: max(r["simulated"] for r in answer.body["phases"] if r["tier"] == tier) for tier in ("gpu", "host")}
    return [
        f"* {answer.recipe}, {row['tier']}, {row['group']}: planned {row['planned'] / GIB:.2f}, simulated"
        f" {row['simulated'] / GIB:.2f}; most by `{row['line'] or 'nothing'}`"
        for row in answer.body["groups"]
        if abs(row["planned"] - row["simulated"]) > 0.02 * whole[row["tier"]]
    ]


def _times(answer: Answer) -> str:
    time = answer.body and answer.body.get("time")
    if not time:
        return f"| {answer.recipe} | no clock |"
    cells = [f"{time['planned_seconds']:.1f} / {time['simulated_seconds']:.1f}"]
    for name in TIMES:
        sides = (time["planned_groups"][name], time["simulated_groups"][name])
        cells.append(" / ".join(f"{side['busy']:.1f} ({side['exposed']:.1f})" for side in sides))
    return f"| {answer.recipe} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
