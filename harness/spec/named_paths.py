# SPDX-License-Identifier: Apache-2.0
"""The paths that a run spec names: model, tokenizer, data, chat template and plug-in, and their places on this machine.

A relative path starts at the folder of the spec; where it is not there, at the current folder. The ranks get the path
that was found. `launch.output_dir` and other folders that a run writes start at the current folder.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.findings import Place
from harness.hostinfo.path_probe import answer_all_in_time, find_longer_name, find_similar_path
from harness.object_stores.store_url import is_store_url
from harness.spec.parse.source import KeyPath, Source
from harness.spec.run_spec import RunSpec

PathKind = Literal["model", "architecture", "tokenizer", "data", "file"]
PathState = Literal["present", "missing", "unusable", "not a path", "placeholder", "silent"]

DATA_SUFFIXES = (".txt", ".md", ".rst", ".jsonl", ".json", ".csv", ".parquet", ".arrow")
"""Extensions of the files that `data.train` and `data.eval` read."""
HOSTFILE_KEY: KeyPath = ("launch", "hostfile")
_MAX_LOOKS = 1000
"""Paths of one file that are looked up; a spec with more files names them by a pattern."""
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_PLACEHOLDER = re.compile(r"(^|/)path/to(/|$)|(^|/)your[-_]|<[^<>]+>", re.IGNORECASE)
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".safetensors.index.json", ".bin.index.json")
_TOKENIZER_WORDS = ("token", "vocab", "merges", "spiece", "sentencepiece", ".model", ".tiktoken")


class NamedPath(NamedTuple):
    """A path as the spec has it. `key` is where the user wrote it, `field` the same in a `RunSpec`."""

    key: KeyPath
    field: KeyPath
    text: str
    kind: PathKind
    with_tokenizer: bool = False
    """Is the tokenizer read from the model's folder?"""
    place: Place | None = None

    @property
    def is_path(self) -> bool:
        """Is it a path, whether it exists or not? Any other name of a model or of data may be on the Hub."""
        return self.kind == "file" or (self.kind == "data" and is_file_pattern(self.text)) or not is_hub_name(self.text)


class LocatedPath(NamedTuple):
    """The place of a path on this machine.

    `path` is what the ranks open, `reason` why it cannot be used, `similar` a path that exists and was probably meant,
    `other` the same name in the current folder where the one in the spec's folder is used. `searched` are the folders.
    `longer` is the only file whose name begins with this one, which may be meant.
    """

    named: NamedPath
    state: PathState
    path: str
    reason: str = ""
    similar: str | None = None
    other: str | None = None
    searched: tuple[str, ...] = ()
    longer: str | None = None


def is_hub_name(text: str) -> bool:
    """Could it be the name of a repository on the Hub: `name` or `owner/name`?"""
    return _HUB_NAME.fullmatch(text) is not None


def is_file_pattern(text: str) -> bool:
    """Does this source of data name files, by an extension or a glob, rather than a folder or a Hub dataset?"""
    return Path(text).suffix.lower() in DATA_SUFFIXES or glob.has_magic(text)


def is_placeholder(text: str) -> bool:
    """Does it stand for a path that the user fills in, such as `path/to/texts.jsonl`?"""
    return _PLACEHOLDER.search(text) is not None


def find_named_paths(source: Source) -> tuple[NamedPath, ...]:
    """The paths in the text of a run spec, whatever else is wrong with it."""
    paths = (path for path in _walk_paths(source.data) if path.text.strip() and "\0" not in path.text)
    return tuple(path._replace(place=source.place(path.key)) for path in paths)


def _walk_paths(data: Mapping[str, Any]) -> Iterator[NamedPath]:
    model, texts, plugins = (_section(data, name) for name in ("model", "data", "plugins"))
    tokenizer = model.get("tokenizer")
    if isinstance(model.get("name_or_path"), str):
        key = ("model", "name_or_path")
        kind: PathKind = "architecture" if model.get("random_init") or plugins.get("file") else "model"
        yield NamedPath(key, key, model["name_or_path"], kind, with_tokenizer=tokenizer is None)
    if isinstance(tokenizer, str) and tokenizer != "bytes":
        yield NamedPath(("model", "tokenizer"), ("model", "tokenizer"), tokenizer, "tokenizer")
    for name in ("train", "eval"):
        yield from _walk_sources(texts.get(name), ("data", name))
    template = texts.get("chat_template")
    if isinstance(template, str) and template != "chatml":
        yield NamedPath(("data", "chat_template"), ("data", "chat_template"), template, "file")
    for name in ("file", "script"):
        if isinstance(plugins.get(name), str):
            yield NamedPath(("plugins", name), ("plugins", name), plugins[name], "file")


