"""From sources to files that every rank maps: read, tokenise, hold out, lay out. Once a node; batches are elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.file_io import replace_file
from harness.plan.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import BadRecordLog
from harness.runtime.dataset.data_plan import DataGroup, DataPlan
from harness.runtime.dataset.eval_split import EvalSplit, split_eval
from harness.runtime.dataset.ingestion import IngestedGroup, ingest_group
from harness.runtime.dataset.progress_bar import ProgressDisplay
from harness.runtime.dataset.token_rows import RowStats, TokenRecords, write_rows, write_stream
from harness.runtime.user_errors import user_error

META_FILE = "meta.json"
LAYOUT_VERSION = 1
"""Of the layout of the files, and of what the same records become; another one does not find the old cache."""


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """A group of rows in a folder. `rows` 0: a stream of text. `kinds` names the formats in it."""

    name: str
    rows: int
    packed: bool
    masked: bool
    weight: float | None
    documents: int
    tokens: int
    trained: int
    source: str


@dataclass(frozen=True, slots=True)
class PreparedData:
    """What lies in the data folder. `unigram_entropy`: nats per held-out token, under the training part's unigrams."""

    train_tokens: int
    eval_tokens: int
    train_documents: int
    eval_documents: int
    unigram_entropy: float | None
    sha256: str
    train: tuple[PreparedGroup, ...] = ()
    eval: tuple[PreparedGroup, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    lengths: tuple[int, ...] = ()
    """Records by length: entry i counts those of 2**(i-1) + 1 to 2**i tokens."""
    pad: int = 0

    @staticmethod
    def read(folder: Path) -> PreparedData | None:
        """What has been prepared there, if that was finished."""
        try:
            body = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        for part in ("train", "eval"):
            body[part] = tuple(PreparedGroup(**entry) for entry in body[part])
        return PreparedData(**{**body, "lengths": tuple(body["lengths"])})


def prepare_data(
    run: ResolvedRun, tokenizer: Any, folder: Path, plan: DataPlan, display: ProgressDisplay | None = None
) -> PreparedData:
    """Write the token files and, when all of them are there, `meta.json`. Raises Refused (MD11x, MD12x)."""
    folder.mkdir(parents=True, exist_ok=True)
    display = display or ProgressDisplay(plan.size)
    data, seed = run.spec.data, run.spec.train.seed
    seen = {"train": np.zeros(len(tokenizer), dtype=np.int64), "eval": np.zeros(len(tokenizer), dtype=np.int64)}
    parts: dict[str, list[PreparedGroup]] = {"train": [], "eval": []}
    digests: list[str] = []
    histogram, truncated = np.zeros(1, dtype=np.int64), 0
    with BadRecordLog(data, folder) as ledger, display:
        for group in plan.groups:
            with ingest_group(group, tokenizer, run, folder, ledger, display) as got:
                truncated += got.truncated
                histogram = _add_lengths(histogram, got.records.lengths)
                fraction = 0.0 if data.eval or group.role == "eval" else data.eval_fraction
                held = split_eval(got.records.sizes, fraction, seed, divisible=group.stream)
                for role in ("train", "eval"):
                    written = _write_group(got, group, held, role, run, tokenizer, folder, seen[role])
                    if written is not None and written.tokens:
                        digests.append(f"{role} {written.sha256}")
                        parts[role].append(_describe_group(group, role, got, written))
        counts = ledger.counts
    if not any(part.tokens for part in parts["train"]):
        raise _empty_data_error(counts)
    total = {role: sum(part.tokens for part in found) for role, found in parts.items()}
    prepared = PreparedData(
        train_tokens=total["train"],
        eval_tokens=total["eval"],
        train_documents=sum(part.documents for part in parts["train"]),
        eval_documents=sum(part.documents for part in parts["eval"]),
        unigram_entropy=unigram_cross_entropy(seen["train"], seen["eval"]) if seen["eval"].any() else None,
        sha256=hashlib.sha256(" ".join(digests).encode()).hexdigest(),
        train=tuple(parts["train"]),
        eval=tuple(parts["eval"]),
        skipped=dict(counts),
        truncated=truncated,
        lengths=tuple(int(n) for n in histogram),
        pad=_pad_token_id(tokenizer),
    )
    replace_file(folder / META_FILE, json.dumps(asdict(prepared)) + "\n")
    return prepared


def _write_group(
    got: IngestedGroup,
    group: DataGroup,
    held: EvalSplit,
    role: str,
    run: ResolvedRun,
    tokenizer: Any,
    folder: Path,
    seen: np.ndarray,
) -> RowStats | None:
    """One part of a group; None where this group has none of it."""
    if group.role == "eval":
        if role == "train":
            return None
        held = EvalSplit(np.arange(len(got.records.lengths)))
    path = folder / f"{group_stem(role, group.index)}.npy"
    if group.stream:
        return write_stream(got.records, held, path, tokenizer, seen, train=role == "train")
    which = held.documents
    if role == "train":
        keep = np.ones(len(got.records.lengths), dtype=np.bool_)
        keep[held.documents] = False
        which = np.flatnonzero(keep)
    data = run.spec.data
    return write_rows(got.records, which, path, data.max_length, seen, packing=data.packing)


def group_stem(role: str, index: int) -> str:
    """The stem of a group's files: `train`, `train.1` ..."""
    return role if index == 0 else f"{role}.{index}"


def _describe_group(group: DataGroup, role: str, got: IngestedGroup, written: RowStats) -> PreparedGroup:
    masked = got.records.trained is not None
    return PreparedGroup(
        group_stem(role, group.index),
        written.rows,
        group.packed,
        masked,
        group.weight,
        written.documents,
        written.tokens,
        written.trained_tokens,
        group.name,
    )


def unigram_cross_entropy(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per held-out token when each is predicted by its frequency in training alone (add-one smoothed over the
    tokens of the tokenizer): what a model reaches that has learnt the frequencies and no context. Counts by token id.
    """
    probabilities = (train + 1) / (train.sum() + len(train))
    return float(-(held_out * np.log(probabilities)).sum() / held_out.sum())


def _add_lengths(histogram: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if not len(lengths):
        return histogram
    found = np.bincount(np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64))
    out = np.zeros(max(len(histogram), len(found)), dtype=np.int64)
    out[: len(histogram)] += histogram
    out[: len(found)] += found
    return out


def _pad_token_id(tokenizer: Any) -> int:
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def _empty_data_error(counts: Counter[str]) -> Exception:
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    notes = (f"left out: {kinds}",) if kinds else ()
    return user_error("MD114", "the training text is empty", key="data.train", notes=notes)


__all__ = [
    "LAYOUT_VERSION",
    "META_FILE",
    "PreparedData",
    "PreparedGroup",
    "TokenRecords",
    "group_stem",
    "prepare_data",
    "unigram_cross_entropy",
]
