"""What `harness data` shows: counts, lengths, how full sequences are, and a few of them in words. Plain values."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.plan.run import Run
from harness.runtime.batch import IGNORED
from harness.runtime.corpus.cache import cached
from harness.runtime.corpus.ledger import LIST
from harness.runtime.corpus.prepare import Prepared
from harness.runtime.data import Shape, TrainData, open_train
from harness.runtime.sequences import Sequences
from harness.runtime.state import Position
from harness.runtime.tokens import load_tokenizer

_STEPS = 50


def show(run: Run, examples: int) -> dict[str, Any]:
    """Prepare the data, or find it in the cache, and describe it. Raises Refused (MD1xx)."""
    tokenizer = load_tokenizer(run.spec.model, run.spec.data.chat_template)
    began = time.monotonic()
    folder, prepared, hit = cached(run, tokenizer)
    seconds = time.monotonic() - began
    shape = Shape(run.batch.per_device or 1, run.batch.accumulation or 1, run.degrees.data or 1)
    train = open_train(run, folder, prepared, shape, 0)
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
        "sequences": {"train": len(train.sequences), "an_epoch": train.rows_per_epoch},
        "steps_an_epoch": train.steps_per_epoch,
        "sequences_a_step": shape.total,
        "filled": _filled(train),
        "skipped": prepared.skipped,
        "skipped_list": str(folder / LIST) if prepared.skipped else None,
        "examples_skipped": _first_lines(folder / LIST),
        "truncated": prepared.truncated,
        "lengths": list(prepared.lengths),
        "unigram_entropy": prepared.unigram_entropy,
        "examples": _examples(run, prepared, train.sequences, tokenizer, examples),
    }


def _filled(train: TrainData) -> float:
    """Share of the positions of the first steps that hold a token and not padding."""
    position, tokens, places = Position(), 0, 0
    one = Shape(train.shape.micro, train.shape.accumulation, train.shape.ranks)
    for _ in range(min(_STEPS, train.steps_per_epoch)):
        drawn = train.step(position)
        position, tokens = drawn.position, tokens + drawn.tokens
        places += sum(batch.input_ids.numel() for batch in drawn.micro_batches) * one.ranks
    return tokens / max(1, places)


def _first_lines(path: Path, count: int = 5) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for _, line in zip(range(count), file, strict=False)]


def _examples(run: Run, prepared: Prepared, rows: Sequences, tokenizer: Any, count: int) -> list[dict[str, Any]]:
    """Rows drawn by the seed; `parts`: (text, whether it is trained on) one after the other."""
    del prepared
    chosen = np.random.default_rng([run.spec.train.seed, len(rows)]).permutation(len(rows))[:count]
    out = []
    for row, (ids, labels) in zip(chosen.tolist(), rows.examples(chosen), strict=True):
        trained = labels != IGNORED
        edges = [0, *(np.flatnonzero(np.diff(trained)) + 1).tolist(), len(ids)]
        parts = [
            (tokenizer.decode(ids[first:last].tolist()), bool(trained[first]))
            for first, last in pairwise(edges)
            if last > first
        ]
        out.append({"sequence": row, "tokens": len(ids), "trained_on": int(trained.sum()), "parts": parts})
    return out
