# SPDX-License-Identifier: Apache-2.0
"""Activation memory of a live step by `train.gradient_checkpointing` and `train.mlp_tile_size`, compared with the plan.

    python benchmarks/activation_memory.py [--layers 16] [--ranks 2] [--write]

A Llama of random weights in fp32 at ZeRO stage 2 takes three steps for each setting, on CPU ranks that hand freed
blocks back, so that what is resident is what is in use. The table has what the ranks held at most in their steps less
than with all activations kept, and what the plan says of that. Ends with 1 where the two differ by more than 2.5 % of
the planned peak of a setting. `--write` puts the table into `benchmarks/results/activation-memory-DATE.md`. Needs
6 GiB and some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
BOUND = 0.025
LENGTH = 4096
SETTINGS: dict[str, dict[str, Any]] = {
    "`false`": {"gradient_checkpointing": False},
    "`{recompute_every: 3}`": {"gradient_checkpointing": {"recompute_every": 3}},
    "`{recompute_every: 2}`": {"gradient_checkpointing": {"recompute_every": 2}},
    "`{recompute_every: 2, keep: attention}`": {"gradient_checkpointing": {"recompute_every": 2, "keep": "attention"}},
    "`{keep: attention}`": {"gradient_checkpointing": {"keep": "attention"}},
    **{
        f"`{{layers_per_segment: {layers}}}`": {"gradient_checkpointing": {"layers_per_segment": layers}}
        for layers in (2, 4, 8)
    },
    "`true`": {"gradient_checkpointing": True},
    "`false`, `mlp_tile_size: 512`": {"gradient_checkpointing": False, "mlp_tile_size": 512},
    "`true`, `mlp_tile_size: 512`": {"gradient_checkpointing": True, "mlp_tile_size": 512},
}
PHASES = ("forward", "backward", "step")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    from tests.support.training.forked_ranks import ForkedRanks

    figures: dict[str, tuple[int, int]] = {}
    with tempfile.TemporaryDirectory(prefix="activation-memory-") as folder, closing(ForkedRanks()) as forked:
        for number, (name, train) in enumerate(SETTINGS.items()):
            figures[name] = measure(forked, Path(folder) / str(number), train, arguments)
            print(name, *(f"{each / 2**20:,.0f} MiB" for each in figures[name]), flush=True)
    text, worst = render_page(figures, arguments)
    print(text)
    if arguments.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"activation-memory-{day}.md").write_text(text, encoding="utf-8")
    return int(worst > BOUND)


def measure(forked: Any, folder: Path, train: dict[str, Any], arguments: argparse.Namespace) -> tuple[int, int]:
    """Bytes of a rank at the peak of its steps, measured without what it held before loading anything, and planned."""
    from dataclasses import replace

    from harness.plan.planner import make_plan
    from harness.plan.tuned_defaults.rules import with_tuned_defaults
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec
    from tests.support.training.model_helpers import JOBS

    for name in ("logs", "status", "checkpoints"):
        (folder / name).mkdir(parents=True)
    spec = RunSpec.model_validate_json(json.dumps(make_spec(train, arguments)))
    run = with_tuned_defaults(resolve_run(spec, world_size=arguments.ranks), folder)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(render_ds_config(run).json_text)
    forked.run(JOBS / "phase_memory.py", str(folder), ranks=arguments.ranks, timeout=600)
    told = json.loads((folder / "told.json").read_text())
    memory = make_plan(run, folder, "cpu").memory
    if memory is None:
        raise RuntimeError("the plan has no memory")
    in_use = replace(memory, items=tuple(item for item in memory.items if item.kind != "heap"))
    planned = max(in_use.host_bytes_at(phase) for phase in PHASES)
    return (sum(told["step"]) - sum(told["before"])) // arguments.ranks, planned // arguments.ranks


def make_spec(train: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    model = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": LENGTH,
    }
    return {
        "model": {"config": model, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.0},
        "train": {"max_steps": 3, "per_device_train_batch_size": 1, "seed": 1, **train},
        "optimizer": {"learning_rate": 1e-5},
        "zero": {"stage": 2},
        "checkpoint": {"save_at_end": False},
        "cluster": {"gpu": "cpu"},
        "launch": {"num_gpus": arguments.ranks},
    }


def render_page(figures: dict[str, tuple[int, int]], arguments: argparse.Namespace) -> tuple[str, float]:
    """The page, and the largest gap between a measured and a planned difference, as a part of the planned peak."""
    measured_most, planned_most = next(iter(figures.values()))
    rows, worst = [], 0.0
    for name, (measured, planned) in figures.items():
        less, planned_less = measured_most - measured, planned_most - planned
        gap = (less - planned_less) / planned
        worst = max(worst, abs(gap))
        rows.append(
            f"| {name} | {measured / 2**20:,.0f} | {less / 2**20:,.0f} | {planned_less / 2**20:,.0f} | {gap:+.1%} |"
        )
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    body = [
        f"# Activation memory of a live step, {datetime.now(UTC).strftime('%Y-%m-%d')}",
        "",
        f"`python benchmarks/activation_memory.py --layers {arguments.layers} --ranks {arguments.ranks}`, {versions}.",
        "",
        f"A Llama of {arguments.layers} layers, 256 wide, MLPs 1,024 wide, fp32, ZeRO stage 2, {arguments.ranks} CPU"
        f" ranks, a row of {LENGTH:,} tokens each; MiB of a rank at the peak of its steps. Less: than with all"
        " activations kept.",
        "",
        "| `train.gradient_checkpointing` | Peak | Less, measured | Less, planned | Gap, by the planned peak |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]
    return "\n".join(body), worst


if __name__ == "__main__":
    sys.exit(main())
