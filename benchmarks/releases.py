# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed releases compared with plain torch: settings that train correctly with gradient accumulation.

    python benchmarks/releases.py 0.18.2 0.18.3 ... [--overlays FOLDER] [--only TEXT] [--ranks 2] [--jobs 1] [--write]

Each release that is not in FOLDER yet is put there by pip, without what it depends on (which this environment has to
have); it runs on gloo ranks of its own, with a folder of compiled ops of its own. The cases are in `release_cases.py`,
what is compared in `tests/training/jobs/release_trial.py`. `--write` puts the table into
`benchmarks/results/releases-DATE.md` and the figures into `releases-DATE.json`, which
`tests/gates/test_lost_micro_batches.py` puts to the gates.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from release_cases import CASES, WRONG

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "tests" / "training" / "jobs" / "release_trial.py"
LIMIT_S = 1800.0
sys.path.insert(0, str(ROOT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="+", help="such as 0.18.2")
    parser.add_argument("--overlays", type=Path, default=Path.home() / ".cache" / "deepspeed-releases")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="releases at a time")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if arguments.only in name}
    if not cases:
        parser.error(f"no case has {arguments.only!r} in its name")
    asked = list(cases.values())

    def of(release: str) -> list[dict[str, Any]]:
        return tried(release, overlay(release, arguments.overlays), asked, arguments.ranks)

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


def overlay(release: str, folder: Path) -> Path:
    """The folder that has this DeepSpeed and nothing else, filled by pip where it is not there."""
    place = folder / release
    if not (place / "deepspeed").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*pip, "--target", str(place), f"deepspeed=={release}"], check=True, env=environment)
    return place


def tried(release: str, place: Path, cases: list[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """What became of each case: `difference`, or `error`."""
    from tests.support.training.runtime_helpers import rank_environment

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    shared = {**rank_environment(), "PYTHONPATH": str(place), "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"TORCH_EXTENSIONS_DIR": str(place.parent / f"ops-{release}"), "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    shared.pop("LOCAL_SIZE", None)  # without it, nothing is left in /dev/shm
    with tempfile.TemporaryDirectory(prefix="releases-") as scratch:
        asked, out = Path(scratch) / "cases.json", Path(scratch) / "out.json"
        asked.write_text(json.dumps(cases), encoding="utf-8")
        logs = [Path(scratch) / f"{rank}.log" for rank in range(ranks)]
        started = []
        try:
            for rank, log in enumerate(logs):
                one = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                command = [sys.executable, str(JOB), str(out), str(asked)]
                with log.open("w") as stream:
                    started.append(subprocess.Popen(command, env=one, stdout=stream, stderr=subprocess.STDOUT))
            codes = [process.wait(timeout=LIMIT_S) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
        if any(codes):
            raise SystemExit(f"{release}: exit codes {codes}\n{logs[0].read_text(errors='replace')[-3000:]}")
        answer = json.loads(out.read_text(encoding="utf-8"))
    if answer["version"] != release:
        raise SystemExit(f"asked for DeepSpeed {release}, {place} has {answer['version']}")
    found: list[dict[str, Any]] = answer["results"]
    return found


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
