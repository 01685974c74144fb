# SPDX-License-Identifier: Apache-2.0
"""Activation memory of a live step by `train.gradient_checkpointing` and `train.mlp_tile_size`, compared with the plan.

    python benchmarks/activation_memory.py [--layers 16] [--ranks 2] [--accumulation 2] [--write]

A Llama of random weights in fp32 at ZeRO stage 2 takes two steps for each setting on CPU ranks, which count the bytes
of every tensor from the operator that makes it until it is freed. The table has the most that a rank held, what the
plan says of the tensors of a rank (without the memory of a process), and both less than with all activations kept.
Ends with 1 where a peak differs from the plan by more than 2 %. `--write` puts the table into
`benchmarks/results/activation-memory-DATE.md`. Needs 3 GiB and some minutes.
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
BOUND = 0.02
LENGTH = 2048
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
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches of a step")
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
    """Bytes of tensors of a rank at the peak of its steps: of the rank that held most, and planned."""
    from harness.plan.planner import make_plan
    from harness.plan.tuned_defaults.rules import with_tuned_defaults
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec
    from tests.support.training.runtime_helpers import JOBS

    for name in ("logs", "status", "checkpoints"):
        (folder / name).mkdir(parents=True)
    spec = RunSpec.model_validate_json(json.dumps(make_spec(train, arguments)))
    run = with_tuned_defaults(resolve_run(spec, world_size=arguments.ranks), folder)
    (folder / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (folder / "ds_config.json").write_text(render_ds_config(run).json_text)
    forked.run(JOBS / "tensor_peaks.py", str(folder), ranks=arguments.ranks, timeout=1800)
    told = json.loads((folder / "told.json").read_text())
    memory = make_plan(run, folder, "cpu").memory
    if memory is None:
        raise RuntimeError("the plan has no memory")
    tensors = [item for item in memory.items if not item.assumed]
    planned = max(sum(item.bytes for item in tensors if phase in item.phases) for phase in PHASES)
    return max(rank["bytes"] for rank in told), planned


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
    more = {"gradient_accumulation_steps": arguments.accumulation}
    return {
        "model": {"config": model, "tokenizer": "bytes"},
        "data": {"train": "builtin:python-docs", "max_length": LENGTH, "eval_fraction": 0.0},
        "train": {"max_steps": 2, "per_device_train_batch_size": 1, "seed": 1, **more, **train},
        "optimizer": {"learning_rate": 1e-5},
        "zero": {"stage": 2},
        "checkpoint": {"save_at_end": False},
        "cluster": {"gpu": "cpu"},
        "launch": {"num_gpus": arguments.ranks},
    }


def render_page(figures: dict[str, tuple[int, int]], arguments: argparse.Namespace) -> tuple[str, float]:
    """The page, and the largest gap between a measured and a planned peak, as a part of the planned one."""
    measured_most, planned_most = next(iter(figures.values()))
    rows, worst = [], 0.0
    for name, (measured, planned) in figures.items():
        gap = measured / planned - 1
        worst = max(worst, abs(gap))
        sizes = (measured, planned, measured_most - measured, planned_most - planned)
        rows.append(f"| {name} | {' | '.join(f'{size / 2**20:,.0f}' for size in sizes)} | {gap:+.1%} |")
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    body = [
        f"# Activation memory of a live step, {datetime.now(UTC).strftime('%Y-%m-%d')}",
        "",
        f"`python benchmarks/activation_memory.py --layers {arguments.layers} --ranks {arguments.ranks}"
        f" --accumulation {arguments.accumulation}`, {versions}.",
        "",
        f"A Llama of {arguments.layers} layers, 256 wide, MLPs 1,024 wide, fp32, ZeRO stage 2, {arguments.ranks} CPU"
        f" ranks, micro-batches of a row of {LENGTH:,} tokens, {arguments.accumulation} a step; MiB of tensors of the"
        " rank that held most, at the peak of its steps, each counted from its making until it is freed. Less: than"
        " with all activations kept.",
        "",
        "| `train.gradient_checkpointing` | Peak | Planned | Less, measured | Less, planned | Gap, of tensors |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
    ]
    return "\n".join(body), worst


if __name__ == "__main__":
    sys.exit(main())
