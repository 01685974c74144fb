# SPDX-License-Identifier: Apache-2.0
"""Prepared data for tests: runs from a few settings, the byte tokenizer, a cache of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from harness.findings import Finding
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.runtime.dataset.cache import prepare_or_reuse
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.token_dataset import TokenDataset, open_token_dataset
from harness.runtime.tokenizer import byte_tokenizer
from harness.spec.run_spec import RunSpec

TOKENIZER = byte_tokenizer()


def run_of(folder: Path, **data: Any) -> ResolvedRun:
    """A run whose cache is below `folder`."""
    return resolve_run(RunSpec.model_validate_json(json.dumps({"data": {"cache_dir": str(folder / "cache"), **data}})))


def prepared(folder: Path, tokenizer: Any = TOKENIZER, **data: Any) -> tuple[PreparedData, Path]:
    """Prepare; `train` is not split unless asked."""
    place, found, _ = prepare_or_reuse(run_of(folder, **{"eval_fraction": 0.0, **data}), tokenizer, show_progress=False)
    return found, place


def sequences(folder: Path, tokenizer: Any = TOKENIZER, **data: Any) -> TokenDataset:
    """The training rows."""
    found, place = prepared(folder, tokenizer, **data)
    return open_token_dataset(place, found.train, data.get("max_length", 1024), found.pad)


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
