# SPDX-License-Identifier: Apache-2.0
"""Tiny encoders and decoders, texts with labels, and run specs of `objective: classification`."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForMaskedLM

from tests.support.training import preference_case as case
from tests.support.training.preference_runs import spec_of

STEPS = 6


def save_models(folder: Path) -> None:
    """A masked BERT, which has no pooler, as `bert`, a causal Llama as `model`, with the same tokenizer."""
    case.save_model(folder / "model")
    case.save_model(folder / "bert")
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=34, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, pad_token_id=0, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    (folder / "bert" / "generation_config.json").unlink()
    BertForMaskedLM(config).float().save_pretrained(folder / "bert")


def records(kind: str, count: int = 24) -> list[dict[str, Any]]:
    """Texts whose label is what they are about: `names`, `indices`, `several`, `numbers`."""
    draw = random.Random(7)  # noqa: S311
    rows = []
    for i in range(count):
        word = "cat" if i % 2 else "dog"
        text = f"{word} " + "".join(draw.choice("abcdefg ") for _ in range(draw.randint(2, 14)))
        label: Any = {"names": word, "indices": i % 2, "several": [word, "long"][: 1 + (len(text) > 10)],
                      "numbers": len(text) / 10}[kind]  # fmt: skip
        rows.append({"text": text, "label": label})
    return rows


def held_out_records(kind: str) -> list[dict[str, Any]]:
    """The first of the records: too few for whole batches."""
    return records(kind)[:7]


def label_spec(folder: Path, kind: str, model: str, *, stage: int, ranks: int = 1, **changes: Any) -> dict[str, Any]:
    """A spec; the records are written below `folder`."""
    file, held_out = folder / f"{kind}.jsonl", folder / f"{kind}-eval.jsonl"
    for path, rows in ((file, records(kind)), (held_out, held_out_records(kind))):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = spec_of("dpo", folder, stage=stage, ranks=ranks, cache="label-cache")
    del body["dpo"]
    body |= {"objective": "classification", "model": {"name_or_path": str(folder / model)}, **changes}
    body["data"] |= {"train": str(file), "eval": str(held_out)}
    body["train"] |= {"max_steps": STEPS, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 4 // ranks}
    body["checkpoint"] = {"save_at_end": True}
    return body
