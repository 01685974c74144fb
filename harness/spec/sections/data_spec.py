# SPDX-License-Identifier: Apache-2.0
"""`data`: training and evaluation data, and their conversion to sequences."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError

from harness.spec.sections.section import Count, Positive, Section, WholeNumber

RecordFormat = Literal["text", "prompt-completion", "messages", "alpaca", "alpaca-chat", "sharegpt"]
"""The format of a record: its columns and its loss mask."""
CHAT_FORMATS = ("messages", "sharegpt", "alpaca-chat")
"""Formats whose records are turns of the chat template."""


class SourceColumns(Section):
    """Columns of one source where their names differ from those of `data`. A column without a default is read only if
    it is named here; `alpaca-chat` reads `input`, `history`, `system` and `tools` where no columns are named at all.
    """

    text: str | None = None
    """The column of a text."""
    prompt: str | None = None
    """The column of the prompt; `instruction` in `alpaca-chat`."""
    input: str | None = None
    """`alpaca-chat`: the column that follows the prompt on a line of its own."""
    completion: str | None = None
    """The column of the answer; `output` in `alpaca-chat`."""
    history: str | None = None
    """`alpaca-chat`: the column of earlier pairs of a prompt and its answer."""
    messages: str | None = None
    """The column of the turns of a chat."""
    system: str | None = None
    """Chats: the column of the system prompt, which becomes the first turn."""
    tools: str | None = None
    """Chats: the column of the tools for the template, a list or its JSON."""
    role: str | None = None
    """The key of a turn with its role, where it is neither `role` nor `from`."""
    content: str | None = None
    """The key of a turn with its text, where it is neither `content` nor `value`."""


class DataSource(Section):
    """One source of a mixture."""

    path: str
    """Files or a glob, a folder, a Hub dataset, or a builtin, as in `data.train`."""
    name: str | None = None
    """Configuration of a Hub dataset, such as `en`."""
    split: str = "train"
    """Split of a Hub dataset or of a folder with its layout."""
    weight: Annotated[float, Field(ge=0.0)] | None = None
    """Share of the training sequences, relative to the other sources' weights. Default: everything, each once."""
    format: RecordFormat | None = None
    """Format of the records of this source. Default: `data.format`."""
    columns: SourceColumns | None = None
    """Columns of this source, where their names are not those of `data`."""
    roles: dict[str, str] | None = None
    """Chats: roles of the turns of this source, each with its role in the chat template, such as `{teacher: user}`."""


def _to_source_maps(value: object) -> object:
    """A source alone is a list of one, and a text in the list is the path of a source."""
    if isinstance(value, str | dict):
        value = [value]
    if not isinstance(value, list | tuple):
        raise PydanticKnownError("string_type")
    return tuple({"path": entry} if isinstance(entry, str) else entry for entry in value)


class _TextOrMapSchema:
    """In the JSON Schema, too, a source may be a text, and one alone needs no list."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        listed = handler(core_schema)
        text: dict[str, Any] = {"type": "string"}
        return {"anyOf": [text, listed["items"], {**listed, "items": {"anyOf": [text, listed["items"]]}}]}


Sources = Annotated[tuple[DataSource, ...], Field(strict=False), BeforeValidator(_to_source_maps), _TextOrMapSchema]


class DataSpec(Section):
    """Training and evaluation data, and their preparation."""

    train: Sources | None = None
    """Files or globs (.txt, .md, .rst, .jsonl, .json, .csv, .parquet, .arrow), a folder or Hub dataset, a builtin such
    as `builtin:python-docs`, a URL such as `s3://bucket/texts/*.jsonl`; or a list of these, each also as a map (`path`,
    `weight`, `format`, `columns`, `roles`, `name`, `split`).
    A relative path starts at the spec's folder, else at the current one.
    """
    eval: Sources | None = None
    """The same for evaluation. Default: about `eval_fraction` of the training documents, drawn by `train.seed`."""
    eval_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the training text that is held out when `eval` is not given."""
    format: Literal["auto", "text", "prompt-completion", "messages", "alpaca", "alpaca-chat", "sharegpt"] = "auto"
    """Format of the records. `auto`: detected from the columns of the first record of each source."""
    text_column: str = "text"
    """The column of the text in .jsonl, .json, .csv, .parquet, .arrow and Hub datasets."""
    prompt_column: str = "prompt"
    """The column of the prompt of a `prompt-completion` record."""
    completion_column: str = "completion"
    """The column of the completion of a `prompt-completion` record."""
    chosen_column: str = "chosen"
    """The column of the preferred answer of a pair (`objective: dpo`, `kto`, `reward`)."""
    rejected_column: str = "rejected"
    """The column of the other answer of a pair."""
    label_column: str = "label"
    """The column that says whether a completion is desirable (`objective: kto`), or the label (`classification`)."""
    messages_column: str | None = None
    """The column of the turns of a chat. Default: `messages`, or `conversations` for `sharegpt`."""
    chat_template: str | None = None
    """A file with a Jinja chat template, found as those of `train`; or `chatml`. Default: the tokenizer's own."""
    assistant_only_loss: bool | Literal["to-eos"] = True
    """Chats: train on the assistant's turns; `to-eos`: each up to its end-of-sequence token; false: on every token."""
    completion_only_loss: bool = True
    """Prompts with completions, and alpaca records: train on the completion; false: on every token."""
    max_length: Annotated[WholeNumber, Field(ge=2)] = 1024
    """Tokens per sequence."""
    excess_length_strategy: Literal["truncate", "split", "drop", "raise"] | None = None
    """A record of more than `max_length` tokens: truncate it, split it, drop it, or treat it as a bad record. Default:
    `split` for text, `truncate` for the rest.
    """
    packing: bool = False
    """Put several records into one sequence of `max_length`; none attends to another, and positions restart."""
    group_by_length: bool = True
    """Without packing: records of about the same length share a batch, so that less is padded. Needs `shuffle`."""
    pad_to_multiple_of: Positive | None = None
    """Pad sequences to a multiple of N tokens. Default: to the longest of the micro-batch."""
    shuffle: bool = True
    """Draw the training sequences in a random order that depends on `train.seed` and the epoch alone."""
    on_bad_record: Literal["stop", "skip"] = "stop"
    """Response to a bad record: end with its file and line, or skip it, count it and list it."""
    max_bad_records: Count = 1000
    """With `on_bad_record: skip`: more than N bad records end the preparation."""
    streaming: bool = False
    """Read Hub datasets while they are downloaded, without a copy on disk."""
    num_proc: Positive | None = None
    """Tokenizer processes. Default: one for small data, else one per core, at most 8."""
    cache_dir: str | None = None
    """Folder of prepared data, shared by runs. Default: `~/.cache/harness/data`."""
