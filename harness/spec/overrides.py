# SPDX-License-Identifier: Apache-2.0
"""`--set key=value`: values in place of those of a file, with places that point at the command line.

Knows no key's meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.errors import ExitCode, UserError, user_error
from harness.findings import Finding, Fix, Place
from harness.spec.parse.source import EntryPlace, KeyPath, Source, copy_values, split_key


def apply_overrides(source: Source, overrides: Sequence[str], all_overrides: Sequence[str] | None = None) -> Source:
    """The source with the values in place. Raises UserError for an option that is no `key=value` or leads nowhere.

    `all_overrides` are the options of the command line, where `overrides` are only some of them: their positions are
    the line numbers of the findings.
    """
    if not overrides:
        return source
    options = list(overrides if all_overrides is None else all_overrides)
    data: dict[str, Any] = copy_values(source.data)
    spots = dict(source.spots)
    for text in overrides:
        number = options.index(text) + 1
        key, value = _split_override(text, number)
        place = Place("--set", number, 1, len(key))
        path = split_key(key.strip())
        try:
            from harness.spec.parse import yaml_parser

            _set_value(data, path, yaml_parser.parse_scalar(value), text, place)
        except UserError as error:
            findings = [_move_to_option(finding, number, len(key) + 1) for finding in error.findings]
            raise UserError(findings, ExitCode.USAGE) from None
        spots = {place_path: spot for place_path, spot in spots.items() if place_path[: len(path)] != path}
        spots[path] = EntryPlace(place, Place("--set", number, len(key) + 2, len(value)))
        for end in range(1, len(path)):
            spots.setdefault(path[:end], EntryPlace(place, place))
    return source._replace(data=data, spots=spots, extra_lines={**source.extra_lines, "--set": options})


def first_key(text: str) -> str:
    """The section of an override: `train` of `train.max_steps=1`."""
    return text.partition("=")[0].strip().partition(".")[0]


def _split_override(text: str, number: int) -> tuple[str, str]:
    """Key and value. Raises UserError for an option without both."""
    key, equals, value = text.partition("=")
    if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
        raise user_error(
            "SP011", "a `--set` holds bytes that are not UTF-8 text", fix="write it as text", code=ExitCode.USAGE
        )
    if not equals or not all(key.strip().split(".")):
        fix = Fix("write it as `--set train.max_steps=10`")
        place = Place("--set", number, 1, len(key))
        raise UserError(
            [Finding("SP011", "error", f"`--set {text}` is not `key=value`", place=place, fix=fix)], ExitCode.USAGE
        )
    return key, value


def _move_to_option(finding: Finding, number: int, columns: int) -> Finding:
    """A finding about a value, at its place in the `--set` option."""
    place = finding.place
    if place is None or finding.gate == "SP011":
        return finding
    return finding._replace(place=Place("--set", number, place.column + columns, place.length))


def _set_value(data: Any, path: KeyPath, value: Any, text: str, place: Place) -> None:
    for part in path[:-1]:
        if isinstance(data, dict):
            if data.get(str(part)) is None:
                data[str(part)] = {}
            data = data[str(part)]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            data = None
    if isinstance(data, dict) and value is None:
        data.pop(str(path[-1]), None)  # `--set key=null` takes the key out, so that its default is back
    elif isinstance(data, dict):
        data[str(path[-1])] = value
    elif isinstance(data, list) and isinstance(path[-1], int) and path[-1] < len(data):
        data[path[-1]] = value
    else:
        message, fix = (
            f"`--set {text}` goes into a value that is not a map",
            "set the whole section, or a key inside it",
        )
        raise UserError([Finding("SP011", "error", message, place=place, fix=Fix(fix))], ExitCode.USAGE)
