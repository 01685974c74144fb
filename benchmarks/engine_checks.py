# SPDX-License-Identifier: Apache-2.0
"""Silent faults of DeepSpeed, provoked without gates: which engine check stops the run, and which gate would refuse it?

    python benchmarks/engine_checks.py [--only TEXT] [--launcher] [--write]

Each row is a run of the real engine on forked ranks, with a JSON that differs from the spec; with
`--launcher` the ranks are started by the `deepspeed` command, which takes ten minutes. `--write` puts the table into
`benchmarks/results/engine-checks-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--launcher", action="store_true", help="start ranks by the `deepspeed` command")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from engine_checks_rows import ROWS

    from tests.support.training.engine_check_cases import run
    from tests.support.training.forked_ranks import ForkedRanks

    rows = [row for row in ROWS if arguments.only in row.name or row.name == "saved"]
    ranks = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="engine-checks-") as scratch:
        outcomes = run(rows, Path(scratch), run_launcher if arguments.launcher else ranks.run)
        gates = gates_of(Path(scratch), [row.name for row in rows])
    ranks.close()
    lines = [make_line(row.name, outcomes[row.name], gates[row.name]) for row in rows if row.name != "saved"]
    text = make_table(lines, "ranks of the `deepspeed` launcher" if arguments.launcher else "forked gloo ranks")
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"engine-checks-{day}.md").write_text(text + "\n", encoding="utf-8")
    return int(any(how == "unseen" and not why for _, how, _, _, why in lines))


def run_launcher(script: Path, *arguments: str, ranks: int, check: bool) -> dict[str, Any]:
    """Run a script under the launcher. Returns the same as `ForkedRanks.run`."""
    from harness.launching.hosts.local_host import find_free_port
    from tests.support.training.runtime_helpers import rank_environment, remove_shared_buffers

    port = find_free_port()
    command = [str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", str(ranks), "--master_port", str(port)]
    try:
        process = subprocess.run(
            [*command, "--no_local_rank", str(script), *arguments],
            capture_output=True,
            text=True,
            check=check,
            timeout=600,
            env={**rank_environment(), "PYTHONPATH": str(ROOT)},
        )
    finally:
        remove_shared_buffers(port)
    print(".", end="", flush=True, file=sys.stderr)
    return {"codes": [process.returncode], "first": 0, "output": [process.stdout + process.stderr]}


Line = tuple[str, str, str, str, str]


def make_line(name: str, outcome: dict[str, Any], gates: list[str]) -> Line:
    """(row, end, failed checks, gates, message or the reason why there is none)."""
    from engine_checks_rows import UNSEEN

    ids = [i for i in outcome["ids"] if i.startswith("AT")]
    if ids:
        message = outcome["findings"][0].partition(": ")[2]
        return name, "engine check failed", ", ".join(ids), ", ".join(gates), message
    if outcome["ids"]:
        return (
            name,
            "refused by the harness",
            ", ".join(outcome["ids"]),
            ", ".join(gates),
            outcome["findings"][0].partition(": ")[2],
        )
    if outcome["error"]:
        return name, "ended with an error", "", ", ".join(gates), outcome["error"].splitlines()[0][:110]
    return name, "unseen", "", ", ".join(gates), UNSEEN.get(name.split(maxsplit=1)[0], "")


def gates_of(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """Gates that `harness validate-config` names for each run's DeepSpeed JSON."""
    gates = {}
    for name in names:
        command = [
            sys.executable,
            "-m",
            "harness",
            "validate-config",
            str(folder / name / "ds_config.json"),
            "--format",
            "json",
        ]
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        body = json.loads(process.stdout or "{}")
        files = body.get("files", [])
        gates[name] = sorted({f["gate"] for file in files for f in file.get("findings", []) if f["severity"] != "info"})
    return gates


def make_table(lines: list[Line], where: str) -> str:
    """Markdown."""
    counts = Counter(how for _, how, *_ in lines)
    gated = sum(bool(gates) for _, how, _, gates, _ in lines if how == "unseen")
    head = [
        "# Silent faults, provoked",
        "",
        f"DeepSpeed {version('deepspeed')}, torch {version('torch')}, {len(lines)} rows: the real engine on {where},"
        " without gates.",
        "",
        *(f"- {how}: {count}" for how, count in counts.most_common()),
        f"- of those unseen, {gated} are named by a gate",
        "",
        "| Row | How it ended | By | Gates for the JSON | What was said, or why nothing was |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*head, *(f"| {' | '.join(cell.replace('|', '/') for cell in one)} |" for one in lines)])


if __name__ == "__main__":
    sys.exit(main())
