# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed releases compared with plain torch: settings that train correctly with gradient accumulation.

    python benchmarks/releases.py 0.18.2 0.18.3 ... [--only TEXT] [--ranks 2] [--jobs 1] [--write]

Each release is put into a folder of its own by pip, without what it depends on (which this environment has to have);
it runs on gloo ranks of its own, with a folder of compiled ops of its own. The cases are in `release_cases.py`,
what is compared in `tests/training/jobs/release_trial.py`. `--write` puts the table into
`benchmarks/results/releases-DATE.md` and the figures into `releases-DATE.json`, which
`tests/gates/test_lost_micro_batches.py` puts to the gates.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from release_cases import CASES, WRONG

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "tests" / "training" / "jobs" / "release_trial.py"
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="+", help="such as 0.18.2")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="releases at a time")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if arguments.only in name}
    if not cases:
        parser.error(f"no case has {arguments.only!r} in its name")
    from tests.releases.rank_job import run_job

    asked = list(cases.values())

    def of(release: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = run_job(JOB, asked, release, ranks=arguments.ranks)["results"]
        return found

    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = dict(zip(arguments.releases, pool.map(of, arguments.releases), strict=True))
    text = page(list(cases), results, arguments)
    print(text)
    if arguments.write:
        name = f"releases-{datetime.now(UTC):%Y-%m-%d}" + (f"-{arguments.ranks}-ranks" if arguments.ranks != 2 else "")
        figures = {case: {r: results[r][i] for r in results} for i, case in enumerate(cases)}
        (ROOT / "benchmarks" / "results" / f"{name}.md").write_text(text, encoding="utf-8")
        (ROOT / "benchmarks" / "results" / f"{name}.json").write_text(rows(figures), encoding="utf-8")
    return 0


def page(cases: list[str], results: dict[str, list[dict[str, Any]]], arguments: argparse.Namespace) -> str:
    """Markdown: a row a case, a column a release."""
    errors: list[str] = []

    def cell(one: dict[str, Any]) -> str:
        if "error" in one:
            if one["error"] not in errors:
                errors.append(one["error"])
            return f"error {errors.index(one['error']) + 1}"
        off, norm = float(one["difference"]), float(one.get("norm", 1.0))
        text = f"**{off:.2g}**" if off > WRONG else f"{off:.1g}"
        return f"{text}, norm x {norm:.2f}" if abs(norm - 1) > WRONG else text

    body = [
        f"| {case} | " + " | ".join(cell(found[i]) for found in results.values()) + " |" for i, case in enumerate(cases)
    ]
    lines = [
        "# Gradient accumulation by release of DeepSpeed",
        "",
        f"`python benchmarks/releases.py {' '.join(results)}`: torch {version('torch')}, {arguments.ranks} gloo ranks"
        " on the CPU accelerator, two steps of a small model. How far the weights are from where plain torch puts them"
        " with the same rows, relative to how far those moved; **bold** is more than rounding in bf16 explains"
        f" ({WRONG}). `norm x` is the engine's gradient norm over the right one, where it is off. `parts` are"
        " micro-batches a step. `engine` calls the engine as DeepSpeed's documentation does, `trainer` as transformers"
        " from 4.49 on does through accelerate (`scale_wrt_gas=False`), `trainer-boundary` as through an accelerate"
        " from 1.8 on, which sets the boundary of accumulation itself.",
        "",
        "| Case | " + " | ".join(results) + " |",
        "| --- |" + " --- |" * len(results),
        *body,
        *([""] if errors else []),
        *(f"- error {number}: `{text}`" for number, text in enumerate(errors, 1)),
    ]
    return "\n".join(lines) + "\n"


def rows(figures: dict[str, dict[str, dict[str, Any]]]) -> str:
    """JSON, a line a case."""
    lines = [
        f"  {json.dumps(case)}: {json.dumps({'case': CASES[case], 'results': found})}"
        for case, found in figures.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
