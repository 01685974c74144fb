# SPDX-License-Identifier: Apache-2.0
"""Record formats: detection by columns, and columns into texts, pairs and chats. No tokens here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.runtime.dataset.json_readers import json_type_name
from harness.runtime.dataset.record import BadRecord
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSpec, RecordFormat

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_ROLES |= {"chatgpt": "assistant", "bing": "assistant", "model": "assistant", "tool": "tool", "observation": "tool"}
_ROLES |= {"function_response": "tool", "developer": "developer"}
_ALPACA = (
    "Below is an instruction that describes a task{with_input}. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)


@dataclass(frozen=True, slots=True)
class TextRecord:
    """A document; with `is_last` False, a part of one whose rest follows."""

    text: str
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class PromptCompletion:
    """A prompt and its completion."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class ChatRecord:
    """Turns with `role` and `content`, and `tools` for the template. The first `prompt_turns` are not trained on.
    `column` is where the turns are from, for messages.
    """

    messages: list[dict[str, Any]]
    prompt_turns: int = 0
    tools: list[Any] | None = None
    column: str = "turns"


Example = TextRecord | PromptCompletion | ChatRecord


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """A record format and the names of its columns."""

    format: RecordFormat
    text: str
    prompt: str
    completion: str
    messages: str


def detect_format(requested: RecordFormat | None, data: DataSpec, columns: Sequence[str], where: str) -> RecordColumns:
    """The format of a source whose first record has these columns. Raises UserError (MD112) when it is unknown."""
    record_format = requested or (data.format if data.format != "auto" else None)
    chats = [name for name in ("messages", "conversations") if name in columns]
    messages = data.messages_column or ("conversations" if record_format == "sharegpt" else (chats or ["messages"])[0])
    if record_format is None:
        record_format = _detect_from_columns(data, columns, messages)
    if record_format is None:
        names = ", ".join(f"`{c}`" for c in columns) or "none"
        raise user_error(
            "MD112",
            f"`{where}` has no column `{data.text_column}`, it has {names}",
            key="data.text_column",
            notes=(
                "also known: `messages` or `conversations` for chats, `prompt` and `completion`, `instruction` and "
                "`output`",
            ),
            fix="set `data.text_column` to one of them, or `data.format` and the columns of that format",
        )
    return RecordColumns(record_format, data.text_column, data.prompt_column, data.completion_column, messages)


def _detect_from_columns(data: DataSpec, columns: Sequence[str], messages: str) -> RecordFormat | None:
    if messages in columns and (data.messages_column or data.text_column not in columns):
        return "messages"
    if data.text_column in columns:
        return "text"
    if data.prompt_column in columns and data.completion_column in columns:
        return "prompt-completion"
    return "alpaca" if {"instruction", "output"} <= set(columns) else None


def parse_example(record: Mapping[str, Any], columns: RecordColumns) -> Example:
    """The record in its format. Raises BadRecord."""
    if columns.format == "text":
        return TextRecord(_get_text(record, columns.text))
    if columns.format == "alpaca":
        return _parse_alpaca(record)
    if columns.format == "prompt-completion":
        return _parse_pair(record, columns)
    turns = _parse_turns(_get_column(record, columns.messages), columns.messages)
    tools = record.get("tools")
    return ChatRecord(turns, 0, tools if isinstance(tools, list) and tools else None, columns.messages)


def find_unknown_role(chat: ChatRecord, template: str) -> str:
    """The place of the first role that no chat template has and this one does not name; "" if there is none."""
    known = {*_ROLES.values()}
    unknown = ((i, m["role"]) for i, m in enumerate(chat.messages) if m["role"] not in known | {*_ROLES})
    i, role = next(((i, role) for i, role in unknown if role not in template), (0, ""))
    return role and f"`{chat.column}[{i}].role` is `{role}`; the usual roles are {_join_names(known)}"


def standard_role(role: str) -> str:
    """The role of chat templates for one of ShareGPT; any other as it is."""
    return _ROLES.get(role, role)


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _get_column(record: Mapping[str, Any], name: str) -> Any:
    if name not in record:
        names = ", ".join(f"`{c}`" for c in list(record)[:8]) or "nothing"
        raise BadRecord("missing-key", f"has no `{name}`, it has {names}")
    return record[name]


def _get_text(record: Mapping[str, Any], name: str) -> str:
    value = _get_column(record, name)
    if not isinstance(value, str):
        raise BadRecord("wrong-type", f"`{name}` is {json_type_name(value)}, should be a text")
    if not value:
        raise BadRecord("empty", f"`{name}` is empty")
    return value


def _parse_alpaca(record: Mapping[str, Any]) -> PromptCompletion:
    """The prompts of Stanford Alpaca (Taori et al. 2023), with and without an input."""
    instruction, extra = _get_text(record, "instruction"), record.get("input") or ""
    if not isinstance(extra, str):
        raise BadRecord("wrong-type", f"`input` is {json_type_name(extra)}, should be a text")
    prompt = _ALPACA.format(
        with_input=", paired with an input that provides further context" if extra else "",
        instruction=instruction,
        input=f"### Input:\n{extra}\n\n" if extra else "",
    )
    return PromptCompletion(prompt, _get_text(record, "output"))


def _parse_pair(record: Mapping[str, Any], columns: RecordColumns) -> PromptCompletion | ChatRecord:
    prompt, completion = _get_column(record, columns.prompt), _get_column(record, columns.completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        prompt_turns = _parse_turns(prompt, columns.prompt)
        completion_turns = _parse_turns(completion, columns.completion)
        return ChatRecord([*prompt_turns, *completion_turns], len(prompt_turns))
    return PromptCompletion(_get_text(record, columns.prompt), _get_text(record, columns.completion))


def _parse_turns(value: Any, name: str) -> list[dict[str, Any]]:
    """Turns with `role` and `content`, also from sharegpt's `from` and `value`."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)  # a table without lists, such as CSV
        except (ValueError, RecursionError):
            raise BadRecord("bad-json", f"`{name}` is a text that is no JSON list") from None
    if not isinstance(value, list):
        raise BadRecord("wrong-type", f"`{name}` is {json_type_name(value)}, should be a list of turns")
    if not value:
        raise BadRecord("missing-turn", f"`{name}` is empty")
    return [_parse_turn(turn, f"{name}[{i}]") for i, turn in enumerate(value)]


def _parse_turn(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise BadRecord("wrong-type", f"`{where}` is {json_type_name(turn)}, should be an object")
    if "role" not in turn and "from" in turn:
        role = _ROLES.get(turn["from"]) if isinstance(turn["from"], str) else None
        if role is None:
            reason = f"`{where}.from` is `{turn['from']}`; the accepted roles are {_join_names(_ROLES)}"
            raise BadRecord("unknown-role", reason)
        turn = {"role": role, "content": turn.get("value")}
    # a column of an Arrow table has every key in every turn
    message: dict[str, Any] = {key: value for key, value in turn.items() if value is not None}
    for key in ("role", "content"):
        if key not in message:
            if key == "content" and ("tool_calls" in message or "thinking" in message):
                message["content"] = ""
                continue
            raise BadRecord("missing-key", f"`{where}` has no `{key}`")
    if not isinstance(message["role"], str) or not isinstance(message["content"], str | list):
        key = "role" if not isinstance(message["role"], str) else "content"
        raise BadRecord("wrong-type", f"`{where}.{key}` is {json_type_name(message[key])}, should be a text")
    if message["content"] == "" and message["role"] == "assistant" and "tool_calls" not in message:
        raise BadRecord("empty", f"`{where}.content` is empty")
    return message
