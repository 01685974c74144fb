# SPDX-License-Identifier: Apache-2.0
"""Texts with labels into token ids: the labels of all records, and the records of a source by these.

A label is a name or a whole number (one of several), a list of names or of numbers (any of several), or a number
(regression). A text is encoded as the tokenizer does it, with its own special tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.runtime.dataset.chat_templates import require_template
from harness.runtime.dataset.json_readers import json_type_name, parse_json_line
from harness.runtime.dataset.record import BadRecord, RawRecord
from harness.runtime.dataset.record_formats import RecordColumns, get_column, get_text, parse_turns
from harness.runtime.dataset.tokenization import TokenizedBatch, check_characters
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSpec
from harness.spec.sections.label_spec import ClassificationSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from harness.runtime.dataset.data_plan import DataPlan

_MAX_LABELS = 100_000
_PROBLEMS = {
    frozenset({"index"}): "single_label_classification",
    frozenset({"name"}): "single_label_classification",
    frozenset({"number"}): "regression",
    frozenset({"number", "index"}): "regression",
    frozenset({"names"}): "multi_label_classification",
    frozenset({"vector"}): "multi_label_classification",
}


class LabelSet(NamedTuple):
    """The labels of a run: `names` in the order of the model's outputs, and the problem as `transformers` names it."""

    problem_type: str
    names: tuple[str, ...]


def find_labels(plan: DataPlan, data: DataSpec, settings: ClassificationSpec) -> LabelSet:
    """The labels of all records, training and held-out ones. Reads every record.

    Raises UserError (MD112) for labels of several kinds, and for more of them than the settings name.
    """
    kinds: set[str] = set()
    names: set[str] = set()
    width = 0
    for label in _iter_labels(plan, data.label_column):
        kind = _kind_of(label)
        if kind is None:
            continue
        kinds.add(kind)
        if settings.problem_type == "regression" and kind != "vector":  # numbers, also as texts of a table
            continue
        width = max(width, _width_of(kind, label, settings))
        if kind in ("name", "names"):
            names.update([label] if kind == "name" else label)
        if len(names) > _MAX_LABELS:
            raise _label_error(f"has more than {_MAX_LABELS:,} labels", data)
    problem = settings.problem_type or _PROBLEMS.get(frozenset(kinds))
    if problem is None:
        found = " and ".join(sorted(kinds)) if kinds else "none"
        raise _label_error(f"has labels of several kinds, or none: {found}", data)
    if problem == "regression" and "vector" not in kinds:
        width = 1
    if width > _MAX_LABELS:
        raise _label_error(f"has the label {width - 1:,}, and there are {_MAX_LABELS:,} at most", data)
    return LabelSet(problem, _order_names(names, width, settings, data))


def _width_of(kind: str, label: Any, settings: ClassificationSpec) -> int:
    """The outputs that a label needs; 0 for a name."""
    if kind == "vector":
        return len(label)
    is_index = kind == "index" or (kind == "number" and settings.problem_type == "single_label_classification")
    return int(label) + 1 if is_index else 0


def _order_names(names: set[str], width: int, settings: ClassificationSpec, data: DataSpec) -> tuple[str, ...]:
    """The settings' names, else those of the data in order, else numbered ones as `transformers` writes them."""
    if settings.label_names:
        unknown = sorted(names - set(settings.label_names))
        if unknown:
            raise _label_error(f"has the label `{unknown[0]}`, which is not one of the model's", data)
    found = settings.label_names or tuple(sorted(names, key=lambda name: (len(name) if name.isdigit() else 0, name)))
    count = max(len(found), width)
    known = settings.num_labels or (len(found) if settings.label_names else count)
    if count > known:
        raise _label_error(f"has {count:,} labels, more than the {known:,} of the settings", data)
    return (*found, *(f"LABEL_{i}" for i in range(len(found), known)))


def _label_error(what: str, data: DataSpec) -> Exception:
    return user_error(
        "MD112",
        f"the column `{data.label_column}` {what}",
        key="data.label_column",
        notes=("a label is a name, a whole number, a number, or a list of names or of numbers",),
        fix="set `classification.problem_type`, `num_labels` or `label_names`, or correct the data",
    )


def _iter_labels(plan: DataPlan, column: str) -> Iterator[Any]:
    for part in (part for group in plan.groups for source in group.sources for part in source.parts):
        for raw in part.read(lambda _: None):
            try:
                record = parse_json_line(raw.value) if isinstance(raw.value, bytes) else raw.value
            except BadRecord:
                continue
            if isinstance(record, Mapping):
                yield record.get(column)


def _kind_of(label: Any) -> str | None:
    """`name`, `index`, `number`, `names` or `vector`; None for what is no label."""
    if isinstance(label, str):
        return "name" if label else None
    if isinstance(label, int):
        return "index" if label >= 0 else "number"
    if isinstance(label, float):
        return "number" if math.isfinite(label) else None
    if isinstance(label, list):
        if label and all(isinstance(one, int | float) for one in label):
            return "vector"
        return "names" if all(isinstance(one, str) for one in label) else None
    return None


