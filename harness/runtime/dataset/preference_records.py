# SPDX-License-Identifier: Apache-2.0
"""Records of preferences into token ids: pairs of a chosen and a rejected answer, and answers with a label.

An answer is all that follows the prompt. It is never cut: what does not fit costs the beginning of the prompt, or the
record. A prompt that a pair does not name is what its answers begin with alike, as TRL 1.16 extracts it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.runtime.dataset.chat_templates import require_template
from harness.runtime.dataset.json_readers import json_type_name, parse_json_line
from harness.runtime.dataset.label_records import read_number
from harness.runtime.dataset.record import BadRecord, RawRecord
from harness.runtime.dataset.record_formats import (
    ChatRecord,
    PromptCompletion,
    RecordColumns,
    get_column,
    get_text,
    parse_turns,
)
from harness.runtime.dataset.tokenization import RecordTokenizer, TokenizedBatch
from harness.runtime.dataset.unused_columns import find_unused_columns
from harness.spec.sections.data_spec import DataSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_Text = str | list[dict[str, Any]]


class Answer(NamedTuple):
    """A prompt and its answer, which has the last `num_answer` of the ids; before the prompt was cut there were
    `full_length`.
    """

    ids: np.ndarray
    num_answer: int
    full_length: int


class Pair(NamedTuple):
    """A chosen and a rejected answer of one prompt."""

    chosen: Answer
    rejected: Answer


class PreferenceTokenizer:
    """Turns the records of preferences into ids, by the tokenizer's own chat template where they are chats."""

    has_loss_mask = True

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, data: DataSpec, *, has_labels: bool, margin_column: str | None = None
    ) -> None:
        self._data, self._tokenizer, self._bos_id = data, tokenizer, tokenizer.bos_token_id
        self._has_labels, self._margin_column = has_labels, margin_column
        everything = data.model_copy(update={"assistant_only_loss": False, "completion_only_loss": True})
        columns = RecordColumns("prompt-completion", "", data.prompt_column, data.completion_column, "")
        self._columns = replace(columns, format="labels" if has_labels else "pairs")
        self._records = RecordTokenizer(tokenizer, everything, columns, rows=True)

    def __call__(self, batch: Sequence[RawRecord]) -> TokenizedBatch:
        """Ids of all usable records, as rows of one or two sequences. Raises UserError.

        Of pairs that become labelled answers, all chosen ones come before the rejected ones, as TRL orders them: the
        neighbours of an answer have other prompts, which the KL term of KTO needs.
        """
        rows: list[tuple[Answer | None, Answer | None]] = []
        late: list[tuple[Answer | None, Answer | None]] = []
        margins: list[float] = []
        bad: list[tuple[int, BadRecord]] = []
        unused: Counter[str] = Counter()
        for raw in batch:
            try:
                record = self._parse(raw)
                if self._has_labels:
                    (first, is_desirable), *rest = self.encode_labelled(record)
                    rows.append((first, None) if is_desirable else (None, first))
                    late += [(None, answer) for answer, _ in rest]
                else:
                    pair, margin = self.encode_pair(record), self._margin_of(record)
                    rows.append(pair)
                    margins.append(margin)
                answers = (self._data.chosen_column, self._data.rejected_column)
                unused.update(find_unused_columns(record, self._columns, *answers))
            except BadRecord as error:
                bad.append((raw.number, error))
        built = self._build_batch([*rows, *late], bad, unused)
        if self._margin_column is not None:
            built.values = np.array(margins, dtype=np.float32).reshape(-1, 1)
        return built

    def _margin_of(self, record: Mapping[str, Any]) -> float:
        """By how much the chosen answer's reward should be larger; 0 for a record that does not say."""
        value = None if self._margin_column is None else record.get(self._margin_column)
        return 0.0 if value is None else read_number(value, str(self._margin_column))

    def _parse(self, raw: RawRecord) -> Mapping[str, Any]:
        value = raw.value
        if isinstance(value, BadRecord):
            raise value
        record = parse_json_line(value) if isinstance(value, bytes) else value
        if not isinstance(record, Mapping):
            raise BadRecord("wrong-type", "is a text, should be a record with columns")
        return record

    def _build_batch(
        self, rows: list[tuple[Answer | None, Answer | None]], bad: list[tuple[int, BadRecord]], unused: Counter[str]
    ) -> TokenizedBatch:
        sequences = [answer for row in rows for answer in row if answer is not None]
        masks = [np.arange(len(ids)) >= len(ids) - count for ids, count, _ in sequences]
        lengths = np.array([[0 if answer is None else len(answer.ids) for answer in row] for row in rows], np.int64)
        lengths = lengths.reshape(-1, 2)
        return TokenizedBatch(
            np.concatenate([answer.ids for answer in sequences]) if sequences else np.empty(0, np.uint32),
            np.concatenate(masks) if masks else np.empty(0, np.bool_),
            lengths.sum(axis=1),
            lengths.sum(axis=1),
            bad,
            cut_lengths=[answer.full_length for answer in sequences if answer.full_length > len(answer.ids)],
            unused_columns=unused,
            num_chosen=lengths[:, 0],
        )

    def encode_pair(self, record: Mapping[str, Any]) -> Pair:
        """Both answers of a record with `chosen` and `rejected`. Raises BadRecord, UserError (MD126, MD127)."""
        prompt, chosen, rejected = self._split_pair(record)
        if chosen == rejected:
            raise BadRecord("same-answers", "has the same chosen and rejected answer")
        return Pair(*self._fit(self._encode(prompt, chosen), self._encode(prompt, rejected)))

    def encode_labelled(self, record: Mapping[str, Any]) -> list[tuple[Answer, bool]]:
        """The answer of a record and whether it is desirable; of a pair both. Raises as above."""
        data = self._data
        if data.label_column not in record and data.chosen_column in record:
            pair = self.encode_pair(record)
            return [(pair.chosen, True), (pair.rejected, False)]
        label = get_column(record, data.label_column)
        if isinstance(label, str) and label.strip().lower() in ("true", "false"):  # a table without types, such as CSV
            label = label.strip().lower() == "true"
        if label not in (True, False):
            reason = f"`{data.label_column}` is {json_type_name(label)}, should be true or false"
            raise BadRecord("wrong-type", reason)
        prompt = self._prompt_of(record)
        answer = _read(get_column(record, data.completion_column), data.completion_column)
        if isinstance(answer, list) and prompt is None:
            prompt, answer = answer[:-1], answer[-1:]
        _check_alike(prompt, answer, data.completion_column)
        return [(self._fit(self._encode(prompt, answer))[0], bool(label))]

    def _split_pair(self, record: Mapping[str, Any]) -> tuple[_Text | None, _Text, _Text]:
        data = self._data
        chosen = _read(get_column(record, data.chosen_column), data.chosen_column)
        rejected = _read(get_column(record, data.rejected_column), data.rejected_column)
        if isinstance(chosen, list) and isinstance(rejected, str):  # ms-swift: another last turn
            rejected = [*chosen[:-1], _turn(rejected)]
        if type(chosen) is not type(rejected):
            raise BadRecord("wrong-type", f"`{data.chosen_column}` and `{data.rejected_column}` are a text and a chat")
        prompt = self._prompt_of(record)
        if prompt is not None and type(prompt) is type(chosen):
            return prompt, chosen, rejected
        if isinstance(prompt, list):
            return prompt, [_turn(chosen)], [_turn(rejected)]
        return _extract_prompt(chosen, rejected)

    def _prompt_of(self, record: Mapping[str, Any]) -> _Text | None:
        """The prompt: its column, else the turns before the answers."""
        data = self._data
        answers = (data.chosen_column, data.rejected_column, data.completion_column)
        named = (data.prompt_column, data.messages_column or "messages", "conversations")
        name = next((name for name in named if name not in answers and record.get(name)), None)
        return None if name is None else _read(record[name], name)

    def _encode(self, prompt: _Text | None, answer: _Text) -> Answer:
        if isinstance(answer, list):
            require_template(self._tokenizer, "data.train")
            turns = prompt if isinstance(prompt, list) else []
            example: ChatRecord | PromptCompletion = ChatRecord([*turns, *answer], len(turns))
            if not turns:
                raise BadRecord("missing-turn", "has no turn before its answer")
        else:
            example = PromptCompletion(prompt if isinstance(prompt, str) else "", answer)
        ids, trained = self._records.encode(example)
        trained[:1] = False  # nothing predicts the first token
        if not trained.any():
            raise BadRecord("empty", "has an answer without tokens")
        return Answer(ids, len(ids) - int(trained.argmax()), len(ids))

    def _fit(self, *answers: Answer) -> list[Answer]:
        """The same, with as much of the prompt as fits; both answers of a pair keep the same prompt."""
        limit, strategy = self._data.max_length, self._data.excess_length_strategy
        excess = max(len(answer.ids) for answer in answers) - limit
        if excess <= 0:
            return list(answers)
        if strategy in ("drop", "raise"):
            raise BadRecord("too-long", f"has {limit + excess} tokens, `data.max_length` is {limit}")
        longest = max(answer.num_answer for answer in answers)
        if longest >= limit:
            reason = f"has an answer of {longest} tokens, and `data.max_length` is {limit}; an answer is never cut"
            raise BadRecord("long-answer", reason)
        return [self._cut_prompt(answer, excess) for answer in answers]

    def _cut_prompt(self, answer: Answer, excess: int) -> Answer:
        """Without `excess` tokens after a token that begins every text."""
        kept = 1 if answer.ids[0] == self._bos_id and len(answer.ids) - answer.num_answer > excess + 1 else 0
        excess = min(excess, len(answer.ids) - answer.num_answer - kept)
        return answer._replace(ids=np.concatenate([answer.ids[:kept], answer.ids[kept + excess :]]))