def _walk_sources(value: Any, key: KeyPath) -> Iterator[NamedPath]:
    entries = [(key, value)] if not isinstance(value, list) else [((*key, i), item) for i, item in enumerate(value)]
    for index, (entry_key, entry) in enumerate(entries):
        path_key = (*entry_key, "path") if isinstance(entry, dict) else entry_key
        text = entry.get("path") if isinstance(entry, dict) else entry
        if isinstance(text, str) and not text.startswith("builtin:") and not is_store_url(text):
            yield NamedPath(path_key, (*key, index, "path"), text, "data")


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    return section if isinstance(section, dict) else {}


def locate_paths(paths: Sequence[NamedPath], file: str, *, look: bool) -> tuple[LocatedPath, ...]:
    """The places of the paths that the spec `file` names, found within a second, and its placeholders. Without `look`
    only those are looked up that may be in another folder than the current one.
    """
    folder = "" if file == "-" else os.path.dirname(file)  # noqa: PTH120 - empty for the current folder
    folder = "" if folder and os.path.abspath(folder) == os.getcwd() else folder  # noqa: PTH100, PTH109
    placeholders = [LocatedPath(path, "placeholder", path.text) for path in paths if is_placeholder(path.text)]
    paths = [p for p in paths if not is_placeholder(p.text) and (look or folder or p.text.startswith("~"))]
    left_out = [LocatedPath(path, "not a path", path.text) for path in paths[_MAX_LOOKS:]]
    paths = paths[:_MAX_LOOKS]
    answers = answer_all_in_time([(path.text, partial(_try_to_locate, path, folder)) for path in paths])
    located = [
        answer[0] if answer is not None else LocatedPath(path, "silent", path.text)
        for path, answer in zip(paths, answers, strict=True)
    ]
    return (*placeholders, *located, *left_out)


def locate_hostfile(text: str, file: str, place: Place | None) -> LocatedPath:
    """The hostfile that the spec `file` names, which starts at its folder alone; looked up within a second."""
    folder = os.path.dirname(file)  # noqa: PTH120 - empty for the current folder
    named = NamedPath(HOSTFILE_KEY, HOSTFILE_KEY, text, "file", place=place)

    def locate() -> LocatedPath:
        if "\0" in text or _is_there(named, text, folder):
            return LocatedPath(named, "unusable", text)
        return LocatedPath(named, "missing", text, "does not exist", _find_similar(named, text, folder))

    (answer,) = answer_all_in_time([(_join(folder, text, is_pattern=False), locate)])
    return answer[0] if answer is not None else LocatedPath(named, "silent", text)


def with_located_paths(spec: RunSpec, located: Sequence[LocatedPath]) -> RunSpec:
    """The spec with each path as the ranks open it from the current folder."""
    changed = {item.named.field: item.path for item in located if item.path != item.named.text}
    if not changed:
        return spec
    data: dict[str, Any] = {}
    for name in ("train", "eval"):
        sources = getattr(spec.data, name)
        if sources is not None:
            keys = [("data", name, index, "path") for index in range(len(sources))]
            data[name] = tuple(
                source.model_copy(update={"path": changed[key]}) if key in changed else source
                for key, source in zip(keys, sources, strict=True)
            )
    updates: dict[str, dict[str, Any]] = {"model": {}, "data": data, "plugins": {}}
    for key, path in changed.items():
        if len(key) == 2:
            updates[str(key[0])][str(key[1])] = path
    sections = {name: getattr(spec, name).model_copy(update=update) for name, update in updates.items() if update}
    return spec.model_copy(update=sections)


def _try_to_locate(named: NamedPath, folder: str) -> LocatedPath:
    try:
        return _locate(named, folder)
    except (OSError, ValueError) as error:  # a disk that fails, a name that no file has
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        return LocatedPath(named, "unusable", named.text, f"cannot be read: {reason}")


