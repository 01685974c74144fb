# SPDX-License-Identifier: Apache-2.0
"""Helpers of the benchmarks on forked ranks: a small Llama, run directories as `harness launch` makes them, and a run
in one by the harness's own loop. No benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LLAMA = {
    "model_type": "llama",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
}


def run_directory(folder: Path, body: dict[str, Any], ranks: int) -> Path:
    """A new one below `folder`, with the harness's choices; the JSON without them is beside it as `defaults.json`."""
    from harness.plan.tuned_defaults.rules import with_tuned_defaults
    from harness.render import render_ds_config
    from harness.run.resolved_run import resolve_run
    from harness.spec.run_spec import RunSpec

    place = folder / f"run-{len(list(folder.glob('run-*')))}"
    for name in ("logs", "status", "checkpoints"):
        (place / name).mkdir(parents=True)
    plain = resolve_run(RunSpec.model_validate_json(json.dumps(body)), world_size=ranks)
    run = with_tuned_defaults(plain, folder)
    (place / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (place / "ds_config.json").write_text(render_ds_config(run).json_text)
    (place / "defaults.json").write_text(render_ds_config(plain).json_text)
    return place


def train_here(place: Path, ranks: Any) -> list[dict[str, Any]]:
    """On each rank, what the launcher starts; returns the first rank's `step` lines of `metrics.jsonl`."""
    from harness.runtime.rank_status import RankStatusWriter
    from harness.runtime.run_config import RunDir
    from harness.runtime.train import train
    from harness.runtime.train_context import build_context
    from harness.runtime.worker import _load_run_config_on_all_ranks

    run_dir = RunDir(place)
    job = build_context(
        _load_run_config_on_all_ranks(run_dir, ranks), run_dir, ranks, RankStatusWriter(run_dir, ranks.rank)
    )
    train(job)
    job.metrics.close()
    if not ranks.is_main_process:
        return []
    rows = map(json.loads, run_dir.metrics.read_text().splitlines())
    return [row for row in rows if row["type"] == "step"]
