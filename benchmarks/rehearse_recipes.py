# SPDX-License-Identifier: Apache-2.0
"""Does every 70B recipe run end to end here, scaled down, and do the states it allocates carry over to its plan?

    python benchmarks/rehearse_recipes.py [--only NAME] [--write]

`harness rehearse` of each recipe of `ds_configs/` for Llama-3.1-70B and Qwen2.5-72B: load from a synthetic sharded
folder, train, save, lose a rank, resume, export. State bytes (weights, gradients, masters, optimizer states, each where
it lives: GPU, host, NVMe) are counted in the live engines, compared with the plan of what ran, and carried over to the
whole run, a rank. Ends with 1 where a stage failed or a state differs by a byte. About a minute and a half a recipe.
`--write` puts the table into `benchmarks/results/rehearsals-DATE.md`; recipes that were not run keep their
row of the newest such file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RECIPES = tuple(sorted(p.stem for p in (ROOT / "ds_configs").glob("*-7[02]b-*.yaml")))
HEAD = (
    "| Recipe | Run (UTC) | Stages that ran | States exact "
    "| On a GPU: ran, whole run | On the host | On NVMe | Seconds |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="recipes whose name has this in it")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    lines = [
        "# The 70B recipes, rehearsed",
        "",
        f"`python benchmarks/rehearse_recipes.py`: {versions}, CPU accelerator. Stages are files, train (and the loss"
        " of a rank), resume, export. Of a rank's states, the sum of what ran and what it is in the whole run, which is"
        " what `harness plan` of the recipe says where states are exact.",
        "",
        HEAD,
    ]
    bad, rows = 0, read_newest_rows()
    for name in RECIPES:
        if arguments.only in name:
            body = rehearse(name)
            bad += not well(body)
            rows[name] = row(name, body)
            print(rows[name], flush=True)
    text = "\n".join([*lines, *(rows[name] for name in RECIPES if name in rows), ""])
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"rehearsals-{day}.md").write_text(text, encoding="utf-8")
    return int(bad > 0)


def read_newest_rows() -> dict[str, str]:
    """Rows of the newest result file, by recipe; a recipe that is not run again keeps its row."""
    files = sorted((ROOT / "benchmarks" / "results").glob("rehearsals-*.md"))
    lines = files[-1].read_text(encoding="utf-8").splitlines() if files else []
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def rehearse(name: str) -> dict[str, Any]:
    """What `harness rehearse` says of a recipe."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        recipe = ROOT / "ds_configs" / f"{name}.yaml"
        command = [sys.executable, "-m", "harness", "rehearse", str(recipe), "--format", "json", "--folder", folder]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        body: dict[str, Any] = json.loads(done.stdout)
    return body


def well(body: dict[str, Any]) -> bool:
    """All stages ended with 0, and every state is as planned, scaled and whole."""
    states = [q for q in body["quantities"] if "." in q["name"]]
    carried = all(q["low"] == q["high"] == q["whole"] for q in states)
    return bool(states and carried and body["states_exact"] and not any(s["code"] for s in body["stages"]))


def row(name: str, body: dict[str, Any]) -> str:
    """One line of the table."""
    from harness.units import format_bytes

    stages = ", ".join(s["name"] + (f" (code {s['code']})" if s["code"] else "") for s in body["stages"])
    time = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    cells = [f"`{name}`", time, stages, "yes" if well(body) else "no"]
    for place in ("gpu", "host", "nvme"):
        states = [q for q in body["quantities"] if q["name"].startswith(f"{place}.")]
        ran, whole = (sum(q[key] or 0 for q in states) for key in ("measured", "whole"))
        cells.append(f"{format_bytes(ran)}, {format_bytes(whole)}" if states else "-")
    cells.append(f"{sum(s['seconds'] for s in body['stages']):.0f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
