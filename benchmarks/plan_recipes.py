# SPDX-License-Identifier: Apache-2.0
"""Plans of 70B full fine-tuning on 8 x 80 GB: settings, memory, disks, speed and bottleneck.

Plans the three recipes and writes the answer, plans included, with --write. Nothing is trained: figures are estimates.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from harness.check.plan_report import PlanReport  # noqa: E402
from harness.plan.planner import Plan, make_plan  # noqa: E402
from harness.run.resolved_run import resolve_run  # noqa: E402
from harness.spec.spec_loader import load_spec  # noqa: E402
from harness.units import format_bytes, format_seconds  # noqa: E402
from harness.views.plan import render_plan  # noqa: E402
from harness.views.style import Style  # noqa: E402

RECIPES = ("llama-3.1-70b-zero3-cpu-offload", "llama-3.1-70b-zero3-nvme", "llama-3.1-70b-zero3-nvme-all")
HEAD = (
    "| recipe | GPU | host, training | host, peak | NVMe | step | tokens/s | MFU | limited by | fits |\n"
    + "| --- " * 10
    + "|"
)


def planned(name: str) -> Plan:
    """The plan of a recipe."""
    loaded = load_spec(str(ROOT / "ds_configs" / f"{name}.yaml"))
    if loaded.spec is None:
        raise SystemExit(f"{name}: {[f.message for f in loaded.findings]}")
    return make_plan(resolve_run(loaded.spec, name=name))


def row(plan: Plan) -> str:
    """One line of the table."""
    memory, time = plan.memory, plan.time
    if memory is None or time is None:
        raise SystemExit(f"{plan.run.name} has no plan")
    training = memory.host_bytes_at(memory.training_peak_phase)
    cells = [f"`{plan.run.name}`", format_bytes(memory.gpu_peak), format_bytes(training)]
    cells += [f"{format_bytes(memory.host_peak)} ({memory.host_peak_phase})"]
    cells += [format_bytes(memory.nvme_bytes) if memory.nvme_bytes else "-", format_seconds(time.seconds)]
    cells += [
        f"{time.tokens_per_second:,.0f}",
        f"{time.mfu:.0%}",
        time.bottleneck,
        {True: "yes"}.get(plan.fit.fits, "no"),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/plan-70b-DATE.md")
    asked = parser.parse_args()
    plans = [planned(name) for name in RECIPES]
    today = date.today().isoformat()
    parts = [f"# 70B in full on 8 x 80 GB: three plans, {today}", ""]
    parts += [
        f"deepspeed-harness {version('deepspeed-harness')}. Planned, not run: rates are those of the recipes' `cluster`"
    ]
    parts += ["sections and the assumptions of `harness plan --format json`.", "", HEAD, *(row(plan) for plan in plans)]
    for plan in plans:
        text = render_plan(PlanReport(plan, None, None, ()), Style(), 110, long=True)
        parts += ["", f"## {plan.run.name}", "", "```", text, "```"]
    text = "\n".join(parts) + "\n"
    print(text)
    if asked.write:
        target = ROOT / "benchmarks" / "results" / f"plan-70b-{today}.md"
        target.write_text(text, encoding="utf-8")
        print(f"wrote {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