def _read(value: Any, name: str) -> _Text:
    """A text, or turns; a single turn is an object. Raises BadRecord."""
    if isinstance(value, str) and not _is_turns(value):
        return get_text({name: value}, name)
    return parse_turns([value] if isinstance(value, Mapping) else value, name)


def _is_turns(text: str) -> bool:
    """Is the text a JSON list of turns, as a table without lists has it? An answer may be JSON of another kind."""
    if not text.lstrip().startswith("[{"):
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    kinds = ({"role", "content"}, {"from", "value"})
    return all(isinstance(turn, dict) and any(kind <= turn.keys() for kind in kinds) for turn in value)


def _turn(text: _Text) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _check_alike(prompt: _Text | None, answer: _Text, name: str) -> None:
    if prompt is not None and isinstance(prompt, list) is not isinstance(answer, list):
        raise BadRecord("wrong-type", f"`{name}` and its prompt are a text and a chat")


def _extract_prompt(chosen: _Text, rejected: _Text) -> tuple[_Text, _Text, _Text]:
    """The common beginning of two answers, and the rest of each; a blank before the difference belongs to the rest."""
    length = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
    if length is None:
        raise BadRecord("same-answers", "has an answer that is the beginning of the other, so that no prompt is known")
    if length and chosen[length - 1] == " ":
        length -= 1
    return chosen[:length], chosen[length:], rejected[length:]
