# SPDX-License-Identifier: Apache-2.0
"""A tokenizer against the model and the data of a run, where its files are on this machine: the ids that have no
embedding, and chats without a template.

The ranks refuse both, with the same ids, once they have started.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness import input_limits
from harness.facts.model_lookup import find_configuration
from harness.file_io import open_regular, parse_json, read_regular
from harness.findings import Finding, Fix
from harness.hostinfo.path_probe import answer_in_time
from harness.hostinfo.stored_models import find_model_folder
from harness.spec.named_paths import is_placeholder
from harness.spec.run_spec import ModelSpec
from harness.spec.sections.data_spec import CHAT_FORMATS, DataSource, DataSpec

_CHAT_BUILTIN = "builtin:python-docstrings-chat"
_CHAT_COLUMNS = ("messages", "conversations")
_MAX_RECORD_BYTES = 2**20
_MAX_OWN_VOCABULARY_BYTES = 4 * 2**20
"""Of a tokenizer in the model's own folder, which seldom differs from it: larger ones take too long to read."""


def check_tokenizer(model: ModelSpec, data: DataSpec) -> list[Finding]:
    """The findings MD101 and MD127 about the tokenizer of a run; none where its files are not here."""
    name = model.tokenizer or model.name_or_path
    if name is None or is_placeholder(name):
        return []
    limits = () if model.tokenizer is not None else (_MAX_OWN_VOCABULARY_BYTES,)
    tokenizer = find_tokenizer(name, model.revision, *limits)
    if tokenizer is None:
        return []
    return [*_check_vocabulary(model, tokenizer), *_check_template(data, tokenizer)]


def _check_vocabulary(model: ModelSpec, tokenizer: TokenizerFacts) -> Iterator[Finding]:
    config = find_configuration(model.name_or_path, model.config, None, model.revision) or {}
    inner = config.get("text_config")
    size = (inner if isinstance(inner, dict) else config).get("vocab_size")
    if tokenizer.num_tokens is None or not isinstance(size, int) or tokenizer.num_tokens <= size:
        return
    message = f"the tokenizer has {tokenizer.num_tokens:,} tokens, the model embeddings for {size:,}"
    notes = ("an id without an embedding ends in an index error or, on a GPU, in a device-side assertion",)
    if model.config is not None:
        key, rows = "model.config.vocab_size", -(-tokenizer.num_tokens // 64) * 64
        fix = Fix(f"set `{key}` to {rows}", {key: rows}, effect="a larger embedding")
    elif model.tokenizer is not None:
        key = "model.tokenizer"
        fix = Fix(f"remove `{key}`: the model has its own", {key: None}, effect="another tokenizer")
    else:
        key, fix = "model.name_or_path", Fix("resize the embeddings of the model, or name the model's own tokenizer")
    yield Finding("MD101", "error", message, key, notes=notes, fix=fix)


def _check_template(data: DataSpec, tokenizer: TokenizerFacts) -> Iterator[Finding]:
    if tokenizer.has_chat_template or data.chat_template is not None:
        return
    chats = next((item for item in (*(data.train or ()), *(data.eval or ())) if _has_chats(item, data)), None)
    if chats is not None:
        message = f"`{chats.path}` has chats, and the tokenizer has no chat template"
        key = "data.chat_template"
        fix = Fix("set it to `chatml`, or name a file", {key: "chatml"}, effect="the format of the turns")
        notes = ("the tokenizer of a base model often lacks one",)
        yield Finding("MD127", "error", message, key, notes=notes, fix=fix)


def _has_chats(item: DataSource, data: DataSpec) -> bool:
    if item.weight == 0:
        return False
    chosen = item.format or data.format
    if chosen != "auto":
        return chosen in CHAT_FORMATS
    if item.path == _CHAT_BUILTIN:
        return True
    if not item.path.lower().endswith((".jsonl", ".json")):
        return False
    try:
        return answer_in_time(item.path, lambda: _begins_with_chat(item.path, data))
    except (OSError, ValueError):
        return False


def _begins_with_chat(path: str, data: DataSpec) -> bool:
    """Has the first record of a file, or of the first file of a glob, the columns of a chat, as the ranks detect them
    for `data.format: auto`?
    """
    names = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else [path]  # noqa: PTH207
    if not names:
        return False
    with open_regular(Path(names[0])) as file:
        text = file.read(_MAX_RECORD_BYTES).decode("utf-8-sig", errors="replace")
    record, _ = json.JSONDecoder().raw_decode(text.lstrip().removeprefix("[").lstrip())
    if not isinstance(record, dict):
        return False
    if data.messages_column is not None:
        return data.messages_column in record
    return data.text_column not in record and any(column in record for column in _CHAT_COLUMNS)


_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
BYTE_TOKENS = 258
"""Tokens of `model.tokenizer: bytes`: the bytes, end of text and padding."""


class TokenizerFacts(NamedTuple):
    """`num_tokens` as `len(tokenizer)` counts them; None where no file tells."""

    num_tokens: int | None
    has_chat_template: bool


def find_tokenizer(
    name: str, revision: str | None = None, max_bytes: int = input_limits.TOKENIZER
) -> TokenizerFacts | None:
    """Facts of a tokenizer: `bytes`, a folder, or a name in the local Hugging Face cache. None where its files are not
    here, cannot be read, or do not answer in time. A vocabulary of more than `max_bytes` is not read.
    """
    if name == "bytes":
        return TokenizerFacts(BYTE_TOKENS, has_chat_template=True)
    folder = find_model_folder(name, revision)
    if folder is None:
        return None
    try:
        return answer_in_time(folder, lambda: _read_facts(folder, max_bytes))
    except (OSError, ValueError):
        return None


def _read_facts(folder: Path, max_bytes: int) -> TokenizerFacts | None:
    config = _read_object(folder / "tokenizer_config.json", input_limits.TOKENIZER)
    core = _read_object(folder / "tokenizer.json", max_bytes)
    if config is None and core is None:
        return None
    has_template = bool((config or {}).get("chat_template")) or any(
        (folder / name).exists() for name in _TEMPLATE_FILES
    )
    tokens = {*_iter_tokens(core or {}), *_iter_added_tokens(config or {})} if core is not None else None
    return TokenizerFacts(None if tokens is None else len(tokens), has_template)


def _read_object(path: Path, limit: int) -> dict[str, Any] | None:
    try:
        value = parse_json(read_regular(path, limit))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _iter_tokens(core: Mapping[str, Any]) -> Iterator[str]:
    """The tokens of `tokenizer.json`: a map of ids (BPE, WordPiece) or a list of pairs with scores (Unigram)."""
    model = core.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary
    elif isinstance(vocabulary, list):
        yield from (str(entry[0]) for entry in vocabulary if isinstance(entry, list) and entry)
    added = core.get("added_tokens")
    for entry in added if isinstance(added, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str):
            yield entry["content"]


def _iter_added_tokens(config: Mapping[str, Any]) -> Iterator[str]:
    """The tokens that `tokenizer_config.json` adds."""
    added = config.get("added_tokens_decoder")
    for entry in added.values() if isinstance(added, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str):
            yield entry["content"]
