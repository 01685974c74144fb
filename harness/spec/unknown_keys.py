# SPDX-License-Identifier: Apache-2.0
"""A key that the run spec does not know: a misspelling, a key of another section, or another program's name."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from harness.spec.parse.source import KeyPath, join_key, split_key
from harness.spec.run_spec import RunSpec
from harness.spec.section_fields import inner_model, section_fields
from harness.spec.suggestions import Suggestions, plain_name, similarity

_FOREIGN_SIMILARITY = 0.85
"""Names of other programs are many: only a near one is meant."""


class ForeignName(NamedTuple):
    """Another program's name: the key of the run spec that it stands for, or the advice what to do instead."""

    key: str | None
    advice: str = ""


def describe_unknown_key(section: KeyPath, name: str, suggestions: Suggestions) -> str:
    """The key that was probably meant by a name in this section, or what to do instead, for the help of a finding."""
    return (
        _describe_exact_match(section, name)
        or _describe_near_match(section, name, suggestions)
        or _describe_known_keys(section)
    )


def describe_name(name: str) -> str | None:
    """The key that is meant by another program's name or a misspelt one; None for a name that is like no other."""
    *sections, last = split_key(name)
    section = tuple(sections)
    return _describe_exact_match(section, str(last)) or _describe_near_match(section, str(last), Suggestions())


def find_foreign_name(name: str) -> ForeignName | None:
    """The key or the advice for a name of another program, by itself or with a section in front; None for a name of no
    program.
    """
    from harness.spec.trainer_names import ADVICE, SPEC_KEYS

    *section, last = map(str, split_key(name))
    plain = plain_name(last)
    for candidate in (f"{'.'.join(section)}.{plain}", plain):
        if candidate in SPEC_KEYS:
            return ForeignName(SPEC_KEYS[candidate])
        if candidate in ADVICE:
            return ForeignName(None, ADVICE[candidate])
    return None


def find_meant_key(path: KeyPath, suggestions: Suggestions) -> str | None:
    """The whole key that an unknown one probably stands for; None where nothing is near."""
    from harness.spec.trainer_names import SPEC_KEYS

    section, name = path[:-1], str(path[-1])
    plain, siblings = plain_name(name), section_fields(section)
    sibling = {plain_name(key): key for key in siblings}.get(plain)
    if sibling:
        return join_key((*section, sibling))
    foreign = SPEC_KEYS.get(f"{join_key(section)}.{plain}", SPEC_KEYS.get(plain))
    homes = _sections_by_key().get(plain)
    near = suggestions.nearest_name(name, siblings)
    return foreign or (_join_home(homes[0], plain) if homes else join_key((*section, near)) if near else None)


def _describe_exact_match(section: KeyPath, name: str) -> str | None:
    """A name that somebody uses: this section with other hyphens, another program, another section, DeepSpeed."""
    plain = plain_name(name)
    sibling = {plain_name(key): key for key in section_fields(section)}.get(plain)
    if sibling:
        return f"did you mean `{join_key((*section, sibling))}`?"
    foreign = _describe_foreign_name(section, plain)
    if foreign:
        return foreign
    homes = _sections_by_key().get(plain)
    if homes and name != plain:
        return f"did you mean `{_join_home(homes[0], plain)}`?"
    if homes:
        return f"`{name}` belongs {' or '.join(f'in `{home}`' if home else 'at the top level' for home in homes)}"
    from harness.facts.deepspeed_keys import block_keys

    return f"`{name}` belongs in `deepspeed`" if plain in (block_keys("") or {}) else None


def _describe_foreign_name(section: KeyPath, plain: str) -> str | None:
    """The key or the advice for another program's name; a name of this section alone comes first."""
    foreign = find_foreign_name(f"{join_key(section)}.{plain}" if section else plain)
    if foreign is None:
        return None
    return f"did you mean `{foreign.key}`?" if foreign.key is not None else foreign.advice


def _describe_near_match(section: KeyPath, name: str, suggestions: Suggestions) -> str | None:
    """A misspelt name: of this section, else of another section or program."""
    sibling = suggestions.nearest_name(name, section_fields(section))
    if sibling:
        return f"did you mean `{join_key((*section, sibling))}`?"
    from harness.spec.trainer_names import ADVICE, SPEC_KEYS

    other = suggestions.nearest_name(name, (*_sections_by_key(), *SPEC_KEYS, *ADVICE))
    if other is None or similarity(name, other) < _FOREIGN_SIMILARITY:
        return None
    if other in SPEC_KEYS:
        return f"did you mean `{SPEC_KEYS[other]}`?"
    if other in ADVICE:
        return ADVICE[other]
    return f"did you mean `{_join_home(_sections_by_key()[other][0], other)}`?"


def _join_home(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _describe_known_keys(section: KeyPath) -> str:
    keys = section_fields(section)
    return f"known here: {', '.join(f'`{key}`' for key in keys)}" if keys else "remove it"


@cache
def _sections_by_key() -> dict[str, list[str]]:
    """Each key with the sections that have it; the top level is ``."""
    homes: dict[str, list[str]] = {name: [""] for name in RunSpec.model_fields}
    for section, field in RunSpec.model_fields.items():
        model = inner_model(field.annotation)
        for name in model.model_fields if model not in (None, dict) else ():
            homes.setdefault(name, []).append(section)
    return homes
