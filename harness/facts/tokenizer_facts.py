# SPDX-License-Identifier: Apache-2.0
"""The size of a tokenizer's vocabulary and its chat template, from its files. Loads no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness import input_limits
from harness.facts.model_lookup import find_model_folder
from harness.file_io import parse_json, read_regular
from harness.hostinfo.path_probe import answer_in_time

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
