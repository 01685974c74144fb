# SPDX-License-Identifier: Apache-2.0
"""Runs that show an answer of the table of models: a tiny model of a type trained in two ways, with what they differ in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.model_table import FIELDS
from harness.render import render_ds_config
from harness.run.resolved_run import resolve_run
from harness.runtime.model_behavior import build_small_copy
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec
from tests.support.training.forked_ranks import ForkedRanks
from tests.support.training.runtime_helpers import metric_lines, write_run

JOB = Path(__file__).parents[2] / "training/jobs/train_unasked.py"
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "alone": (1, {}),
    "apart": (1, {"data": {"packing": True}}),
    "sequence": (2, {"parallel": {"sequence_parallel_size": 2}}),
    "tensor": (2, {"parallel": {"tensor_parallel_size": 2}}),
    "pipeline": (2, {"parallel": {"pipeline_parallel_size": 2}}),
    "checkpointing": (1, {"train": {"gradient_checkpointing": True}}),
    "loss": (1, {"train": {"loss_chunk_size": 8}}),
    "zero3": (2, {"zero": {"stage": 3}}),
}
"""Ranks and what the spec has for each question."""
DOCUMENTS, LENGTH = 8, 256
TOLERANCE = 2e-4


def write_model(kind: str, folder: Path) -> None:
    """A small copy with the ids of the byte tokenizer and its random weights."""
    small = build_small_copy(AutoConfig.for_model(kind, **FIELDS.get(kind, {})))
    config = small.config
    text = config.get_text_config(decoder=True)
    text.vocab_size, text.pad_token_id = 320, 0
    for name, value in vars(text).items():
        if isinstance(value, float) and ("drop" in name or name.endswith("jitter_noise")):
            setattr(text, name, 0.0)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    words = "the rank sends a shard of each row to the next stage and waits for the sum".split()
    texts = [f"{i} " + " ".join(words[i : i + 4]) for i in range(DOCUMENTS)]
    (folder / "texts.jsonl").write_text(
        "".join(json.dumps({"prompt": text[:5], "completion": text[5:]}) + "\n" for text in texts)
    )


def losses_of(way: str, model: Path, folder: Path, forked: ForkedRanks) -> list[float] | str:
    """The losses of two steps over all documents; the last lines of the first rank that failed."""
    ranks, changes = WAYS[way]
    rows = DOCUMENTS // (ranks if way == "zero3" else 1)
    spec: dict[str, Any] = {
        "model": {"name_or_path": str(model)},
        "data": {
            "train": str(model / "texts.jsonl"),
            "max_length": LENGTH,
            "packing": False,
            "completion_only_loss": False,
            "eval_fraction": 0,
        },
        "train": {"max_steps": 2, "per_device_train_batch_size": rows, "loss_chunk_size": 0, "seed": 1},
        "optimizer": {"learning_rate": 1e-3, "type": "adamw"},
        "precision": {"bf16": False},
        "zero": {"stage": 0},
        "checkpoint": {"save_at_end": False},
    }
    for section, values in changes.items():
        spec[section] = {**spec.get(section, {}), **values}
    if way == "apart":  # all documents in one row
        spec["train"]["per_device_train_batch_size"] = 1
    run = resolve_run(RunSpec.model_validate_json(json.dumps(spec)), world_size=ranks)
    write_run(folder / way, spec, dict(render_ds_config(run).config), world_size=ranks)
    answer = forked.run(JOB, "--run", str(folder / way), ranks=ranks, timeout=120, check=False)
    if any(answer["codes"]):
        return str(answer["output"][answer["first"]][-600:])
    return [float(line["loss"]) for line in metric_lines(folder / way, "step")]
