# SPDX-License-Identifier: Apache-2.0
"""Sources into token files that every rank maps: read, tokenize, hold out, write rows. Once a node."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness import input_limits
from harness.file_io import parse_json, read_regular, replace_file
from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.bad_records import BadRecordLog
from harness.runtime.dataset.data_plan import DataGroup, DataPlan
from harness.runtime.dataset.eval_split import EvalSplit, split_eval
from harness.runtime.dataset.ingestion import IngestedGroup, LengthHistogram, ingest_group
from harness.runtime.dataset.label_records import find_labels
from harness.runtime.dataset.mmap_array import AppendArray
from harness.runtime.dataset.progress_bar import ProgressDisplay
from harness.runtime.dataset.token_rows import RowStats, cut_record, write_rows, write_stream
from harness.runtime.user_errors import user_error

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

META_FILE = "meta.json"
LAYOUT_VERSION = 3
"""Of the files' layout and of their content for the same records; a new version misses the old cache."""


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
    answers: bool = False
    """Rows of preferences, or of texts with labels."""
    values: int = 0
    """Margins or labels of a row."""


@dataclass(frozen=True, slots=True)
class PreparedData:
    """The content of a data folder. `unigram_entropy`: nats per held-out token, under the training part's unigrams."""

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
    """Records by their length before truncation: `LengthHistogram.counts`."""
    pad: int = 0
    unused_columns: dict[str, int] = field(default_factory=dict)
    """Records with text in a column that nothing reads, by column."""
    labels: tuple[str, ...] = ()
    problem_type: str = ""
    """Of `objective: classification`: `LabelSet`."""

    @staticmethod
    def read(folder: Path) -> PreparedData | None:
        """The prepared data in a folder; None where a preparation did not finish, or wrote another
        program's file."""
        try:
            body = parse_json(read_regular(folder / META_FILE, input_limits.RUN_FILE))
            for part in ("train", "eval"):
                body[part] = tuple(PreparedGroup(**entry) for entry in body[part])
            prepared = PreparedData(
                **{**body, "lengths": tuple(body["lengths"]), "labels": tuple(body.get("labels", ()))}
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        names = [group.name for group in (*prepared.train, *prepared.eval)]
        return prepared if all(isinstance(name, str) and "/" not in name for name in names) else None


def prepare_data(
    run: ResolvedRun,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    plan: DataPlan,
    display: ProgressDisplay | None = None,
) -> PreparedData:
    """Write the token files and, when all of them are there, `meta.json`. Raises UserError (MD11x, MD12x)."""
    folder.mkdir(parents=True, exist_ok=True)
    display = display or ProgressDisplay(plan.size)
    data, seed = run.spec.data, run.spec.train.seed
    token_counts = {role: np.zeros(len(tokenizer), dtype=np.int64) for role in ("train", "eval")}
    groups: dict[str, list[PreparedGroup]] = {"train": [], "eval": []}
    digests: list[str] = []
    labels = find_labels(plan, data, run.spec.classification) if run.spec.objective == "classification" else None
    histogram, truncated = LengthHistogram(), 0
    unused_columns: Counter[str] = Counter()
    with BadRecordLog(data, folder) as bad_records, display:
        for group in plan.groups:
            with ingest_group(group, tokenizer, run, folder, bad_records, display, labels) as ingested:
                truncated += ingested.truncated
                unused_columns += ingested.unused_columns
                histogram.add(ingested.records.lengths)
                histogram.replace(data.max_length, ingested.truncated, ingested.long_lengths)
                fraction = 0.0 if data.eval or group.role == "eval" else data.eval_fraction
                is_one_text = group.is_text and len(ingested.records.sizes) == 1
                split = split_eval(ingested.records.sizes, fraction, seed, divisible=group.stream or is_one_text)
                for role in ("train", "eval"):
                    stats = _write_group(ingested, group, split, role, run, tokenizer, folder, token_counts[role])
                    if stats is not None and stats.tokens:
                        digests.append(f"{role} {stats.sha256}")
                        groups[role].append(_describe_group(group, role, ingested, stats))
        skipped = bad_records.counts
    if not any(group.tokens for group in groups["train"]):
        raise _empty_data_error(skipped)
    train_counts, eval_counts = token_counts["train"], token_counts["eval"]
    is_text = not any(group.answers for group in groups["train"])  # else the loss is of answers, and not of tokens
    prepared = PreparedData(
        train_tokens=sum(group.tokens for group in groups["train"]),
        eval_tokens=sum(group.tokens for group in groups["eval"]),
        train_documents=sum(group.documents for group in groups["train"]),
        eval_documents=sum(group.documents for group in groups["eval"]),
        unigram_entropy=unigram_cross_entropy(train_counts, eval_counts) if eval_counts.any() and is_text else None,
        sha256=hashlib.sha256(" ".join(digests).encode()).hexdigest(),
        train=tuple(groups["train"]),
        eval=tuple(groups["eval"]),
        skipped=dict(skipped),
        truncated=truncated,
        lengths=histogram.counts,
        pad=_pad_token_id(tokenizer),
        unused_columns=dict(unused_columns),
        labels=labels.names if labels else (),
        problem_type=labels.problem_type if labels else "",
    )
    replace_file(folder / META_FILE, json.dumps(asdict(prepared)) + "\n")
    return prepared


def _write_group(
    ingested: IngestedGroup,
    group: DataGroup,
    split: EvalSplit,
    role: str,
    run: ResolvedRun,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    token_counts: np.ndarray,
) -> RowStats | None:
    """Write the training or the held-out part of a group; None where the group has no such part."""
    records = ingested.records
    if group.role == "eval":
        if role == "train":
            return None
        split = EvalSplit(np.arange(len(records.lengths)))
    path = folder / f"{group_stem(role, group.index)}.npy"
    if group.stream:
        return write_stream(records, split, path, tokenizer, token_counts, train=role == "train")
    records, split = cut_record(records, split, tokenizer)
    indices = split.documents
    if role == "train":
        in_train = np.ones(len(records.lengths), dtype=np.bool_)
        in_train[split.documents] = False
        indices = np.flatnonzero(in_train)
    data = run.spec.data
    if records.num_chosen is None:
        return write_rows(records, indices, path, data.max_length, token_counts, packing=data.packing)
    with AppendArray(path.with_suffix(".chosen.npy"), np.int64) as chosen_out:
        chosen_out.append(np.asarray(records.num_chosen[indices]))
    stats = write_rows(records, indices, path, 2 * data.max_length, token_counts, packing=False, keeps_all=True)
    digests = [stats.sha256, chosen_out.sha256]
    if records.values is not None:
        with AppendArray(path.with_suffix(".values.npy"), np.float32) as values_out:
            values_out.append(np.asarray(records.values[indices]).reshape(-1))
        digests.append(values_out.sha256)
    return replace(stats, sha256=hashlib.sha256(" ".join(digests).encode()).hexdigest())


def group_stem(role: str, index: int) -> str:
    """The stem of a group's files: `train`, `train.1` ..."""
    return role if index == 0 else f"{role}.{index}"


def _describe_group(group: DataGroup, role: str, ingested: IngestedGroup, stats: RowStats) -> PreparedGroup:
    masked = ingested.records.trained is not None
    return PreparedGroup(
        group_stem(role, group.index),
        stats.rows,
        group.packed,
        masked,
        group.weight,
        stats.documents,
        stats.tokens,
        stats.trained_tokens,
        group.name,
        ingested.records.num_chosen is not None,
        0 if ingested.records.values is None else ingested.records.values.shape[1],
    )


def unigram_cross_entropy(train: np.ndarray, held_out: np.ndarray) -> float:
    """Nats per held-out token when its training frequency alone predicts it (add-one smoothed over the tokens of the
    tokenizer): the loss of a model that knows the frequencies and no context. Counts by token id.
    """
    probabilities = (train + 1) / (train.sum() + len(train))
    return float(-(held_out * np.log(probabilities)).sum() / held_out.sum())


def _pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0


def _empty_data_error(counts: Counter[str]) -> Exception:
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    notes = (f"left out: {kinds}",) if kinds else ()
    return user_error("MD114", "the training text is empty", key="data.train", notes=notes)
