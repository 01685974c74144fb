# SPDX-License-Identifier: Apache-2.0
"""Host memory of a node in each phase, compared with the plan, for a model of a billion parameters.

    python benchmarks/host_memory.py [--layers 17] [--ranks 2] [--folder DIR] [--write]

ZeRO-3 in bf16 with parameters and optimizer on the host: a sharded folder of random weights is made, trained from for a
few steps, saved, a rank killed, resumed and exported, each by the command that a user would type (`harness rehearse`
plays the same phases, made smaller). Host memory is the ranks' resident memory without what they share, at its peak in
each phase. Needs about 21 GiB of free memory, 40 GiB of disk and a quarter of an hour. Ends with 1 where a phase held
more than the plan by more than 5 %. `--write` puts the table into `benchmarks/results/host-memory-DATE.md`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
BOUND = 1.05
LIVE = 100_000_000
"""Gathered at once: on a GPU it would not be host memory."""
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
"""What is freed goes back to the kernel at once, so that what is resident is what is held."""
SAVE = 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=17)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where all files go; default: a temporary folder")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    from harness.plan.planner import make_plan
    from harness.rehearsal.extrapolation import extrapolate

    folder = Path(tempfile.mkdtemp(prefix="host-memory-", dir=arguments.folder))
    try:
        run, played = train(folder, arguments)
        plan = make_plan(run, folder, "cpu")
        quantities = extrapolate(played.measurements, plan, plan)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = page(plan, played, quantities, arguments)
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"host-memory-{day}.md").write_text(text, encoding="utf-8")
    # An export maps the checkpoint's files: their pages are resident while there is room, and not its own.
    phases = [q for q in quantities if q.name.startswith("host memory") and not q.name.endswith("export")]
    over = [q for q in phases if (q.ratio or 0) > BOUND]
    return int(bool(played.findings or over))


def train(folder: Path, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The checked run, and what came of its phases."""
    from harness.check.check_file import check_file
    from harness.launching.hosts.local_host import inspect_local_host
    from harness.launching.programs.rehearsal_runner import run_rehearsal
    from harness.plan.tuned_defaults.rules import with_tuned_defaults

    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "vocab_size": 32000,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
    }
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(config))
    spec = {
        "name": "host-memory",
        "model": {"name_or_path": str(folder / "model")},
        "data": {"train": str(folder / "data" / "*.jsonl"), "max_length": 8, "eval_fraction": 0.0},
        "train": {"max_steps": SAVE + 1, "per_device_train_batch_size": 1, "gradient_checkpointing": True, "seed": 1},
        # Adagrad has one state where Adam has two: a billion parameters with Adam are read back in 28 GB.
        "optimizer": {"type": "adagrad", "learning_rate": 1e-6},
        "precision": {"bf16": True},
        "zero": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
            "stage3_max_live_parameters": LIVE,
            "stage3_max_reuse_distance": LIVE,
        },
        "checkpoint": {"save_steps": SAVE, "save_total_limit": 1, "save_at_end": True},
        "cluster": {"gpu": "cpu"},
        "launch": {"num_gpus": arguments.ranks, "output_dir": str(folder / "runs"), "env": GIVE_BACK},
    }
    (folder / "spec.yaml").write_text(json.dumps(spec, indent=1))
    orders = {
        "model": str(folder / "model"),
        "config": config,
        "dtype": "bfloat16",
        "data": str(folder / "data" / "records.jsonl"),
        "format": "text",
        "tokens": 8192,
        "columns": {"text": "text"},
        "longest": 8,
    }
    checked = check_file(str(folder / "spec.yaml"), launching=True)
    if checked.run is None or not checked.report.ok:
        raise SystemExit("\n".join(f.message for f in checked.report.findings))
    run = with_tuned_defaults(checked.run, folder)
    return run, run_rehearsal(
        folder, inspect_local_host().scripts, orders, SAVE, lambda text: print(text, file=sys.stderr, flush=True)
    )


def page(plan: Any, played: Any, quantities: list[Any], arguments: argparse.Namespace) -> str:
    """Markdown."""
    from harness.units import format_bytes, format_count

    lines = [
        "# Host memory of each phase against the plan",
        "",
        f"`python benchmarks/host_memory.py --layers {arguments.layers} --ranks {arguments.ranks}`: deepspeed"
        f" {version('deepspeed')}, torch {version('torch')}, {format_count(plan.model.num_parameters)} parameters,"
        f" ZeRO-3 in bf16, parameters and optimizer on the host, {arguments.ranks} ranks on the CPU accelerator.",
        "",
        *(f"- {stage.name}: {stage.what} ({stage.seconds:.0f} s, code {stage.code})" for stage in played.stages),
        "",
        "| | Measured | Planned | Ratio |",
        "| --- | --- | --- | --- |",
    ]
    for q in quantities:
        if q.unit == "bytes":
            planned = format_bytes(q.planned) if q.planned else "-"
            lines.append(f"| {q.name} | {format_bytes(q.measured)} | {planned} | {q.ratio or 0:.3f} |")
    lines += [f"\n{finding.message}: {' '.join(finding.notes)}" for finding in played.findings]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
