"""From sources to files that every rank maps: read, tokenise, hold out, lay out. Once a node; batches are elsewhere."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.files import replace_file
from harness.plan.run import Run
from harness.runtime.corpus.ingest import Ingested, ingest
from harness.runtime.corpus.ledger import Ledger
from harness.runtime.corpus.plan import DataPlan, Group
from harness.runtime.corpus.progress import Display
from harness.runtime.corpus.rows import Records, Written, write_rows, write_stream
from harness.runtime.corpus.split import HeldOut, hold_out
from harness.runtime.refusals import refusal

META = "meta.json"
VERSION = 1
"""Of the layout of the files, and of what the same records become; another one does not find the old cache."""


@dataclass(frozen=True, slots=True)
class Part:
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
class Prepared:
    """What lies in the data folder. `unigram_entropy`: nats per held-out token, under the training part's unigrams."""

    train_tokens: int
    eval_tokens: int
    train_documents: int
    eval_documents: int
    unigram_entropy: float | None
    sha256: str
    train: tuple[Part, ...] = ()
    eval: tuple[Part, ...] = ()
    skipped: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    lengths: tuple[int, ...] = ()
    """Records by length: entry i counts those of 2**(i-1) + 1 to 2**i tokens."""
    pad: int = 0

    @staticmethod
    def read(folder: Path) -> Prepared | None:
        """What has been prepared there, if that was finished."""
        try:
            body = json.loads((folder / META).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        for part in ("train", "eval"):
            body[part] = tuple(Part(**entry) for entry in body[part])
        return Prepared(**{**body, "lengths": tuple(body["lengths"])})


def prepare(run: Run, tokenizer: Any, folder: Path, plan: DataPlan, display: Display | None = None) -> Prepared:
    """Write the token files and, when all of them are there, `meta.json`. Raises Refused (MD11x, MD12x)."""
    folder.mkdir(parents=True, exist_ok=True)
    display = display or Display(plan.size)
    data, seed = run.spec.data, run.spec.train.seed
    seen = {"train": np.zeros(len(tokenizer), dtype=np.int64), "eval": np.zeros(len(tokenizer), dtype=np.int64)}
    parts: dict[str, list[Part]] = {"train": [], "eval": []}
    digests: list[str] = []
    histogram, truncated = np.zeros(1, dtype=np.int64), 0
    with Ledger(data, folder) as ledger, display:
        for group in plan.groups:
            with ingest(group, tokenizer, run, folder, ledger, display) as got:
                truncated += got.truncated
                histogram = _added(histogram, got.records.lengths)
                fraction = 0.0 if data.eval or group.role == "eval" else data.eval_fraction
                held = hold_out(got.records.sizes, fraction, seed, divisible=group.stream)
                for role in ("train", "eval"):
                    written = _write(got, group, held, role, run, tokenizer, folder, seen[role])
                    if written is not None and written.tokens:
                        digests.append(f"{role} {written.sha256}")
                        parts[role].append(_part(group, role, got, written))
        counts = ledger.counts
    if not any(part.tokens for part in parts["train"]):
        raise _nothing(counts)
    total = {role: sum(part.tokens for part in found) for role, found in parts.items()}
    prepared = Prepared(
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
        pad=_pad(tokenizer),
    )
    replace_file(folder / META, json.dumps(asdict(prepared)) + "\n")
    return prepared


def _write(
    got: Ingested, group: Group, held: HeldOut, role: str, run: Run, tokenizer: Any, folder: Path, seen: np.ndarray
) -> Written | None:
    """One part of a group; None where this group has none of it."""
    if group.role == "eval":
        if role == "train":
            return None
        held = HeldOut(np.arange(len(got.records.lengths)))
    path = folder / f"{file_name(role, group.index)}.npy"
    if group.stream:
        return write_stream(got.records, held, path, tokenizer, seen, train=role == "train")
    which = held.chosen
    if role == "train":
        keep = np.ones(len(got.records.lengths), dtype=np.bool_)
        keep[held.chosen] = False
        which = np.flatnonzero(keep)
    data = run.spec.data
    return write_rows(got.records, which, path, data.max_length, seen, packing=data.packing)


def file_name(role: str, index: int) -> str:
    """The stem of a group's files: `train`, `train.1` ..."""
    return role if index == 0 else f"{role}.{index}"


def _part(group: Group, role: str, got: Ingested, written: Written) -> Part:
    masked = got.records.trained is not None
    return Part(
        file_name(role, group.index),
        written.rows,
        group.packed,
        masked,
        group.weight,
        written.documents,
        written.tokens,
        written.trained,
        group.name,
    )


def unigram_cross_entropy(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per held-out token when each is predicted by its frequency in training alone (add-one smoothed over the
    tokens of the tokenizer): what a model reaches that has learnt the frequencies and no context. Counts by token id.
    """
    probabilities = (train + 1) / (train.sum() + len(train))
    return float(-(held_out * np.log(probabilities)).sum() / held_out.sum())


def _added(histogram: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    if not len(lengths):
        return histogram
    found = np.bincount(np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64))
    out = np.zeros(max(len(histogram), len(found)), dtype=np.int64)
    out[: len(histogram)] += histogram
    out[: len(found)] += found
    return out


def _pad(tokenizer: Any) -> int:
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def _nothing(counts: Counter[str]) -> Exception:
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    notes = (f"left out: {kinds}",) if kinds else ()
    return refusal("MD114", "the training text is empty", key="data.train", notes=notes)


__all__ = ["META", "VERSION", "Part", "Prepared", "Records", "file_name", "prepare", "unigram_cross_entropy"]
