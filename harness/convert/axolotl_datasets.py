# SPDX-License-Identifier: Apache-2.0
"""axolotl's `datasets`, `test_datasets` and `pretraining_dataset` as sources of a run spec (`src/axolotl/utils/schemas/
datasets.py`, read in 0.5.0 to 0.18.0).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.convert.trainer_file import TrainerFile, is_on
from harness.hostinfo.program_templates import find_axolotl_template

_FORMATS = {
    "completion": "text",
    "pretrain": "text",
    "alpaca": "alpaca",
    "chat_template": "messages",
    "sharegpt": "sharegpt",
}
"""axolotl's `type` -> `format` of a source; a type may have a suffix, `alpaca:chatml`."""
_PREFERENCE_TYPES = (
    "chat_template.default chat_template.argilla_chat chatml.argilla_chat llama3.argilla_chat chatml.ultra llama3.ultra"
    " bradley_terry.chat_template"
).split()
"""Types whose columns a run spec reads: turns or a prompt with an answer each, or two whole chats."""
_NO_EFFECT = frozenset(
    """ds_type shards_idx preprocess_shards trust_remote_code message_property_mappings message_field_role
    message_field_content roles roles_to_train train_on_eos chat_template field field_messages text_column skip
    logprobs_field temperature drop_system_message conversation train_on_eot field_tools field_thinking
    template_thinking_key message_field_training message_field_training_detail split_thinking field_chosen
    field_rejected""".split()
)
"""Keys of a source that decide nothing by themselves, or are looked at one by one."""
_MAPPINGS = ({"role": "role", "content": "content"}, {"role": "from", "content": "value"})
_ROLES: dict[str, frozenset[str]] = {
    "user": frozenset(("human", "user")),
    "assistant": frozenset(("gpt", "assistant", "chatgpt", "bing", "model")),
    "system": frozenset(("system",)),
    "tool": frozenset(("tool", "observation", "function_response")),
}
_TRAINED_TURNS = {
    **dict.fromkeys(("train_on_eos", "train_on_eot"), ("turn", None)),
    "roles_to_train": (["assistant"], ["gpt"], ["assistant", "gpt"], ["gpt", "assistant"], None),
    **dict.fromkeys(("drop_system_message", "split_thinking"), (False, None)),
    **dict.fromkeys(
        "message_field_training message_field_training_detail shards shards_idx logprobs_field".split(), (None,)
    ),
}
"""Keys of a source -> the values that a run spec has."""


def convert_datasets(file: TrainerFile) -> None:
    """The sources that a run spec can express; a note for each of the others, with its reason."""
    for key, spec_key in (
        ("datasets", "data.train"),
        ("pretraining_dataset", "data.train"),
        ("test_datasets", "data.eval"),
    ):
        if entries := _read_entries(file, key):
            _convert_entries(file, key, spec_key, entries)
    if is_on(file.take_value("train_on_inputs")):
        file.put("data.assistant_only_loss", False)
        file.put("data.completion_only_loss", False)
    _convert_packing(file)
    _convert_template(file)
    _convert_pair_types(file)
    size = file.values.get("val_set_size")
    if isinstance(size, (int, float)) and 0 <= size < 1:
        file.put("data.eval_fraction", float(file.take_value("val_set_size")))


def _read_entries(file: TrainerFile, key: str) -> list[Any]:
    """The sources of a key, of which one alone needs no list; none where it has another value."""
    entries = file.values.get(key)
    if isinstance(entries, (Mapping, str)):
        return [entries]
    return entries if isinstance(entries, list) else []


def _convert_entries(file: TrainerFile, key: str, spec_key: str, entries: list[Any]) -> None:
    problem = next((text for text in map(_find_problem, entries) if text), None)
    if problem:
        file.add_manual(key, f"{problem}: set `{spec_key}`")
        return
    file.put(spec_key, [part for entry in entries for part in _sources(entry, key)])
    file.take_value(key)
    for column, names in (
        ("data.chosen_column", [e.get("field_chosen") for e in entries if isinstance(e, Mapping)]),
        ("data.rejected_column", [e.get("field_rejected") for e in entries if isinstance(e, Mapping)]),
        ("data.text_column", [_text_column(e, key) for e in entries]),
        ("data.messages_column", [_messages_column(e, key) for e in entries]),
    ):
        named = {str(name) for name in names if name}
        if len(named) == 1:
            file.put(column, named.pop())
        elif named:
            file.add_manual(key, f"the datasets have several names for one column: set `{column}`, and rename the rest")
    for entry in entries:
        _add_notes(file, key, entry)


def _find_problem(entry: Any) -> str | None:
    """The reason why a dataset is no source; None for one that a run spec can express."""
    if not isinstance(entry, Mapping):
        return None if isinstance(entry, str) else "an entry is no map"
    where = str(entry.get("path") or "an entry")[:60]
    if not entry.get("path"):
        return "an entry has no `path`"
    return _find_unknown_type(entry, where) or _find_unknown_key(entry, where) or _find_unknown_role(entry, where)


def _find_unknown_type(entry: Mapping[str, Any], where: str) -> str | None:
    kind = entry.get("type") or "completion"
    if isinstance(kind, Mapping):
        return f"`{where}` has a `type` with custom fields; write its records as `prompt` and `completion`"
    if str(kind) in _PREFERENCE_TYPES:
        return None
    name, _, variant = str(kind).partition(":")
    is_known = name in _FORMATS and (not variant or name == "sharegpt")
    return None if is_known else f"`{where}` is of type `{kind}`, which no format of a run spec has"


