# SPDX-License-Identifier: Apache-2.0
"""Record formats: detection by columns, and columns into texts, pairs and chats. No tokens here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from harness.runtime.dataset.json_readers import json_type_name
from harness.runtime.dataset.record import BadRecord
from harness.runtime.user_errors import user_error
from harness.spec.sections.data_spec import DataSource, DataSpec, RecordFormat, SourceColumns

_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_ROLES |= {"chatgpt": "assistant", "bing": "assistant", "model": "assistant", "tool": "tool", "observation": "tool"}
_ROLES |= {"function_response": "tool", "developer": "developer"}
_CALL = "function_call"
"""ShareGPT's role of a turn whose text is the JSON of one call of a function, or of a list of them."""
_ALPACA = (
    "Below is an instruction that describes a task{with_input}. Write a response that appropriately completes the "
    "request.\n\n### Instruction:\n{instruction}\n\n{input}### Response:\n"
)


PREFERENCE_FORMATS: dict[str, Literal["pairs", "labels"]] = {"dpo": "pairs", "reward": "pairs", "kto": "labels"}
"""Objective -> what its records are: pairs of answers, or answers with a label (or pairs, which are taken apart)."""


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
class ChatColumns:
    """Columns of a chat beside its turns, the keys of a turn, and (role in the file, role of the template)."""

    system: str | None = None
    tools: str = "tools"
    input: str | None = None
    history: str | None = None
    role: str | None = None
    content: str | None = None
    roles: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """A record format and the names of its columns. `pairs` and `labels` are preferences (`preference_records.py`),
    `classes` texts with labels (`label_records.py`).
    """

    format: RecordFormat | Literal["pairs", "labels", "classes"]
    text: str
    prompt: str
    completion: str
    messages: str
    chat: ChatColumns = ChatColumns()


_ALPACA_CHAT = ChatColumns("system", "tools", "input", "history")
_SPEC_COLUMNS = ("text", "prompt", "completion", "messages")
"""Columns of a source that `data` names, too."""


def detect_columns(
    source: DataSource, data: DataSpec, columns: Sequence[str], where: str, objective: str = "causal_lm"
) -> RecordColumns:
    """The format of a source whose first record has these columns, and the names that the source gives them. Raises
    UserError (MD112).
    """
    if source.columns is None and source.roles is None:
        found = detect_format(source.format, data, columns, where, objective)
        return replace(found, chat=_ALPACA_CHAT) if found.format == "alpaca-chat" else found
    if objective in PREFERENCE_FORMATS or objective == "classification":
        raise user_error(
            "MD112",
            f"`{where}` has `columns` or `roles` of its own, which `objective: {objective}` does not read",
            key="data.train",
            fix="name the columns in `data`, such as `data.chosen_column`",
        )
    names = source.columns or SourceColumns()
    own = {f"{name}_column": value for name in _SPEC_COLUMNS if (value := getattr(names, name))}
    found = detect_format(source.format, data.model_copy(update=own), columns, where, objective)
    keys = (names.input, names.history, names.role, names.content)
    chat = ChatColumns(names.system, names.tools or "tools", *keys, tuple((source.roles or {}).items()))
    if found.format != "alpaca-chat":
        return replace(found, chat=chat)
    return replace(
        found, prompt=names.prompt or found.prompt, completion=names.completion or found.completion, chat=chat
    )


def detect_format(
    requested: RecordFormat | None, data: DataSpec, columns: Sequence[str], where: str, objective: str = "causal_lm"
) -> RecordColumns:
    """The format of a source whose first record has these columns. Raises UserError (MD112) when it is unknown."""
    record_format = requested or (data.format if data.format != "auto" else None)
    if objective in PREFERENCE_FORMATS:
        return _detect_preferences(record_format, data, columns, where, objective)
    if objective == "classification":
        return _detect_classes(record_format, data, columns, where)
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
            fix="set `objective: dpo`, which trains on pairs of answers"
            if {data.chosen_column, data.rejected_column} <= set(columns)
            else "set `data.text_column` to one of them, or `data.format` and the columns of that format",
        )
    prompt, completion = data.prompt_column, data.completion_column
    if record_format == "alpaca-chat":
        prompt, completion = "instruction", "output"
    return RecordColumns(record_format, data.text_column, prompt, completion, messages)