def read_number(value: Any, name: str) -> float:
    """A finite number, also from a table without types. Raises BadRecord."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadRecord("wrong-type", f"`{name}` is {json_type_name(value)}, should be a number") from None
    if not math.isfinite(number):
        raise BadRecord("wrong-type", f"`{name}` is {number}, should be a finite number")
    return number


class LabelTokenizer:
    """Turns texts with labels into ids and numbers."""

    has_loss_mask = True

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, data: DataSpec, columns: RecordColumns, labels: LabelSet
    ) -> None:
        self._tokenizer, self._data, self._columns, self._labels = tokenizer, data, columns, labels
        self._index = {name: i for i, name in enumerate(labels.names)}

    def __call__(self, batch: Sequence[RawRecord]) -> TokenizedBatch:
        """Ids and labels of all usable records. Raises UserError (MD126, MD127)."""
        rows: list[np.ndarray] = []
        values: list[np.ndarray] = []
        bad: list[tuple[int, BadRecord]] = []
        cut: list[int] = []
        for raw in batch:
            try:
                record = self._parse(raw)
                label, ids = self._encode_label(get_column(record, self._data.label_column)), self._encode_text(record)
            except BadRecord as error:
                bad.append((raw.number, error))
                continue
            if len(ids) > self._data.max_length:
                cut.append(len(ids))
                ids = self._cut(ids)
            rows.append(ids)
            values.append(label)
        lengths = np.array([len(ids) for ids in rows], dtype=np.int64)
        ids = np.concatenate(rows) if rows else np.empty(0, np.uint32)
        mask = np.ones(len(ids), dtype=np.bool_)
        labels = np.stack(values) if values else np.empty((0, 1), np.float32)
        return TokenizedBatch(
            ids,
            mask,
            lengths,
            lengths,
            bad,
            cut_lengths=cut,
            unused_columns=Counter(),
            num_chosen=lengths,
            values=labels,
        )

    @staticmethod
    def _parse(raw: RawRecord) -> Mapping[str, Any]:
        if isinstance(raw.value, BadRecord):
            raise raw.value
        record = parse_json_line(raw.value) if isinstance(raw.value, bytes) else raw.value
        if not isinstance(record, Mapping):
            raise BadRecord("wrong-type", "is a text, should be a record with a text and a label")
        return record

    def _encode_text(self, record: Mapping[str, Any]) -> np.ndarray:
        """All ids of a text or of a chat. Raises BadRecord."""
        is_chat = bool(self._columns.messages)
        if is_chat:
            require_template(self._tokenizer, "data.train")
            turns = parse_turns(get_column(record, self._columns.messages), self._columns.messages)
            text = str(self._tokenizer.apply_chat_template(turns, tokenize=False))
        else:
            text = get_text(record, self._columns.text)
        check_characters(text)
        ids = self._tokenizer(text, add_special_tokens=not is_chat, verbose=False)["input_ids"]
        limit = self._data.max_length
        if len(ids) > limit and self._data.excess_length_strategy in ("drop", "raise"):
            raise BadRecord("too-long", f"has {len(ids)} tokens, `data.max_length` is {limit}")
        if not ids:
            raise BadRecord("empty", "has no tokens")
        return np.array(ids, dtype=np.uint32)

    def _cut(self, ids: np.ndarray) -> np.ndarray:
        """The beginning, and the special token that ends every text of this tokenizer."""
        limit = self._data.max_length
        ends = int(ids[-1]) in self._tokenizer.all_special_ids
        return np.concatenate([ids[: limit - 1], ids[-1:]]) if ends else ids[:limit]

    def _encode_label(self, label: Any) -> np.ndarray:
        """fp32: an index, a number for each label, or the numbers of a regression. Raises BadRecord."""
        column, names = self._data.label_column, self._labels.names
        if self._labels.problem_type == "regression":
            numbers = label if isinstance(label, list) else [label]
            return self._check_width([read_number(one, column) for one in numbers], column)
        if self._labels.problem_type == "multi_label_classification":
            if isinstance(label, list) and _kind_of(label) == "vector":
                given = self._check_width([read_number(one, column) for one in label], column)
                if ((given < 0) | (given > 1)).any():
                    raise BadRecord("wrong-type", f"`{column}` has a number that is not from 0 to 1 for each label")
                return given
            hot = np.zeros(len(names), dtype=np.float32)
            hot[[self._index_of(one, column) for one in (label if isinstance(label, list) else [label])]] = 1
            return hot
        return np.array([self._index_of(label, column)], dtype=np.float32)

    def _index_of(self, label: Any, column: str) -> int:
        if isinstance(label, str) and label in self._index:
            return self._index[label]
        if isinstance(label, int | float) and label in range(len(self._labels.names)):
            return int(label)
        what = f"`{label}`" if isinstance(label, str | int | float) else json_type_name(label)
        raise BadRecord("wrong-type", f"`{column}` is {what}, should be one of the {len(self._labels.names)} labels")

    def _check_width(self, numbers: list[float], column: str) -> np.ndarray:
        if len(numbers) != len(self._labels.names):
            count = len(self._labels.names)
            raise BadRecord("wrong-type", f"`{column}` has {len(numbers)} numbers, should have {count}")
        return np.array(numbers, dtype=np.float32)
