"""Prepared data for tests: runs from a few settings, the byte tokenizer, a cache of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from harness.findings import Finding
from harness.plan.run import Run, resolve
from harness.runtime.corpus.cache import cached
from harness.runtime.corpus.prepare import Prepared
from harness.runtime.sequences import Sequences, open_sequences
from harness.runtime.tokens import byte_tokenizer
from harness.spec.model import RunSpec

TOKENIZER = byte_tokenizer()


def run_of(folder: Path, **data: Any) -> Run:
    """A run whose cache is below `folder`."""
    return resolve(RunSpec.model_validate_json(json.dumps({"data": {"cache_dir": str(folder / "cache"), **data}})))


def prepared(folder: Path, tokenizer: Any = TOKENIZER, **data: Any) -> tuple[Prepared, Path]:
    """Prepare; `train` is not split unless asked."""
    place, found, _ = cached(run_of(folder, **{"eval_fraction": 0.0, **data}), tokenizer, shown=False)
    return found, place


def sequences(folder: Path, tokenizer: Any = TOKENIZER, **data: Any) -> Sequences:
    """The training rows."""
    found, place = prepared(folder, tokenizer, **data)
    return open_sequences(place, found.train, data.get("max_length", 1024), found.pad)


def lines(path: Path, records: list[Any]) -> str:
    """A JSON Lines file."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def chat(*turns: str) -> dict[str, Any]:
    """User and assistant in turn."""
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]}


def decoded(ids: np.ndarray, labels: np.ndarray, tokenizer: Any = TOKENIZER) -> tuple[str, str]:
    """(everything, what is trained on)."""
    return tokenizer.decode(ids.tolist()), tokenizer.decode(labels[labels >= 0].tolist())


def only(refused: Any) -> Finding:
    """The one finding of a refusal."""
    (finding,) = refused.value.findings
    return finding
