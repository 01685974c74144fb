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
_SHAREGPT_TAGS = {"role_tag": "from", "content_tag": "value", "user_tag": "human", "assistant_tag": "gpt"}
_MESSAGES_TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
_FUNCTION_TAG = "function_call"
_AS_MESSAGES = "`docs/data.md` converts such records to `messages`"
_TEXTLESS = ("images", "videos", "audios")


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
    if not isinstance(folder, str):
        return None, str(folder)
    name = f"{folder.rstrip('/')}/dataset_info.json"
    path = find_referenced_file(file.source.file, name)
    try:
        return (parse(read_text(path), path).data, path) if path else (None, name)
    except UserError:
        return None, path or name


def _convert_list(file: TrainerFile, key: str, spec_key: str, info: Mapping[str, Any] | None, info_file: str) -> None:
    value = file.values[key]
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, list) or not names:
        return
    if info is None:
        tools = next((f" (`{name}` has tools: {_AS_MESSAGES})" for name in names if "toolcall" in str(name)), "")
        file.add_manual(key, f"`{info_file}`, which defines it, is not on this machine{tools}: set `{spec_key}`")
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
        _add_notes(file, key, str(name), info[str(name)], source["format"])
        sources.append(source)
    _put_columns(file, key, [info[str(name)] for name in names], sources)
    file.put(spec_key, sources)
    file.take_value(key)


def _to_source(entry: Mapping[str, Any], folder: Path, stage: Any) -> tuple[dict[str, Any] | None, str]:
    """A source, or what keeps the entry from being one."""
    columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
    if entry.get("ranking") or "kto_tag" in columns:
        return None, "has preferences, which a run spec does not train on"
    media = [name for name in _TEXTLESS if name in columns]
    if media:
        return None, f"has {media[0]}, which a run spec does not read"
    if "folder" in entry or "script_url" in entry or "cloud_file_name" in entry:
        return None, "is a folder, a script or a cloud file"
    format_, problem = _find_format(entry, columns, tags, stage)
    if format_ is None:
        return None, problem
    if "hf_hub_url" in entry:
        source: dict[str, Any] = {"path": str(entry["hf_hub_url"])}
        source |= {key: str(entry[name]) for key, name in (("name", "subset"), ("split", "split")) if entry.get(name)}
    elif "file_name" in entry:
        source = {"path": (folder / str(entry["file_name"])).as_posix()}
    else:
        return None, "has neither `file_name` nor `hf_hub_url`"
    return {**source, "format": format_}, ""


def _find_format(
    entry: Mapping[str, Any], columns: Mapping[str, Any], tags: Mapping[str, Any], stage: Any
) -> tuple[str | None, str]:
    formatting = entry.get("formatting", "alpaca")
    if formatting in ("sharegpt", "openai"):
        defaults = _MESSAGES_TAGS if formatting == "openai" else _SHAREGPT_TAGS
        named = {key: tags.get(key, default) for key, default in defaults.items()}
        format_ = {tuple(_SHAREGPT_TAGS.values()): "sharegpt", tuple(_MESSAGES_TAGS.values()): "messages"}.get(
            tuple(named.values())
        )
        return (format_, "") if format_ else (None, "names roles that a run spec does not know")
    if stage == "pt":
        return "text", ""
    if columns.get("history"):
        return None, f"has a history of turns, {_AS_MESSAGES}"
    named = {key: columns.get(key, default if not columns else None) for key, default in _ALPACA_COLUMNS.items()}
    if _ALPACA_COLUMNS in (named, {**named, "query": "input"}):
        return "alpaca", ""
    if named["prompt"] and named["response"] and not named["query"]:
        return "prompt-completion", ""
    return None, "has columns that no format of a run spec has"


def _add_notes(file: TrainerFile, key: str, name: str, entry: Mapping[str, Any], format_: str) -> None:
    """The fields that the run spec does not read, of a dataset that it can name."""
    columns, tags = entry.get("columns") or {}, entry.get("tags") or {}
    if "num_samples" in entry:
        file.add_lossy(key, f"`num_samples` of `{name}`: takes this many records, the run spec all")
    if columns.get("system"):
        text = f"the column `{columns['system']}` of `{name}` has system prompts, which the run spec does not read"
        file.add_lossy(key, f"{text}: {_AS_MESSAGES}")
    tools, function = columns.get("tools"), tags.get("function_tag", _FUNCTION_TAG)
    if format_ in ("alpaca", "prompt-completion"):
        if tools:
            text = f"the column `{tools}` of `{name}` has tools, which the run spec does not read"
            file.add_lossy(key, f"{text}: {_AS_MESSAGES}")
        words = "in Alpaca's words" if format_ == "alpaca" else "plain text"
        text = f"prompts of `{name}` are turns of the chat template there, {words} in the run spec"
        file.add_lossy(key, f"{text}: {_AS_MESSAGES}")
    elif tools or "function_tag" in tags:
        turns = "`harness data` refuses" if format_ == "sharegpt" else "the chat template may refuse"
        column = f"the texts in its column `{tools}` are not read, and " if tools else ""
        file.add_manual(key, f"`{name}` calls functions: {column}{turns} turns of `{function}`; {_AS_MESSAGES}")


def _put_columns(file: TrainerFile, key: str, entries: list[Mapping[str, Any]], sources: list[dict[str, Any]]) -> None:
    """The columns of a run spec are those of all its sources."""
    columns = [(entry.get("columns") or {}, source["format"]) for entry, source in zip(entries, sources, strict=True)]
    wanted: dict[str, set[str]] = {}
    for names, format_ in columns:
        if format_ == "text":
            wanted.setdefault("data.text_column", set()).add(str(names.get("prompt", "instruction")))
        elif format_ == "prompt-completion":
            wanted.setdefault("data.prompt_column", set()).add(str(names.get("prompt")))
            wanted.setdefault("data.completion_column", set()).add(str(names.get("response")))
        elif format_ in ("sharegpt", "messages"):
            wanted.setdefault("data.messages_column", set()).add(str(names.get("messages", "conversations")))
    for spec_key, values in wanted.items():
        if len(values) == 1:
            file.put(spec_key, values.pop())
        else:
            file.add_manual(
                key, f"the datasets have several names for one column: set `{spec_key}`, and rename the rest"
            )
