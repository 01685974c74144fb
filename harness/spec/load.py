"""Files to a run spec, or to findings: syntax, unknown keys, wrong types and ranges. Raises nothing at a user.

What does not go together is the business of `harness.gates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from harness.errors import Exit, Refused
from harness.facts.deepspeed import Target
from harness.facts.deepspeed import target as find_target
from harness.findings import Finding, Fix, Place
from harness.spec import adopt, deepspeed_json
from harness.spec.field_errors import translate
from harness.spec.model import InputKind, RunSpec
from harness.spec.source import Path, Source, Spot, dotted, parse, read_text, refuse, split_key

_SECTIONS = tuple(
    name for name, field in RunSpec.model_fields.items() if field.default_factory not in (None, dict) and name != "zero"
)


@dataclass(frozen=True)
class Loaded:
    """What became of one file. `spec` is None when there are error findings; `code` is then the exit code."""

    file: str
    source: Source | None
    spec: RunSpec | None
    findings: tuple[Finding, ...]
    kind: InputKind = "spec"
    code: Exit = Exit.OK


def load(file: str, overrides: Sequence[str] = (), target: Target | None = None) -> Loaded:
    """Read a run spec or a DeepSpeed JSON and apply `--set key=value` overrides.

    `target` is the DeepSpeed whose keys are known; default: the installed one.
    """
    source: Source | None = None
    try:
        text = read_text(file)
        source = Source(file, "yaml", text, {}, extra_lines={"--set": list(overrides)})  # to quote from, if need be
        source = _apply(parse(text, file), overrides)
        _refuse_other_formats(source)
    except Refused as refused:
        return Loaded(file, source, None, refused.findings, code=refused.code)
    target = target or find_target()
    if source.syntax == "json" and looks_like_deepspeed(source.data):
        return _from_deepspeed_json(source, target)
    return _from_spec(source, target)


def looks_like_deepspeed(data: dict[str, Any]) -> bool:
    """Has a JSON more top-level keys of DeepSpeed's than of a run spec? (A YAML file is always a run spec.)"""
    from harness.facts.deepspeed_keys import block

    known = block("") or {}
    ours = sum(key in RunSpec.model_fields for key in data if key not in ("optimizer", "scheduler", "checkpoint"))
    theirs = sum(key in known and key not in RunSpec.model_fields for key in data)
    if ours or theirs:
        return theirs > ours
    return "type" in (data.get("optimizer") or {}) and "params" in (data.get("optimizer") or {})


def _refuse_other_formats(source: Source) -> None:
    """One finding instead of one a key, for YAML that is something else altogether."""
    if source.syntax != "yaml":
        return
    place = Place(source.file, 1, 1)
    if {"compute_environment", "distributed_type", "deepspeed_config"} & source.data.keys():
        title = "give the DeepSpeed JSON that it names, or write a run spec"
        raise refuse("SP016", "this is an accelerate configuration, not a run spec", place, title)
    if (
        len(source.data) > 1
        and looks_like_deepspeed(source.data)
        and not RunSpec.model_fields.keys() & source.data.keys()
    ):
        raise refuse(
            "SP016", "this is a DeepSpeed configuration in YAML", place, "save it as JSON, which DeepSpeed reads"
        )


def _from_spec(source: Source, target: Target) -> Loaded:
    findings: list[Finding] = []
    raw = dict(source.data)
    extra = raw.get("deepspeed")
    if isinstance(extra, dict):
        findings += deepspeed_json.check(extra, source, ("deepspeed",), target)
        findings += _owned_keys(extra, source)
    spec, wrong = _validate(raw, source)
    return _loaded(source, spec, [*wrong, *findings], "spec")


def _from_deepspeed_json(source: Source, target: Target) -> Loaded:
    findings = deepspeed_json.check(source.data, source, (), target)
    raw, origin = adopt.adopt(source.data)
    source = replace(source, origin=origin)
    refused = {f.key for f in findings if f.is_error}
    spec, wrong = _validate(raw, source)
    findings += [f for f in wrong if f.key not in refused]
    findings += _autos(source)
    return _loaded(source, spec, findings, "deepspeed-json")