def _detect_preferences(
    named: RecordFormat | None, data: DataSpec, columns: Sequence[str], where: str, objective: str
) -> RecordColumns:
    """Pairs of answers, or answers with a label. Raises UserError (MD112)."""
    kind = PREFERENCE_FORMATS[objective]
    pair, labelled = (data.chosen_column, data.rejected_column), (data.completion_column, data.label_column)
    wanted = labelled if kind == "labels" and data.chosen_column not in columns else pair
    missing = [name for name in wanted if columns and name not in columns]
    if named is not None or missing:
        names = ", ".join(f"`{c}`" for c in columns) or "none"
        what = f"is of the format `{named}`" if named else f"has no column `{missing[0]}`, it has {names}"
        other = f", or `{labelled[0]}` and `{labelled[1]}`" if kind == "labels" else ""
        raise user_error(
            "MD112",
            f"`{where}` {what}",
            key="data.format" if named else "data.train",
            notes=(f"`objective: {objective}` reads `{pair[0]}` and `{pair[1]}`{other}, with or without a prompt",),
            fix="leave `data.format` out" if named else "set `data.chosen_column` and its like to the names of these",
        )
    return RecordColumns(kind, "", data.prompt_column, data.completion_column, data.messages_column or "messages")


def _detect_classes(named: RecordFormat | None, data: DataSpec, columns: Sequence[str], where: str) -> RecordColumns:
    """Texts or chats with labels: of both, the chat where `data` names its column or format. Raises MD112."""
    chats = [data.messages_column] if data.messages_column else ["messages", "conversations"]
    chat = next((name for name in chats if name in columns), "")
    if named in ("messages", "sharegpt") or (named is None and data.messages_column):
        chat = chat or chats[0]
    elif named == "text" or data.text_column in columns:
        chat = ""
    missing = [name for name in (chat or data.text_column, data.label_column) if name not in columns]
    is_other = named not in (None, "text", "messages", "sharegpt")
    if is_other or missing:
        names = ", ".join(f"`{c}`" for c in columns) or "none"
        raise user_error(
            "MD112",
            f"`{where}` "
            + (f"is of the format `{named}`" if is_other else f"has no column `{missing[0]}`, it has {names}"),
            key="data.format" if is_other else "data.train",
            notes=("`objective: classification` reads a text, or the turns of a chat, and its label",),
            fix="set `data.text_column`, or `data.messages_column`, and `data.label_column` to the names of these",
        )
    return RecordColumns("classes", "" if chat else data.text_column, "", "", chat)


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
        return TextRecord(get_text(record, columns.text))
    if columns.format == "alpaca":
        return _parse_alpaca(record)
    if columns.format == "prompt-completion":
        return _parse_pair(record, columns)
    chat = columns.chat
    if columns.format == "alpaca-chat":
        turns = _parse_instruction(record, columns)
    else:
        turns = parse_turns(get_column(record, columns.messages), columns.messages, chat)
    system = record.get(chat.system) if chat.system else None
    if system and turns[0]["role"] != "system":
        if not isinstance(system, str):
            raise BadRecord("wrong-type", f"`{chat.system}` is {json_type_name(system)}, should be a text")
        turns = [{"role": "system", "content": system}, *turns]
    return ChatRecord(turns, 0, read_tools(record, chat.tools), columns.messages)


def read_tools(record: Mapping[str, Any], name: str) -> list[Any] | None:
    """The tools of a chat, from a list or its JSON, in which a function may stand without its type; else None."""
    tools = record.get(name)
    if isinstance(tools, str) and tools.lstrip().startswith("["):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            raise BadRecord("bad-json", f"`{name}` is a text that is no JSON list") from None
        bare = [isinstance(tool, dict) and "name" in tool and "function" not in tool for tool in tools]
        tools = [
            {"type": "function", "function": tool} if is_bare else tool
            for tool, is_bare in zip(tools, bare, strict=True)
        ]
    return tools if isinstance(tools, list) and tools else None


