"""From documents to token files: split off the held-out part, tokenise, and store flat arrays that every rank maps.

One rank a node does this once a run; nothing here knows about batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.plan.run import Run
from harness.runtime.refusals import refusal
from harness.runtime.rundir import write_atomically
from harness.runtime.sources import Documents, open_source
from harness.runtime.tokens import encode

_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """What lies in the data folder. `unigram_entropy`: nats per held-out token, under the training part's unigrams."""

    train_tokens: int
    eval_tokens: int
    train_documents: int
    eval_documents: int
    unigram_entropy: float | None
    sha256: str

    @staticmethod
    def read(folder: Path) -> Prepared | None:
        """What an earlier rank has prepared there, if it finished."""
        try:
            return Prepared(**json.loads((folder / "meta.json").read_text(encoding="utf-8")))
        except OSError:
            return None


def prepare(run: Run, tokenizer: Any, folder: Path) -> Prepared:
    """Write `train.npy`, `eval.npy` (flat ids, documents ended by the end-of-text token) and `meta.json`.

    Raises Refused (MD11x) for input that cannot be used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = run.spec.data
    if not data.train:
        raise refusal(
            "MD117",
            "`data.train` is not set",
            key="data.train",
            fix="set `data.train` to files or to `builtin:python-docs`",
        )
    train = open_source(data.train, data.text_column, "data.train")
    if data.eval:
        kept: Iterable[str] = train
        held: Iterable[str] = open_source(data.eval, data.text_column, "data.eval")
        counts = (len(train), len(held))  # type: ignore[arg-type]
    else:
        kept, held, counts = split(train, data.eval_fraction, run.spec.train.seed)
    dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    seen = np.zeros(len(tokenizer), dtype=np.int64)
    train_tokens, train_sum = _store(kept, tokenizer, folder / "train.npy", dtype, seen)
    if not train_tokens:
        raise refusal("MD114", "the training text is empty", key="data.train")
    held_seen = np.zeros_like(seen)
    eval_tokens, eval_sum = _store(held, tokenizer, folder / "eval.npy", dtype, held_seen)
    prepared = Prepared(
        train_tokens=train_tokens,
        eval_tokens=eval_tokens,
        train_documents=counts[0],
        eval_documents=counts[1],
        unigram_entropy=unigram_cross_entropy(seen, held_seen) if eval_tokens else None,
        sha256=hashlib.sha256(f"{train_sum} {eval_sum}".encode()).hexdigest(),
    )
    write_atomically(folder / "meta.json", json.dumps(asdict(prepared)) + "\n")
    return prepared


def split(documents: Documents, fraction: float, seed: int) -> tuple[Iterable[str], Iterable[str], tuple[int, int]]:
    """(training, held-out, their document counts): documents drawn by `seed` until they hold `fraction` of the text.

    Where every document is too large for that, or there is but one, the tail of one is held out, cut at a line end.
    With `fraction` 0 nothing is.
    """
    if not fraction:
        return documents, (), (len(documents), 0)
    sizes = [len(text) for text in documents]
    wanted, held = fraction * sum(sizes), set[int]()
    if len(sizes) == 1:
        return _cut_one(documents, sizes, wanted, seed)
    size = 0
    for i in np.random.default_rng([seed, len(sizes)]).permutation(len(sizes)).tolist():
        # A document is taken when that brings the held-out part nearer to what is wanted; so one giant cannot take all.
        if size < wanted and size + sizes[i] - wanted <= wanted - size and len(held) < len(sizes) - 1:
            held.add(i)
            size += sizes[i]
    if not held:  # few and equal documents: each is more than twice what is wanted
        return _cut_one(documents, sizes, wanted, seed)
    kept = [i for i in range(len(sizes)) if i not in held]
    chosen = sorted(held)
    return (documents.fetch(i) for i in kept), (documents.fetch(i) for i in chosen), (len(kept), len(chosen))


def _cut_one(
    documents: Documents, sizes: list[int], wanted: float, seed: int
) -> tuple[Iterable[str], Iterable[str], tuple[int, int]]:
    """Hold out the last `wanted` characters, from a line's start where there is one, of a document drawn by `seed`."""
    chosen = int(np.random.default_rng([seed, len(sizes)]).permutation(len(sizes))[0])
    text = documents.fetch(chosen)
    end = max(0, len(text) - max(1, round(wanted)))
    cut = text.rfind("\n", 0, end) + 1 or end
    kept = (text[:cut] if i == chosen else documents.fetch(i) for i in range(len(sizes)))
    return kept, [text[cut:]], (len(sizes), 1)


def unigram_cross_entropy(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per held-out token when each is predicted by its frequency in training alone (add-one smoothed over the
    tokens of the tokenizer): what a model reaches that has learnt the frequencies and no context. Counts by token id.
    """
    probabilities = (train + 1) / (train.sum() + len(train))
    return float(-(held_out * np.log(probabilities)).sum() / held_out.sum())


def _store(texts: Iterable[str], tokenizer: Any, path: Path, dtype: Any, counts: np.ndarray) -> tuple[int, str]:
    """Append the ids of all texts to a .npy file, a bounded part at a time; returns how many, and their sha256."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    digest, total = hashlib.sha256(), 0
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        _write_header(file, 0, dtype)
        for batch in _batches(texts):
            for ids in encode(tokenizer, batch):
                array = np.asarray(ids + end, dtype=dtype)
                file.write(array.tobytes())
                digest.update(array.tobytes())
                counts += np.bincount(array, minlength=len(counts))
                total += len(array)
        file.seek(0)
        _write_header(file, total, dtype)
    temporary.replace(path)
    return total, digest.hexdigest()


def _write_header(file: Any, count: int, dtype: Any) -> None:
    """numpy pads the header for a growing first axis, so that a longer count takes the same room."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (count,)}
    )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Lists of texts of about a million characters; empty texts are left out."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if not text:
            continue
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
