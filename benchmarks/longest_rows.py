# SPDX-License-Identifier: Apache-2.0
"""The longest row of Llama-3.1 8B and 70B on 8 x 80 GB: by the plan, and that row on the simulated GPU.

    python benchmarks/longest_rows.py [8B] [70B] [--layers 4] [--write]

One row over the 8 ranks (Ulysses), packed without masks, inputs of layers and optimizer in host memory, MLPs and norms
in tiles, head and loss in chunks. The row is the longest multiple of 8,192 tokens that the plan says fits. `--layers`
simulates so many layers and half as many, and extrapolates, which is right where one moment holds most with both.
Ends with 1 where a simulation runs out of memory. `--write` puts the table into
`benchmarks/results/longest-rows-DATE.md`. Nothing is trained; minutes each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECIPES = {"8B": "llama-3.1-8b-zero3", "70B": "llama-3.1-70b-zero3-long-context"}
SETTINGS = {
    "train.per_device_train_batch_size": 1,
    "train.global_batch_size": 1,
    "train.gradient_checkpointing": "true",
    "train.offload_activations": "true",
    "train.mlp_tile_size": 16384,
    "train.loss_chunk_size": 4096,
    "parallel.sequence_parallel_size": 8,
    "model.attn_implementation": "sdpa_varlen",
    "data.packing": "true",
    "zero.offload_optimizer.device": "cpu",
    "zero.pin_memory_backend": "native",
    "cluster.host_memory": "1900GB",
}
UNIT = 8192
GIB = 1 << 30
ALST = {
    "8B": "3.7 M tokens (arXiv 2506.13996, abstract)",
    "70B": "none in the abstract; its recipe `run-h100-sp8-llama-70b.yml` has 200,000",
}


class LongRow(NamedTuple):
    """A model's longest row: tokens, the plan of it as JSON, and the simulation's."""

    model: str
    tokens: int
    plan: dict[str, Any]
    simulation: dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(RECIPES), help="8B, 70B")
    parser.add_argument("--layers", type=int, help="simulate so many layers and half as many, and extrapolate")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = [measure(model, options.layers) for model in options.models]
    text = render_page(rows, options.layers)
    print(text)
    if options.write:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        (ROOT / "benchmarks" / "results" / f"longest-rows-{day}.md").write_text(text, encoding="utf-8")
    return int(any(row.simulation["simulation"]["failed"] for row in rows))


def measure(model: str, layers: int | None) -> LongRow:
    """Search the longest row by plans alone, and simulate it."""
    low, high = 1, 1 << 10  # in units: 8.4 M tokens
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run_plan(model, middle * UNIT)["fits"] else (low, middle)
    tokens = low * UNIT
    print(f"{model}: {tokens:,} tokens by the plan", file=sys.stderr, flush=True)
    options = ["--simulate", *(["--layers", str(layers)] if layers else [])]
    return LongRow(model, tokens, run_plan(model, tokens), run_plan(model, tokens, *options))


def run_plan(model: str, tokens: int, *options: str) -> dict[str, Any]:
    """The JSON of `harness plan` for rows of so many tokens."""
    settings = {**SETTINGS, "data.max_length": tokens}
    keys = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    spec = ROOT / "ds_configs" / f"{RECIPES[model]}.yaml"
    command = [sys.executable, "-m", "harness", "plan", str(spec), *keys, "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout))


def render_page(rows: list[LongRow], layers: int | None) -> str:
    """The page: a line for each model."""
    lines = []
    for row in rows:
        phases = {(phase["tier"], phase["phase"]): phase for phase in row.simulation.get("phases", ())}
        cells = []
        for key in (("gpu", "backward"), ("host", "forward")):
            phase = phases.get(key, {})
            sides = (phase.get(side) for side in ("planned", "simulated"))
            cells.append(" / ".join("not run" if size is None else f"{size / GIB:.1f}" for size in sides))
        slow, fast = (row.plan["step_seconds_range"][end] / 3600 for end in (1, 0))
        cells.append(f"{row.plan['gpu_peak_bytes'] / GIB:.1f}, {row.plan['binding_constraint']}")
        lines.append(
            f"| {row.model} | {row.tokens:,} | {' | '.join(cells)} | {fast:.2g} to {slow:.2g} h | {ALST[row.model]} |"
        )
    versions = ", ".join(f"{name} {version(name)}" for name in ("deepspeed", "torch", "transformers"))
    extrapolated = f" --layers {layers}" if layers else ""
    return "\n".join(
        [
            f"# The longest row on 8 x 80 GB, {datetime.now(UTC).strftime('%Y-%m-%d')}",
            "",
            f"`python benchmarks/longest_rows.py{extrapolated} --write`, {versions}. One host of 8 x H100-80GB"
            " with 1.9 TB of memory. GiB of tensors a rank, planned / simulated; no GPU has run it.",
            "",
            "Settings: " + ", ".join(f"`{key}: {value}`" for key, value in SETTINGS.items()) + ".",
            "",
            "| Llama-3.1 | Tokens a row | GPU, backward | host, forward |"
            " GPU with what is assumed, full | Step, planned | ALST's |",
            "| --- | ---: | ---: | ---: | --- | --- | --- |",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
