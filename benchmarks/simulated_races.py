# SPDX-License-Identifier: Apache-2.0
"""The race detector of the simulated device: every seeded fault is found, and nothing in runs without one, which are
every way to train and every shipped recipe with a model of 2 layers, those of ZeRO-3 also with the overlapped step.

    python benchmarks/simulated_races.py [PART OF A NAME ...] [--write]

Three minutes on two cores. The exit code is 1 where a fault is missed, or a run has a race or fails. Writes nothing
without --write.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.simulation.seeded_faults import FAULTS  # noqa: E402
from tests.support.training.forked_ranks import ForkedRanks  # noqa: E402
from tests.support.training.race_requests import (  # noqa: E402
    ALL_RECIPES,
    WAYS,
    cases_of_faults,
    cases_of_runs,
    find_races,
    is_found,
    run_of_fault,
)

RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/simulated-races-DATE.md")
    options = parser.parse_args()
    start = time.perf_counter()
    faults = [fault for fault in FAULTS if _is_chosen(fault.name, options.names)]
    ways = {name: run for name, run in WAYS.items() if _is_chosen(name, options.names)}
    recipes = {name: run for name, run in ALL_RECIPES.items() if _is_chosen(name, options.names)}
    cases = {
        **({f"fault {name}": case for name, case in cases_of_faults(f.name for f in faults).items()} if faults else {}),
        **{f"way {name}": case for name, case in cases_of_runs(ways).items()},
        **{f"recipe {name}": case for name, case in cases_of_runs(recipes).items()},
    }
    with tempfile.TemporaryDirectory(prefix="simulated-races-") as folder:
        ranks = ForkedRanks("simulation")
        answers = find_races(cases, Path(folder), ranks)
        ranks.close()
    found = {fault.name: is_found(fault, answers[f"fault {fault.name}"]) for fault in faults}
    clean = {name: answers[name].get("races") == [] for name in cases if not name.startswith("fault ")}
    rows = [
        *(
            (f"fault {f.name}", run_of_fault(f).recipe, _words(answers[f"fault {f.name}"]), found[f.name])
            for f in faults
        ),
        *((name, _run_of(name).recipe, _words(answers[name]), is_clean) for name, is_clean in clean.items()),
    ]
    for name, _, words, is_right in rows:
        print(f"{name:50} {'as it should be' if is_right else 'WRONG':16} {words}")
    summary = (
        f"{sum(found.values())} of {len(found)} faults found; {sum(clean.values())} of {len(clean)} runs without a"
        f" fault have no race and no tensor on the wrong device; {time.perf_counter() - start:.0f} s"
    )
    print(summary)
    if options.write:
        file = RESULTS / f"simulated-races-{date.today().isoformat()}.md"
        file.write_text(_to_markdown(rows, summary), encoding="utf-8")
    return 0 if all(found.values()) and all(clean.values()) else 1


def _is_chosen(name: str, parts: list[str]) -> bool:
    return not parts or any(part in name for part in parts)


def _run_of(name: str) -> Any:
    kind, _, rest = name.partition(" ")
    return (WAYS if kind == "way" else ALL_RECIPES)[rest]


def _words(answer: dict[str, Any]) -> str:
    """What was reported: the lines of the most frequent race, or the error."""
    if "error" in answer:
        return " ".join(str(answer["error"]).split())[:160]
    races = answer["races"]
    if not races:
        return "no race"
    first = races[0]
    return f"{len(races)} pairs of lines, first {first['first']['line']} and {first['second']['line']}"


def _to_markdown(rows: list[tuple[str, str, str, bool]], summary: str) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    lines = [
        "# Races on the simulated device",
        "",
        f"{date.today().isoformat()}, {versions}: `python benchmarks/simulated_races.py --write`. {summary}.",
        "",
        "Two steps of two micro-batches, a save, an evaluation and a resume of rank 0, with a model of 2 layers.",
        "",
        "| Case | Recipe | Reported | As it should be |",
        "| --- | --- | --- | --- |",
        *(
            f"| {name} | {recipe} | {words.replace('|', '/')} | {'yes' if ok else 'NO'} |"
            for name, recipe, words, ok in rows
        ),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