def _find_unknown_key(entry: Mapping[str, Any], where: str) -> str | None:
    unknown = [key for key in entry if key not in _NO_EFFECT | _TRAINED_TURNS.keys() | _SOURCE_KEYS]
    if unknown:
        return f"`{where}` has `{unknown[0]}`, which a source of a run spec does not have"
    properties = entry.get("message_property_mappings")
    mapping = {**_legacy_mapping(entry), **(properties if isinstance(properties, Mapping) else {})}
    if entry.get("type") == "chat_template" and mapping and {**_MAPPINGS[0], **mapping} not in _MAPPINGS:
        return f"`{where}` has other names for the keys of a turn than `role` and `content`, or `from` and `value`"
    return None


_SOURCE_KEYS = frozenset("path type data_files split name revision".split())


def _legacy_mapping(entry: Mapping[str, Any]) -> dict[str, Any]:
    names = {"role": entry.get("message_field_role"), "content": entry.get("message_field_content")}
    return {key: name for key, name in names.items() if name}


def _find_unknown_role(entry: Mapping[str, Any], where: str) -> str | None:
    roles = entry.get("roles")
    for role, names in roles.items() if isinstance(roles, Mapping) else ():
        known = _ROLES.get(str(role), frozenset())
        for name in names if isinstance(names, list) else [names]:
            if str(name) not in known and str(name) != role:
                return f"`{where}` has a role `{name}`, which a run spec does not know"
    return None


def _format_of(entry: Any, key: str) -> str:
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    return _FORMATS.get(
        str(kind or ("pretrain" if key == "pretraining_dataset" else "completion")).partition(":")[0], "text"
    )


def _text_column(entry: Any, key: str) -> str | None:
    is_text = isinstance(entry, Mapping) and _format_of(entry, key) == "text"
    return entry.get("field") or entry.get("text_column") if is_text else None


def _messages_column(entry: Any, key: str) -> str | None:
    if isinstance(entry, Mapping) and entry.get("type") == "chat_template.default":
        return entry.get("field_messages") or "messages"
    if not isinstance(entry, Mapping) or _format_of(entry, key) not in ("messages", "sharegpt"):
        return None
    return entry.get("field_messages") or ("messages" if _format_of(entry, key) == "messages" else None)


def _sources(entry: Any, key: str) -> Iterator[str | dict[str, Any]]:
    """Plain text stays a path alone, as a person would write it."""
    if isinstance(entry, str):
        yield entry
        return
    files = entry.get("data_files") or entry["path"]
    for path in files if isinstance(files, list) else [files]:
        source: dict[str, Any] = {"path": str(path), "format": _format_of(entry, key)}
        source |= {name: str(entry[name]) for name in ("split", "name") if entry.get(name)}
        if source.get("split") == "train":
            del source["split"]
        yield str(path) if source == {"path": str(path), "format": "text"} else source


def _add_notes(file: TrainerFile, key: str, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        return
    path = str(entry.get("path"))[:60]
    for name, supported in _TRAINED_TURNS.items():
        if name in entry and entry[name] not in supported:
            file.add_lossy(
                key, f"`{name}` of `{path}` changes what is read or trained on; the run spec has its own rule"
            )
    if entry.get("revision"):
        file.add_lossy(key, f"`revision` of `{path}`: the run spec reads the newest")
    template = entry.get("chat_template")
    if template not in (None, "tokenizer_default"):
        file.add_manual(key, f"`{path}` has the chat template `{template}`: set `data.chat_template`")
    if entry.get("data_files") and "/" in path and not path.startswith((".", "/")):
        file.add_manual(
            key, f"`data_files` of `{path}`: check the paths in `data.train`, which are files on this machine"
        )


def _convert_pair_types(file: TrainerFile) -> None:
    """The template and the prompts that a type of pairs has in its name."""
    entries = _read_entries(file, "datasets")
    kinds = {str(entry.get("type")) for entry in entries if isinstance(entry, Mapping)}
    if any(kind.startswith("chatml.") for kind in kinds):
        file.put("data.chat_template", "chatml")
    if any(kind.startswith("llama3.") for kind in kinds):
        file.add_manual("datasets", "Llama 3's template; set `data.chat_template` where the tokenizer has another")
    if "bradley_terry.chat_template" in kinds:
        file.put("data.prompt_column", "input")
        text = "prompts are turns of the chat template there, plain text in the run spec: write them as `messages`"
        file.add_lossy("datasets", text)


def _convert_packing(file: TrainerFile) -> None:
    packing = file.values.get("sample_packing")
    sources = file.draft.get("data.train")
    is_text = file.draft.get("objective") is None and isinstance(sources, list)
    is_plain = is_text and all(isinstance(source, str) for source in sources)
    if packing is not None:
        file.take_value("sample_packing")
        if not is_plain:
            file.put("data.packing", packing is True)
        elif packing is False:
            file.add_lossy("sample_packing", "each text is a separate sequence; a run spec packs plain text")
    if is_on(file.values.get("eval_sample_packing")) == is_on(packing):
        file.take_value("eval_sample_packing")


def _convert_template(file: TrainerFile) -> None:
    template, inline = file.take_value("chat_template"), file.take_value("chat_template_jinja")
    if inline is not None:
        name = "chat_template_jinja"
        is_path = isinstance(inline, str) and inline.endswith((".jinja", ".jinja2")) and "\n" not in inline
        if is_path:
            file.put("data.chat_template", inline)
        else:
            file.add_manual(name, "write the template to a file, and set `data.chat_template` to it")
    elif template == "chatml":
        file.put("data.chat_template", "chatml")
    elif template not in (None, "tokenizer_default") and not file.put_template(
        "chat_template", find_axolotl_template(str(template))
    ):
        file.add_manual(
            "chat_template",
            "axolotl's own template; the run spec uses the tokenizer's: set `data.chat_template` where they differ",
        )
