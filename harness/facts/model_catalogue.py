# SPDX-License-Identifier: Apache-2.0
"""Well-known models as their published configurations. Parameter counts are never stored: they are computed.

`model_catalogue.json` has them, with its date and the command that adds one, and as `same` of a model those with its
configuration, as `short` what else it is called; fields left out are the defaults of `transformers`. A folder or the
local Hugging Face cache wins over this list, since a run trains that one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_DATA: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
LANGUAGE_PART_ONLY: tuple[str, ...] = tuple(_DATA["language_part_only"])
"""Starts of the names of repositories that hold a vision tower, which is not counted."""
CLASS_DEFAULTS: frozenset[str] = frozenset(_DATA["class_defaults"])
"""Models whose own file was not read: the defaults of the class of `transformers` whose documentation names them."""
_SHORT_NAMES: Mapping[str, Mapping[str, Any]] = {
    short: config for config in _DATA["models"].values() for short in config.pop("short", ())
}
CATALOGUE: Mapping[str, Mapping[str, Any]] = {
    each: config for name, config in _DATA["models"].items() for each in (name, *config.pop("same", ()))
}
_STAGE_WORDS = frozenset("instruct chat it pt base hf thinking meta fp8 bf16 sft dpo".split())
"""Parts of a name that say how a model was trained further, or how it is stored, not what its sizes are."""
_VERSION = re.compile(r"v0\.\d|\d{4}")


def _drop_words(name: str, versions: bool = False) -> str:
    """A name without its owner and the words for stages of training; with `versions` also without `v0.1` and `2507`."""
    words = name.lower().rpartition("/")[2].split("-")
    return "-".join(w for w in words if w not in _STAGE_WORDS and not (versions and _VERSION.fullmatch(w)))


def _index(versions: bool) -> dict[str, Mapping[str, Any]]:
    """Configurations by their shortened names, where all the models of one name have the same."""
    index: dict[str, Mapping[str, Any] | None] = {}
    for name, config in CATALOGUE.items():
        key = _drop_words(name, versions)
        index[key] = config if index.get(key, config) == config else None
    return {key: config for key, config in index.items() if config is not None}


_BY_NAME = {name.lower(): config for name, config in CATALOGUE.items()}
_BY_NAME |= {name.split("/", 1)[1].lower(): config for name, config in CATALOGUE.items()}
_BY_SIZES = _index(versions=False)
_BY_SIZES_OF_ANY_VERSION = _index(versions=True)
_OWNERS = frozenset(name.split("/", 1)[0].lower() for name in CATALOGUE)


def catalogue_config(name: str) -> Mapping[str, Any] | None:
    """The configuration of a model by its Hub name, with or without its owner; case does not matter, nor do words such
    as `Instruct`, where all models of the name that is left have the same sizes.
    """
    lower_name = name.lower()[:200]
    owner, _, short_name = lower_name.rpartition("/")
    if lower_name in _BY_NAME:
        return _BY_NAME[lower_name]
    if owner and owner not in _OWNERS:
        return None
    if short_name in _SHORT_NAMES:
        return _SHORT_NAMES[short_name]
    return _BY_SIZES.get(_drop_words(short_name)) or _BY_SIZES_OF_ANY_VERSION.get(_drop_words(short_name, True))


def describe_origin(name: str, config: Mapping[str, Any]) -> str:
    """A remark on an entry, in parentheses after the catalogue's name; empty for a file that was read whole."""
    if any(CATALOGUE[each] is config for each in CLASS_DEFAULTS):
        return " (the defaults of its class in `transformers`)"
    short_name = name.lower().rpartition("/")[2]
    is_part = any(short_name.startswith(start.lower().rpartition("/")[2]) for start in LANGUAGE_PART_ONLY)
    return " (the language model alone)" if is_part else ""


_SIZE = re.compile(r"(?<![\d.a-z])(\d+(?:\.\d+)?)([bm])(?![a-z])")
_MOST_NAMES = 3


@lru_cache(maxsize=64)
def closest_names(name: str) -> tuple[str, ...]:
    """Up to three names of the catalogue that somebody may mean by a name that is not in it, the nearest first: of the
    same size where the name has one, `Qwen 32B`, and of the same family where the catalogue has it, `mistral`. Of a
    family that it lacks, those of the nearest size.
    """
    plain_name = name.lower()[:200].rpartition("/")[2].replace("_", "-").replace(" ", "-")
    size, families = size_in_name(plain_name), set(_families(plain_name))
    near = {known: _distance(plain_name, size, families, known) for known in CATALOGUE}
    least = min(near.values(), default=(False, False, 1.0, 0.0))
    if least[0] and (size is None or least[2] > _SAME_SIZE):
        return ()
    names: dict[str, str] = {}
    for known in sorted((known for known in near if near[known][:2] == least[:2]), key=lambda known: near[known]):
        names.setdefault(_drop_words(known, versions=True), known if "/" in name else known.lower().rpartition("/")[2])
    return tuple(names.values())[:_MOST_NAMES]


def is_misspelt(name: str) -> bool:
    """Is it a letter or so away from a short name of the catalogue?"""
    import difflib

    return bool(difflib.get_close_matches(name.lower()[:200], _BY_NAME, 1, 0.93))


_SAME_SIZE = 0.25
"""Of the parameters, between a name's figure and that of a model which it may stand for."""


def _distance(name: str, size: float | None, families: set[str], known: str) -> tuple[bool, bool, float, float]:
    """Is it of no family of the name, is it of another size, by which share, and how unlike are the names?"""
    import difflib

    short_name = known.lower().rpartition("/")[2]
    plain, its_plain = (_drop_words(each).replace("-", "") for each in (name, short_name))
    matcher = difflib.SequenceMatcher(None, plain, its_plain)
    its_families, its_size = _families(short_name), size_in_name(short_name)
    is_family = any(mine in its for mine in families for its in its_families)
    is_family |= matcher.ratio() > 0.8
    away = 1.0 if size is None or its_size is None else abs(its_size - size) / size
    return not is_family, size is not None and away > _SAME_SIZE, away if size else 0.0, -matcher.ratio()


def _families(name: str) -> list[str]:
    """The words of a name that are neither a size nor a stage of training."""
    return [word for word in re.findall(r"[a-z]{3,}", name) if word not in _STAGE_WORDS]


def size_in_name(name: str) -> float | None:
    """Parameters that a name says, 7e9 for `llama-7b`; None where it says none."""
    sizes = _SIZE.findall(name.lower())
    return float(sizes[-1][0]) * {"b": 1e9, "m": 1e6}[sizes[-1][1]] or None if sizes else None
