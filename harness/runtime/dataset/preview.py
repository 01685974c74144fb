"""What `harness data` shows: counts, lengths, how full sequences are, and a few of them in words. Plain values."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.plan.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import SKIPPED_FILE
from harness.runtime.dataset.cache import prepare_or_reuse
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.sampler import TrainData, open_train_data
from harness.runtime.dataset.token_dataset import TokenDataset
from harness.runtime.micro_batch import IGNORE_INDEX, BatchGeometry
from harness.runtime.tokenizer import load_tokenizer
from harness.runtime.train_state import DataPosition

_STEPS = 50


def preview_dataset(run: ResolvedRun, examples: int) -> dict[str, Any]:
    """Prepare the data, or find it in the cache, and describe it. Raises Refused (MD1xx)."""
    tokenizer = load_tokenizer(run.spec.model, run.spec.data.chat_template)
    began = time.monotonic()
    folder, prepared, hit = prepare_or_reuse(run, tokenizer)
    seconds = time.monotonic() - began
    shape = BatchGeometry(run.batch.micro_batch or 1, run.batch.accumulation or 1, run.parallel_dims.data or 1)
    train = open_train_data(run, folder, prepared, shape, 0)
    trained = sum(part.trained for part in prepared.train)
    return {
        "cache": str(folder),
        "from_cache": hit,
        "seconds": round(seconds, 3),
        "max_length": run.spec.data.max_length,
        "packing": run.spec.data.packing,
        "train": [asdict(part) for part in prepared.train],
        "eval": [asdict(part) for part in prepared.eval],
        "tokens": {"train": prepared.train_tokens, "eval": prepared.eval_tokens, "trained_on": trained},
        "documents": {"train": prepared.train_documents, "eval": prepared.eval_documents},
        "sequences": {"train": len(train.dataset), "an_epoch": train.rows_per_epoch},
        "steps_an_epoch": train.steps_per_epoch,
        "sequences_a_step": shape.global_batch_size,
        "filled": _fill_ratio(train),
        "skipped": prepared.skipped,
        "skipped_list": str(folder / SKIPPED_FILE) if prepared.skipped else None,
        "examples_skipped": _first_lines(folder / SKIPPED_FILE),
        "truncated": prepared.truncated,
        "lengths": list(prepared.lengths),
        "unigram_entropy": prepared.unigram_entropy,
        "examples": _sample_rows(run, prepared, train.dataset, tokenizer, examples),
    }


def _fill_ratio(train: TrainData) -> float:
    """Share of the positions of the first steps that hold a token and not padding."""
    position, tokens, places = DataPosition(), 0, 0
    one = BatchGeometry(
        train.geometry.micro_batch_size, train.geometry.accumulation_steps, train.geometry.data_parallel_size
    )
    for _ in range(min(_STEPS, train.steps_per_epoch)):
        drawn = train.batch_at(position)
        position, tokens = drawn.next_position, tokens + drawn.num_tokens
        places += sum(batch.input_ids.numel() for batch in drawn.micro_batches) * one.data_parallel_size
    return tokens / max(1, places)


def _first_lines(path: Path, count: int = 5) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def _sample_rows(
    run: ResolvedRun, prepared: PreparedData, rows: TokenDataset, tokenizer: Any, count: int
) -> list[dict[str, Any]]:
    """Rows drawn by the seed; `parts`: (text, whether it is trained on) one after the other."""
    del prepared
    chosen = np.random.default_rng([run.spec.train.seed, len(rows)]).permutation(len(rows))[:count]
    out = []
    for row, (ids, labels) in zip(chosen.tolist(), rows.iter_examples(chosen), strict=True):
        trained = labels != IGNORE_INDEX
        edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
        parts = [
            (tokenizer.decode(ids[first:last].tolist()), bool(trained[first]))
            for first, last in pairwise(edges)
            if last > first
        ]
        out.append({"sequence": row, "tokens": len(ids), "trained_on": int(trained.sum()), "parts": parts})
    return out
