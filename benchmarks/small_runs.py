"""What benchmarks on forked ranks share: a small Llama, run directories as `harness launch` makes them, and a run in
one by the harness's own loop. No benchmark."""

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
    from harness.plan.choices.choosing import with_choices
    from harness.plan.run import resolve
    from harness.render import render
    from harness.spec.model import RunSpec

    place = folder / f"run-{len(list(folder.glob('run-*')))}"
    for name in ("logs", "status", "checkpoints"):
        (place / name).mkdir(parents=True)
    plain = resolve(RunSpec.model_validate_json(json.dumps(body)), world_size=ranks)
    run = with_choices(plain, folder)
    (place / "spec.resolved.json").write_text(json.dumps(run.to_json()))
    (place / "ds_config.json").write_text(render(run).text)
    (place / "defaults.json").write_text(render(plain).text)
    return place


def train_here(place: Path, ranks: Any) -> list[dict[str, Any]]:
    """On each rank, what the launcher starts; returns the first rank's `step` lines of `metrics.jsonl`."""
    from harness.runtime import loop
    from harness.runtime.main import _read_together
    from harness.runtime.rundir import RunDir
    from harness.runtime.status import Status

    run_dir = RunDir(place)
    job = loop.build(_read_together(run_dir, ranks), run_dir, ranks, Status(run_dir, ranks.rank))
    loop.train(job, None)
    job.metrics.close()
    if not ranks.is_first:
        return []
    rows = map(json.loads, run_dir.metrics.read_text().splitlines())
    return [row for row in rows if row["type"] == "step"]