def _loaded(source: Source, spec: RunSpec | None, findings: list[Finding], kind: InputKind) -> Loaded:
    failed = any(f.is_error for f in findings)
    return Loaded(source.file, source, spec, tuple(findings), kind, Exit.FINDINGS if failed else Exit.OK)


def _validate(raw: dict[str, Any], source: Source) -> tuple[RunSpec | None, list[Finding]]:
    # Written-out sections spare pydantic a validator for each default section: a tenth of the start-up time.
    full = {**{name: {} for name in _SECTIONS}, "zero": {"stage": 0}}
    full |= {name: value for name, value in raw.items() if value is not None or name not in full}
    try:
        return RunSpec.model_validate(full), []
    except ValidationError as error:
        return None, translate(error, source)


def _owned_keys(extra: dict[str, Any], source: Source) -> Iterable[Finding]:
    """Keys of the `deepspeed` section that have a field of their own: two places for one thing is one too many."""
    for path, home in adopt.owned(extra):
        here = ("deepspeed", *path)
        yield Finding(
            "SP010",
            "error",
            f"`{dotted(here)}` has a field of its own, `{dotted(home)}`",
            dotted(here),
            source.place(here, of_key=True),
            notes=("two places for one setting would disagree some day",),
            fix=Fix(f"set `{dotted(home)}` and remove it here"),
        )


def _autos(source: Source) -> list[Finding]:
    places = [path for path, value in _walk(source.data, ()) if value == "auto"]
    if not places:
        return []
    first = dotted(places[0])
    count = f"{len(places)} values are" if len(places) > 1 else "1 value is"
    return [
        Finding(
            "SP015",
            "info",
            f'{count} "auto", the first is `{first}`',
            first,
            source.place(places[0]),
            notes=(
                "the Hugging Face Trainer and accelerate fill them in; DeepSpeed takes the default, or fails on them",
                "they count as not given here",
            ),
        )
    ]


def _walk(value: Any, path: Path) -> Iterable[tuple[Path, Any]]:
    yield path, value
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _walk(item, (*path, name))


def _apply(source: Source, overrides: Sequence[str]) -> Source:
    """The source with `--set` values in place; their spots point at the command line."""
    if not overrides:
        return source
    from harness.spec import yaml_source

    data: dict[str, Any] = _copy(source.data)
    spots = dict(source.spots)
    for number, text in enumerate(overrides, start=1):
        key, equals, value = text.partition("=")
        place = Place("--set", number, 1, len(key))
        if not text.isprintable() and any("\ud800" <= char <= "\udfff" for char in text):
            found = Finding(
                "SP011", "error", "a `--set` holds bytes that are not UTF-8 text", fix=Fix("write it as text")
            )
            raise Refused([found], Exit.USAGE)
        if not equals or not all(key.strip().split(".")):
            raise Refused(
                [
                    Finding(
                        "SP011",
                        "error",
                        f"`--set {text}` is not `key=value`",
                        place=place,
                        fix=Fix("write it as `--set train.max_steps=10`"),
                    )
                ],
                Exit.USAGE,
            )
        path = split_key(key.strip())
        try:
            _set(data, path, yaml_source.scalar(value), text, place)
        except Refused as refused:
            moved = [_moved(finding, number, len(key) + 1) for finding in refused.findings]
            raise Refused(moved, Exit.USAGE) from None
        spots = {p: s for p, s in spots.items() if p[: len(path)] != path}
        spots[path] = Spot(place, Place("--set", number, len(key) + 2, len(value)))
        for end in range(1, len(path)):
            spots.setdefault(path[:end], Spot(place, place))
    return replace(source, data=data, spots=spots, extra_lines={"--set": list(overrides)})


def _moved(finding: Finding, number: int, columns: int) -> Finding:
    """A finding about a value, at its place in the `--set` option."""
    place = finding.place
    if place is None or finding.gate == "SP011":
        return finding
    return replace(finding, place=Place("--set", number, place.column + columns, place.length))


def _set(data: Any, path: Path, value: Any, text: str, place: Place) -> None:
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
        raise Refused(
            [
                Finding(
                    "SP011",
                    "error",
                    f"`--set {text}` leads into a value that is no map",
                    place=place,
                    fix=Fix("set the whole section, or a key that can be inside it"),
                )
            ],
            Exit.USAGE,
        )


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value