def _locate(named: NamedPath, folder: str) -> LocatedPath:
    text = os.path.expanduser(named.text)  # noqa: PTH111 - `~nobody` stays
    is_absolute = os.path.isabs(text)  # noqa: PTH117
    folders = [""] if is_absolute or not folder else [folder, ""]
    searched = () if is_absolute else tuple(os.path.abspath(name) for name in folders)  # noqa: PTH100
    present = [name for name in folders if _is_there(named, text, name)]
    if present:
        first = present[0]
        path = _join(first, text, is_pattern=named.kind == "data")
        other = text if first and "" in present and not _is_same(path, text) else None
        reason = _find_problem(named, path)
        return LocatedPath(named, "unusable" if reason else "present", path, reason, None, other, searched)
    is_searched = named.is_path or (named.kind != "data" and "/" not in text)
    similar = next(filter(None, (_find_similar(named, text, name) for name in folders if is_searched)), None)
    if not named.is_path:
        return LocatedPath(named, "not a path", named.text, similar=similar)
    longer = None
    if similar is None:
        longer = next(filter(None, (find_longer_name(name, text) for name in folders)), None)
    return LocatedPath(named, "missing", text, _missing_reason(named), similar, None, searched, longer)


def _join(folder: str, text: str, *, is_pattern: bool) -> str:
    if not folder:
        return text
    head = glob.escape(folder) if is_pattern and glob.has_magic(text) else folder
    return str(Path(head) / text)


def _is_same(path: str, other: str) -> bool:
    try:
        return Path(path).samefile(other)
    except OSError:  # a glob: of two folders
        return False


def _is_there(named: NamedPath, text: str, folder: str) -> bool:
    """Is something there that this key could mean?"""
    path = _join(folder, text, is_pattern=named.kind == "data")
    if named.kind == "data" and glob.has_magic(text):
        return any(Path(match).is_file() for match in glob.iglob(path, recursive=True))  # noqa: PTH207 - absolute ones
    if not named.is_path and named.kind != "data":  # a folder of this name next to the spec may be any folder
        return Path(path).is_dir() and (not folder or _holds_model(Path(path)))
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a folder that may not be entered, a name that is too long
        return False


def _holds_model(folder: Path) -> bool:
    """Are there files of a model or of a tokenizer?"""
    return any((folder / name).is_file() for name in ("config.json", "tokenizer_config.json", "tokenizer.json"))


def _find_similar(named: NamedPath, text: str, folder: str) -> str | None:
    def is_usable(candidate: str) -> bool:
        if not named.is_path:
            return _holds_model(Path(folder) / candidate)
        return _is_there(named, candidate, folder)

    if glob.has_magic(text):
        stem, suffix = os.path.splitext(text)  # noqa: PTH122 - text may have a glob in it
        others = [stem + other for other in DATA_SUFFIXES if other[:3] == suffix[:3] != "" and other != suffix]
        found = next((candidate for candidate in others if is_usable(candidate)), None)
        if found is not None:
            return found
    return find_similar_path(folder, text, is_usable)


def _missing_reason(named: NamedPath) -> str:
    if named.kind == "data" and glob.has_magic(named.text):
        return "matches no file"
    return "is not a folder" if named.kind in ("model", "architecture", "tokenizer") else "does not exist"


def _find_problem(named: NamedPath, path: str) -> str:
    """Why what is there cannot be used; empty where it can."""
    if named.kind == "data" and glob.has_magic(named.text):
        return ""
    is_folder = Path(path).is_dir()
    if not os.access(path, os.R_OK | (os.X_OK if is_folder else 0)):
        return "may not be read by this user"
    if not is_folder and not Path(path).is_file():
        return "is a pipe or a device"
    if named.kind == "file":
        return "is a folder, not a file" if is_folder else ""
    if named.kind == "data":
        return "" if is_folder or is_file_pattern(named.text) else "has no extension that `data` reads"
    return _find_folder_problem(named, path) if is_folder else "is a file, not a folder"


def _find_folder_problem(named: NamedPath, folder: str) -> str:
    """The file that a folder of a model or a tokenizer lacks."""
    names = [name.lower() for name in os.listdir(folder)]  # noqa: PTH208
    if named.kind != "tokenizer" and "config.json" not in names:
        return "has no `config.json`"
    if named.kind == "model" and not any(name.endswith(_WEIGHTS) for name in names):
        return "has no weights"
    needs_tokenizer = named.kind == "tokenizer" or named.with_tokenizer
    if needs_tokenizer and not any(word in name for name in names for word in _TOKENIZER_WORDS):
        return "has no tokenizer"
    return ""
