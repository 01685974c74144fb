# SPDX-License-Identifier: Apache-2.0
"""The simulated device against live engines: each configuration trains two steps on CPU ranks, saves and resumes, and
every rank of it is simulated. Compared to the byte and in order: model states by tier and kind, tensors of each file
that is written and read, and DeepSpeed's collectives.

    python benchmarks/simulated_against_live.py [PART OF A NAME ...] [--write]

Half a minute a configuration on two cores. The exit code is 1 where a rank differs. Writes nothing without --write.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.training.forked_ranks import ForkedRanks  # noqa: E402
from tests.support.training.live_comparison import compare_case  # noqa: E402
from tests.support.training.simulated_cases import CASES, WAYS, SimulatedCase  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    """Print a row a configuration, at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    cases = [c for c in (*CASES, *WAYS) if not arguments.names or any(part in c.name for part in arguments.names)]
    live, simulated = ForkedRanks(), ForkedRanks("simulation")
    try:
        rows = [_compare(case, live, simulated) for case in cases]
    finally:
        live.close()
        simulated.close()
    different = [row for row in rows if row["differences"]]
    print(f"{len(rows)} configurations, {sum(row['ranks'] for row in rows)} ranks; {len(different)} differ")
    if arguments.write:
        file = RESULTS / f"simulated-against-live-{date.today().isoformat()}.md"
        file.write_text(_to_markdown(rows), encoding="utf-8")
    return 1 if different else 0


def _compare(case: SimulatedCase, live: ForkedRanks, simulated: ForkedRanks) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="simulated-live-") as folder:
        try:
            ranks = compare_case(case, Path(folder), live, simulated)
        except AssertionError as error:  # a side failed: its last line says why
            ranks, failure = [], str(error).strip().splitlines()[-1]
        else:
            failure = ""
    differences = [f"rank {rank.rank}: {text}" for rank in ranks for text in rank.differences] + [failure] * bool(
        failure
    )
    row = {
        "case": case.name,
        "ranks": case.ranks,
        "messages": [rank.messages for rank in ranks],
        "state_bytes": [sum(rank.states.values()) for rank in ranks],
        "written": [_tensor_bytes(rank.files) for rank in ranks],
        "read": [_tensor_bytes(rank.read) for rank in ranks],
        "overhead": max((size - tensors for rank in ranks for tensors, size in rank.files.values()), default=0),
        "named": sorted({place for rank in ranks for place in rank.named}),
        "differences": differences,
    }
    verdict = "DIFFERENT" if differences else "equal"
    print(
        f"{case.name:45} {verdict:10} {row['messages']} collectives, {row['state_bytes']} bytes of states,"
        f" {row['written']} written, {row['read']} read",
        flush=True,
    )
    for text in (*row["named"], *differences):
        print(f"    {text}", flush=True)
    return row


def _tensor_bytes(files: dict[str, tuple[int, int]]) -> int:
    return sum(tensors for tensors, _ in files.values())


def _to_markdown(rows: list[dict[str, Any]]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    lines = [
        "# Simulated ranks against live ones",
        "",
        f"{date.today().isoformat()}, {versions}; live ranks on the CPU by gloo, two steps each, a save and a resume.",
        "Compared on every rank: bytes of the model states by tier and kind, bytes of the tensors of each file that is",
        "written and read, and every collective of training, save and resume by kind and bytes, in order. The loop's",
        "own messages (losses, flags, findings: `harness/runtime/distributed.py`) are left out. *Bytes left out*:",
        "where DeepSpeed broadcasts pickled tensors. Beyond its tensors a file had at most"
        f" {max(row['overhead'] for row in rows):,} bytes.",
        "",
        "| Run | Ranks | Bytes of states by rank | Written | Read | Collectives by rank | Verdict | Bytes left out |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        keys = ("state_bytes", "written", "read", "messages")
        cells = [", ".join(f"{number:,}" for number in sorted(set(row[key]))) for key in keys]
        verdict = "; ".join(row["differences"]) or "equal"
        named = ", ".join(f"`{place}`" for place in row["named"])
        lines.append(f"| {row['case']} | {row['ranks']} | {' | '.join(cells)} | {verdict} | {named} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