def _parse_instruction(record: Mapping[str, Any], columns: RecordColumns) -> list[dict[str, Any]]:
    """An Alpaca record as turns: earlier pairs, the prompt with its input on a line of its own, and the answer."""
    chat = columns.chat
    history = (record.get(chat.history) if chat.history else None) or []
    if isinstance(history, str):
        history = _parse_list(history, str(chat.history))
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRecord("wrong-type", f"`{chat.history}` is no list of pairs")
    names = (columns.prompt, chat.input)
    parts = [part for name in names if name and (part := record.get(name))]
    if columns.prompt not in record or not parts:
        get_text(record, columns.prompt)
    texts = [text for pair in history for text in pair] + [
        "\n".join(map(str, parts)),
        get_text(record, columns.completion),
    ]
    if not all(isinstance(text, str) for text in (*texts, *parts)):
        raise BadRecord("wrong-type", "has a turn that is no text")
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def _parse_list(text: str, name: str) -> Any:
    """A list in a table without lists, such as CSV."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadRecord("bad-json", f"`{name}` is a text that is no JSON list") from None


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


def get_column(record: Mapping[str, Any], name: str) -> Any:
    """The value of a column. Raises BadRecord where there is none."""
    if name not in record:
        names = ", ".join(f"`{c}`" for c in list(record)[:8]) or "nothing"
        raise BadRecord("missing-key", f"has no `{name}`, it has {names}")
    return record[name]


def get_text(record: Mapping[str, Any], name: str) -> str:
    """The text of a column, not empty. Raises BadRecord."""
    value = get_column(record, name)
    if not isinstance(value, str):
        raise BadRecord("wrong-type", f"`{name}` is {json_type_name(value)}, should be a text")
    if not value:
        raise BadRecord("empty", f"`{name}` is empty")
    return value


def _parse_alpaca(record: Mapping[str, Any]) -> PromptCompletion:
    """The prompts of Stanford Alpaca (Taori et al. 2023), with and without an input."""
    instruction, extra = get_text(record, "instruction"), record.get("input") or ""
    if not isinstance(extra, str):
        raise BadRecord("wrong-type", f"`input` is {json_type_name(extra)}, should be a text")
    prompt = _ALPACA.format(
        with_input=", paired with an input that provides further context" if extra else "",
        instruction=instruction,
        input=f"### Input:\n{extra}\n\n" if extra else "",
    )
    return PromptCompletion(prompt, get_text(record, "output"))


def _parse_pair(record: Mapping[str, Any], columns: RecordColumns) -> PromptCompletion | ChatRecord:
    prompt, completion = get_column(record, columns.prompt), get_column(record, columns.completion)
    if isinstance(prompt, list) and isinstance(completion, list):
        prompt_turns = parse_turns(prompt, columns.prompt)
        completion_turns = parse_turns(completion, columns.completion)
        return ChatRecord([*prompt_turns, *completion_turns], len(prompt_turns))
    return PromptCompletion(get_text(record, columns.prompt), get_text(record, columns.completion))


def parse_turns(value: Any, name: str, chat: ChatColumns | None = None) -> list[dict[str, Any]]:
    """Turns with `role` and `content`, also from sharegpt's `from` and `value`. Raises BadRecord."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parse_list(value, name)
    if not isinstance(value, list):
        raise BadRecord("wrong-type", f"`{name}` is {json_type_name(value)}, should be a list of turns")
    if not value:
        raise BadRecord("missing-turn", f"`{name}` is empty")
    return [_parse_turn(_rename_turn(turn, chat), f"{name}[{i}]") for i, turn in enumerate(value)]


def _rename_turn(turn: Any, chat: ChatColumns | None) -> Any:
    """The turn with the keys and roles that its source names."""
    if not isinstance(turn, dict) or chat is None or not (chat.role or chat.content or chat.roles):
        return turn
    renamed = {name: value for name, value in turn.items() if name not in (chat.role, chat.content)}
    for name, own in (("role", chat.role), ("content", chat.content)):
        if own in turn:
            renamed[name] = turn[own]
    role, roles = renamed.get("role", renamed.get("from")), dict(chat.roles)
    if not isinstance(role, str) or role not in roles:
        if chat.role and role == _CALL:
            return _parse_call(renamed)
        return {**renamed, "role": standard_role(role)} if chat.role and isinstance(role, str) else renamed
    if roles[role] == _CALL:
        return _parse_call({"value": renamed.get("content", renamed.get("value"))})
    renamed.pop("from", None)
    return {**renamed, "role": roles[role], "content": renamed.get("content", renamed.pop("value", None))}


def _parse_call(turn: Mapping[str, Any]) -> dict[str, Any]:
    """An assistant's turn that calls functions, from the JSON of one call or of a list. Raises BadRecord."""
    text = turn.get("content", turn.get("value"))
    try:
        calls = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        calls = None
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise BadRecord("wrong-type", f"has a turn of `{_CALL}` that is no JSON with `name` and `arguments`")
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": c} for c in calls]}


def _parse_turn(turn: Any, where: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise BadRecord("wrong-type", f"`{where}` is {json_type_name(turn)}, should be an object")
    if "role" not in turn and turn.get("from") == _CALL:
        turn = _parse_call(turn)
    elif "role" not in turn and "from" in turn:
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
