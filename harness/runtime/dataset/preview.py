# SPDX-License-Identifier: Apache-2.0
"""The preview of `harness data`: counts, lengths, the fill of sequences, and a few of them as text. Plain values."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import SKIPPED_FILE
from harness.runtime.dataset.cache import prepare_or_reuse
from harness.runtime.dataset.sampler import RowDataset, open_train_data
from harness.runtime.dataset.token_dataset import TokenDataset
from harness.runtime.dataset.unused_columns import describe_unused_columns
from harness.runtime.micro_batch import IGNORE_INDEX, BatchGeometry
from harness.runtime.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_ROWS = 1_000_000
"""Rows of the first epoch whose padding is counted."""


def preview_dataset(run: ResolvedRun, examples: int) -> dict[str, Any]:
    """Prepare the data, or reuse the cache, and describe it. Raises UserError (MD1xx)."""
    tokenizer = load_tokenizer(run.spec.model, run.spec.data.chat_template)
    start_time = time.monotonic()
    folder, prepared, from_cache = prepare_or_reuse(run, tokenizer)
    seconds = time.monotonic() - start_time
    geometry = BatchGeometry(run.batch.micro_batch or 1, run.batch.accumulation or 1, run.parallel_dims.data or 1)
    train = open_train_data(run, folder, prepared, geometry, 0)
    found = describe_unused_columns(prepared.unused_columns)
    return {
        "cache": str(folder),
        "from_cache": from_cache,
        "seconds": round(seconds, 3),
        "max_length": run.spec.data.max_length,
        "packing": run.spec.data.packing,
        "eval_fraction": 0.0 if run.spec.data.eval else run.spec.data.eval_fraction,
        "train": [asdict(part) for part in prepared.train],
        "eval": [asdict(part) for part in prepared.eval],
        "tokens": {
            "train": prepared.train_tokens,
            "eval": prepared.eval_tokens,
            "trained_on": int(train.dataset.num_targets.sum())
            if run.spec.objective == "causal_lm"
            else sum(part.trained for part in prepared.train),
        },
        "documents": {"train": prepared.train_documents, "eval": prepared.eval_documents},
        "sequences": {"train": len(train.dataset), "an_epoch": train.rows_per_epoch},
        "steps_an_epoch": train.steps_per_epoch,
        "sequences_a_step": geometry.global_batch_size,
        "filled": train.fill_ratio(_MAX_ROWS),
        "skipped": prepared.skipped,
        "skipped_list": str(folder / SKIPPED_FILE) if prepared.skipped else None,
        "examples_skipped": _first_lines(folder / SKIPPED_FILE),
        "truncated": prepared.truncated,
        "unused_columns": prepared.unused_columns,
        "findings": [f.to_json() for f in found],
        "lengths": list(prepared.lengths),
        "unigram_entropy": prepared.unigram_entropy,
        "examples": _sample_rows(run, train.dataset, tokenizer, examples),
    }


def _first_lines(path: Path, count: int = 5) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def _sample_rows(
    run: ResolvedRun, dataset: RowDataset, tokenizer: PreTrainedTokenizerBase, count: int
) -> list[dict[str, Any]]:
    """A random sample of rows; `parts`: consecutive (text, is trained on)."""
    if not isinstance(dataset, TokenDataset):  # rows of the user's own are no text
        return []
    indices = np.random.default_rng([run.spec.train.seed, len(dataset)]).permutation(len(dataset))[:count]
    examples = []
    for row, (ids, labels) in zip(indices.tolist(), dataset.iter_examples(indices), strict=True):
        mask = labels != IGNORE_INDEX
        edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
        parts = [
            (tokenizer.decode(ids[first:last].tolist()), bool(mask[first]))
            for first, last in pairwise(edges)
            if last > first
        ]
        examples.append({"sequence": row, "tokens": len(ids), "trained_on": int(mask.sum()), "parts": parts})
    return examples
