"""Silent faults of DeepSpeed, provoked with no gate asked: which claim stops the run, and which gate would have before?

    python benchmarks/engine_checks.py [--only TEXT] [--launcher] [--write]

Each row is a run of the real engine on forked ranks, with a JSON that says something else than the spec; with
`--launcher` the ranks are started by the `deepspeed` command, which takes ten minutes. `--write` puts the table into
`benchmarks/results/attestation-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "with_deepspeed"), str(ROOT / "benchmarks")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--launcher", action="store_true", help="start ranks by the `deepspeed` command")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from engine_check_cases import run
    from engine_checks_rows import ROWS
    from forked_ranks import ForkedRanks

    chosen = [row for row in ROWS if arguments.only in row.name or row.name == "saved"]
    ranks = ForkedRanks()
    with tempfile.TemporaryDirectory(prefix="attestation-") as scratch:
        outcomes = run(chosen, Path(scratch), launched if arguments.launcher else ranks.run)
        gates = gates_of(Path(scratch), [row.name for row in chosen])
    ranks.close()
    lines = [line(row.name, outcomes[row.name], gates[row.name]) for row in chosen if row.name != "saved"]
    text = table(lines, "ranks of the `deepspeed` launcher" if arguments.launcher else "forked gloo ranks")
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"attestation-{day}.md").write_text(text + "\n", encoding="utf-8")
    return int(any(how == "unseen" and not why for _, how, _, _, why in lines))


def launched(script: Path, *arguments: str, ranks: int, check: bool) -> dict[str, Any]:
    """A script under the launcher, as `ForkedRanks.run` returns it."""
    from runtime_helpers import rank_environment, remove_shared_buffers

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", str(ranks), "--master_port", str(port)]
    try:
        done = subprocess.run(
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
    return {"codes": [done.returncode], "first": 0, "output": [done.stdout + done.stderr]}


Line = tuple[str, str, str, str, str]


def line(name: str, outcome: dict[str, Any], gates: list[str]) -> Line:
    """(row, how, what stopped it, gates, what was said or why nothing was)."""
    from engine_checks_rows import UNSEEN

    ids = [i for i in outcome["ids"] if i.startswith("AT")]
    if ids:
        said = outcome["findings"][0].partition(": ")[2]
        return name, "attested", ", ".join(ids), ", ".join(gates), said
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
    found = {}
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
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        body = json.loads(done.stdout or "{}")
        files = body.get("files", [])
        found[name] = sorted({f["gate"] for file in files for f in file.get("findings", []) if f["severity"] != "info"})
    return found


def table(lines: list[Line], where: str) -> str:
    """Markdown."""
    counts = Counter(how for _, how, *_ in lines)
    gated = sum(bool(gates) for _, how, _, gates, _ in lines if how == "unseen")
    head = [
        "# Silent faults, provoked",
        "",
        f"DeepSpeed {version('deepspeed')}, torch {version('torch')}, {len(lines)} rows: the real engine on {where},"
        " no gate asked.",
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
