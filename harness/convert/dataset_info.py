# SPDX-License-Identifier: Apache-2.0
"""LLaMA-Factory's `dataset_info.json`, in which a configuration names its datasets (`src/llamafactory/data/parser.py`,
read in 0.9.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.convert.trainer_file import TrainerFile, is_on
from harness.errors import UserError
from harness.spec.parse.source import read_text
from harness.spec.parse.source_parser import parse
from harness.spec.referenced_files import find_referenced_file

_ALPACA_COLUMNS = {"prompt": "instruction", "query": "input", "response": "output"}
_SPEC_COLUMNS = {"prompt": "prompt", "query": "input", "response": "completion", "history": "history"}
_SPEC_COLUMNS |= {"system": "system", "tools": "tools"}
"""LLaMA-Factory's column of an Alpaca record -> that of a run spec's source."""
_SHAREGPT_TAGS = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
_MESSAGES_TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
_TAGS = {"observation_tag": "observation", "function_tag": "function_call", "system_tag": "system"}
_ROLES = {"user_tag": "user", "assistant_tag": "assistant", "observation_tag": "tool"}
_ROLES |= {"function_tag": "function_call", "system_tag": "system"}
"""LLaMA-Factory's name of a role -> the role of a run spec's turns."""
_AS_MESSAGES = "write them as `messages`"
_TEXTLESS = ("images", "videos", "audios")

_PREFERENCES = ("dpo", "kto", "rm")


def convert_datasets(file: TrainerFile) -> None:
    """`dataset` and `eval_dataset` as sources of the run spec, where `dataset_info.json` is here and says enough."""
    info, info_file = _read_info(file)
    if file.values.get("dataset") is not None:
        _convert_list(file, "dataset", "data.train", info, info_file)
    if file.values.get("eval_dataset") is not None:
        _convert_list(file, "eval_dataset", "data.eval", info, info_file)
    size = file.values.get("val_size")
    if isinstance(size, (int, float)) and size < 1:
        file.put("data.eval_fraction", float(file.take_value("val_size")))
    if is_on(file.take_value("train_on_prompt")):
        file.put("data.assistant_only_loss", False)
        file.put("data.completion_only_loss", False)


def _read_info(file: TrainerFile) -> tuple[Mapping[str, Any] | None, str]:
    folder = file.values.get("dataset_dir") or "data"
    if folder == "ONLINE":  # names of the Hub, with Alpaca's columns
        names = [name for key in ("dataset", "eval_dataset") for name in _split_names(file.values.get(key))]
        return {name: {"hf_hub_url": name} for name in names}, folder
    if not isinstance(folder, str):
        return None, str(folder)
    name = f"{folder.rstrip('/')}/dataset_info.json"
    path = find_referenced_file(file.source.file, name)
    try:
        return (parse(read_text(path), path).data, path) if path else (None, name)
    except UserError:
        return None, path or name


def _split_names(value: Any) -> list[str]:
    names = value.split(",") if isinstance(value, str) else value
    return [str(name).strip() for name in names] if isinstance(names, list) else []


def _convert_list(file: TrainerFile, key: str, spec_key: str, info: Mapping[str, Any] | None, info_file: str) -> None:
    names = _split_names(file.values[key])
    if not names:
        return
    if info is None:
        file.add_manual(key, f"`{info_file}`, which defines it, is not on this machine: set `{spec_key}`")
        return
    missing = [name for name in names if not isinstance(info.get(str(name)), Mapping)]
    if missing:
        file.add_manual(key, f"`{missing[0]}` is not in `{info_file}`: set `{spec_key}`")
        return
    sources = []
    for name in names:
        source, problem = _to_source(info[str(name)], Path(info_file).parent, file.values.get("stage"))
        if source is None:
            file.add_manual(key, f"`{name}` of `{info_file}` {problem}: set `{spec_key}`")
            return
        _add_notes(file, key, str(name), info[str(name)], file.values.get("stage"))
        sources.append(source)
    if file.values.get("stage") in _PREFERENCES:
        _put_columns(file, key, [info[str(name)] for name in names])
    file.put(spec_key, sources)
    file.take_value(key)


def _to_source(entry: Mapping[str, Any], folder: Path, stage: Any) -> tuple[dict[str, Any] | None, str]:
    """A source, or what keeps the entry from being one."""
    columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
    if stage in _PREFERENCES:
        problem = _find_preference_problem(entry, columns, tags, stage)
    elif entry.get("ranking") or "kto_tag" in columns:
        problem = "has preferences, which `stage: dpo`, `kto` or `rm` trains on"
    else:
        problem = ""
    if problem:
        return None, problem
    media = [name for name in _TEXTLESS if name in columns]
    if media:
        return None, f"has {media[0]}, which a run spec does not read"
    if "folder" in entry or "script_url" in entry or "cloud_file_name" in entry:
        return None, "is a folder, a script or a cloud file"
    records, problem = ({}, "") if stage in _PREFERENCES else _describe_records(entry, columns, tags, stage)
    if problem:
        return None, problem
    if "hf_hub_url" in entry:
        source: dict[str, Any] = {"path": str(entry["hf_hub_url"])}
        source |= {key: str(entry[name]) for key, name in (("name", "subset"), ("split", "split")) if entry.get(name)}
    elif "file_name" in entry:
        source = {"path": (folder / str(entry["file_name"])).as_posix()}
    else:
        return None, "has neither `file_name` nor `hf_hub_url`"
    return {**source, **records}, ""


def _find_preference_problem(
    entry: Mapping[str, Any], columns: Mapping[str, Any], tags: Mapping[str, Any], stage: str
) -> str:
    """What keeps a dataset from being pairs, or answers with a label; empty for one that is."""
    if not (entry.get("ranking") if stage != "kto" else columns.get("kto_tag")):
        return "has no preferences (`ranking`, or a `kto_tag`)"
    if columns.get("query") or columns.get("history") or columns.get("system"):
        return f"has prompts of several columns, {_AS_MESSAGES}"
    if entry.get("formatting", "alpaca") == "alpaca":
        return "" if columns.get("prompt") else "has prompts of several columns: write them as `prompt`"
    named = tuple({**_SHAREGPT_TAGS, **tags}[key] for key in _SHAREGPT_TAGS)
    known = (tuple(_SHAREGPT_TAGS.values()), tuple(_MESSAGES_TAGS.values()))
    return "" if named in known else "names roles that a run spec does not know"


def _describe_records(
    entry: Mapping[str, Any], columns: Mapping[str, Any], tags: Mapping[str, Any], stage: Any
) -> tuple[dict[str, Any], str]:
    """`format`, `columns` and `roles` of a source, or what keeps the entry from being one."""
    formatting = entry.get("formatting", "alpaca")
    if formatting in ("sharegpt", "openai"):
        return _describe_turns(columns, tags, formatting), ""
    if formatting != "alpaca":
        return {}, f"is of the format `{formatting}`, which is not known"
    named = {**_ALPACA_COLUMNS} if not columns else {key: columns.get(key) for key in _SPEC_COLUMNS}
    if stage == "pt":
        return {"format": "text", "columns": {"text": named["prompt"] or "instruction"}}, ""
    if not named["prompt"] or not named["response"]:
        return {}, "has no answers to train on (`response`)"
    own = {_SPEC_COLUMNS[key]: str(name) for key, name in named.items() if name}
    defaults = {"prompt": "instruction", "completion": "output"}
    own = {key: name for key, name in own.items() if defaults.get(key) != name}
    return {"format": "alpaca-chat", "columns": own or {"prompt": named["prompt"]}}, ""


def _describe_turns(columns: Mapping[str, Any], tags: Mapping[str, Any], formatting: str) -> dict[str, Any]:
    """ShareGPT's turns, or OpenAI's, with other names where the entry has some."""
    named = {**(_MESSAGES_TAGS if formatting == "openai" else _SHAREGPT_TAGS), **_TAGS, **tags}
    keys = (named["role_tag"], named["content_tag"])
    format_ = "messages" if keys == ("role", "content") else "sharegpt"
    own = {"messages": str(columns.get("messages", "conversations"))}
    if own["messages"] == ("messages" if format_ == "messages" else "conversations"):
        del own["messages"]
    own |= {key: str(columns[key]) for key in ("system", "tools") if columns.get(key)}
    if keys not in (("role", "content"), ("from", "value")):
        own |= {"role": str(keys[0]), "content": str(keys[1])}
    is_standard = all(named[key] == default for key, default in {**_SHAREGPT_TAGS, **_TAGS}.items())
    has_calls = bool(columns.get("tools")) or bool({"observation_tag", "function_tag"} & tags.keys())
    wanted = _ROLES if has_calls or format_ == "messages" else ("user_tag", "assistant_tag", "system_tag")
    roles = {str(named[key]): _ROLES[key] for key in wanted if named[key]}
    calls = _ROLES["function_tag"] if format_ == "messages" else ""  # turns with `role` have calls as `tool_calls`
    roles = {name: role for name, role in roles.items() if name != role or role == calls}
    source: dict[str, Any] = {"format": format_}
    return source | ({"columns": own} if own else {}) | ({"roles": roles} if roles and not is_standard else {})


def _add_notes(file: TrainerFile, key: str, name: str, entry: Mapping[str, Any], stage: Any) -> None:
    """What the run spec does not do with a dataset that it can name."""
    columns = entry.get("columns") or {}
    if "num_samples" in entry:
        file.add_lossy(key, f"`num_samples` of `{name}`: takes this many records, the run spec all")
    if stage in _PREFERENCES and columns.get("tools"):
        text = f"the column `{columns['tools']}` of `{name}` has tools, which the run spec does not read"
        file.add_lossy(key, f"{text}: {_AS_MESSAGES}")
    if stage in _PREFERENCES and entry.get("formatting", "alpaca") == "alpaca":
        text = f"prompts of `{name}` are turns of the chat template there, plain text in the run spec"
        file.add_lossy(key, f"{text}: {_AS_MESSAGES}")


def _put_columns(file: TrainerFile, key: str, entries: list[Mapping[str, Any]]) -> None:
    """Columns of preferences, which are those of all sources."""
    wanted: dict[str, set[str]] = {}
    for entry in entries:
        _put_preference_columns(entry.get("columns") or {}, wanted)
    for spec_key, values in wanted.items():
        if len(values) == 1:
            file.put(spec_key, values.pop())
        else:
            file.add_manual(
                key, f"the datasets have several names for one column: set `{spec_key}`, and rename the rest"
            )


def _put_preference_columns(names: Mapping[str, Any], wanted: dict[str, set[str]]) -> None:
    """The columns of pairs, or of answers with a label; a chat with a label has its answer as the last turn."""
    pairs = {"data.chosen_column": names.get("chosen"), "data.rejected_column": names.get("rejected")}
    labels = {"data.label_column": names.get("kto_tag")}
    if names.get("kto_tag"):
        labels["data.completion_column"] = names.get("messages") or names.get("response")
    prompts = {"data.prompt_column": names.get("prompt"), "data.messages_column": names.get("messages")}
    for key, name in {**pairs, **labels, **prompts}.items():
        if name and not (key == "data.messages_column" and names.get("kto_tag")):
            wanted.setdefault(key, set()).add(str(name))
