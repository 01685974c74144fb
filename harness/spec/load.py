"""Files to a run spec, or to findings: syntax, unknown keys, wrong types and ranges. Raises nothing at a user.

What does not go together is the business of `harness.gates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.errors import Exit, Refused
from harness.facts.deepspeed import Target
from harness.facts.deepspeed import target as find_target
from harness.findings import Finding, Fix
from harness.spec import adopt, deepspeed_json, formats
from harness.spec.field_errors import translate
from harness.spec.model import Consumer, InputKind, RunSpec
from harness.spec.overrides import apply, first_key
from harness.spec.source import BOM, Path, Source, decode, dotted, is_json, parse, read_bytes

_SECTIONS = tuple(
    name for name, field in RunSpec.model_fields.items() if field.default_factory not in (None, dict) and name != "zero"
)

_OF_VALUES = ("SP006", "SP007")
_BLOCKS = ("zero_optimization", "fp16", "bf16", "optimizer", "scheduler")


class Loaded(NamedTuple):
    """What became of one file. `spec` is None when there are error findings; `code` is then the exit code.

    `kind` is what gates are told (accelerate's YAML stands for the DeepSpeed JSON that it makes), `format` what the
    file is, `consumer` who reads a DeepSpeed JSON.
    """

    file: str
    source: Source | None
    spec: RunSpec | None
    findings: tuple[Finding, ...]
    kind: InputKind = "spec"
    code: Exit = Exit.OK
    consumer: Consumer | None = None
    format: formats.Format = "spec"


class Fragment(NamedTuple):
    """A DeepSpeed configuration on its way to a spec: `source.data` is the JSON, `source.origin` leads from its keys to
    the user's own where those differ; `extra` is what else a run spec can say of the file, with the keys it came from.
    """

    source: Source
    findings: tuple[Finding, ...] = ()
    extra: Mapping[Path, tuple[Any, Path]] = {}
    said_elsewhere: frozenset[str] = frozenset()
    """Keys whose value is no matter of type any more, because a finding about their spelling says so."""


def load(
    file: str,
    overrides: Sequence[str] = (),
    target: Target | None = None,
    *,
    consumer: Consumer | None = None,
    text: str | None = None,
) -> Loaded:
    """Read a run spec, a DeepSpeed JSON or an accelerate YAML, and apply `--set key=value` overrides.

    `target` is the DeepSpeed whose keys are known; default: the installed one. `consumer` is who reads a DeepSpeed
    JSON; default: guessed by what it leaves open. `text` is the file's, where it is in hand already (standard input
    under a name, a file that is being mended).
    """
    target = target or find_target()
    source: Source | None = None
    try:
        content = read_bytes(file) if text is None else text.encode()
        text = decode(content, file)
        source = Source(file, "yaml", text, {}, extra_lines={"--set": list(overrides)})  # to quote from, if need be
        if is_json(file, text):
            return _from_json(file, text, content.startswith(BOM), overrides, target, consumer)
        return _from_yaml(file, text, overrides, target, consumer)
    except Refused as refused:
        return Loaded(file, source, None, refused.findings, code=refused.code)


def _from_yaml(file: str, text: str, given: Sequence[str], target: Target, consumer: Consumer | None) -> Loaded:
    try:
        source = parse(text, file)
    except Refused as refused:
        raise _template(refused, text) from None
    found = formats.format_of(source)
    if found == "accelerate-yaml":
        return _from_accelerate(source, given, target, consumer)
    formats.refuse_other(source, found)
    return _from_spec(apply(source, given), target)


def _from_json(
    file: str, text: str, bom: bool, given: Sequence[str], target: Target, consumer: Consumer | None
) -> Loaded:
    from harness.spec import json_source, loaders

    try:
        reading = json_source.parse_any(text, file)
    except Refused as refused:
        raise _template(refused, text) from None
    found = formats.format_of(reading.source)
    if found == "accelerate-yaml":
        return _from_accelerate(parse(text, file), given, target, consumer)
    formats.refuse_other(reading.source, found)
    if found == "spec":
        return _from_spec(apply(parse(text, file), given), target)
    template = loaders.template(reading)
    if template is not None:
        raise Refused([template])
    odd = frozenset(dotted(item.path) for item in reading.liberties if loaders.not_meant_as_text(item))
    fragment = Fragment(reading.source, reading.twice, said_elsewhere=odd)
    loaded = from_fragment(fragment, given, target, consumer)
    spelling = list(loaders.check(reading, loaded.consumer or "deepspeed", bom=bom))
    return _failing(loaded._replace(findings=(*loaded.findings, *spelling)))


def _template(refused: Refused, text: str) -> Refused:
    """A template's placeholder where the syntax failed is told as that."""
    from harness.spec import loaders

    place = refused.findings[0].place
    if refused.findings[0].gate != "SP002" or place is None:
        return refused
    word = loaders.placeholder(text, place.line, place.column)
    return Refused([loaders.template_finding(word, place)]) if word else refused


def _from_accelerate(source: Source, given: Sequence[str], target: Target, consumer: Consumer | None) -> Loaded:
    from harness.spec import accelerate

    its_own = [text for text in given if accelerate.is_own(first_key(text))]
    fragment = accelerate.fragment(apply(source, its_own, given))
    rest = [text for text in given if text not in its_own]
    who = consumer or (None if _needs_trainer(fragment.source.data) else "accelerate")
    loaded = from_fragment(fragment, rest, target, who, given)
    return loaded._replace(format="accelerate-yaml")


def _needs_trainer(config: Mapping[str, Any]) -> bool:
    """Does it leave values open that the Trainer fills in, and accelerate alone does not? The Trainer runs below
    `accelerate launch`, too (transformers: `propagate_args_to_deepspeed`).
    """
    from harness.spec import consumer as readers

    return not (readers.BY_TRAINER - readers.BY_ACCELERATE).isdisjoint(readers.autos(config))


def _from_spec(source: Source, target: Target) -> Loaded:
    findings: list[Finding] = []
    raw = dict(source.data)
    extra = raw.get("deepspeed")
    if isinstance(extra, dict):
        findings += deepspeed_json.check(extra, source, ("deepspeed",), target)
        findings += _owned_keys(extra, source)
    spec, wrong = _validate(raw, source)
    return _failing(Loaded(source.file, source, spec, (*wrong, *findings)))


def from_fragment(
    fragment: Fragment,
    given: Sequence[str],
    target: Target,
    consumer: Consumer | None,
    all_given: Sequence[str] | None = None,
) -> Loaded:
    """A DeepSpeed configuration as a run spec. Overrides of its own keys count in it, those of a run spec beside it.

    `all_given` are the options as they were given, where `given` are only some of them.
    """
    from harness.spec import consumer as readers

    ours = [text for text in given if _is_ours(text)]
    source = apply(fragment.source, [text for text in given if text not in ours], all_given or given)
    findings = [*fragment.findings, *deepspeed_json.check(source.data, source, (), target)]
    findings = [f for f in findings if f.gate not in _OF_VALUES or f.key not in fragment.said_elsewhere]
    raw, origin = adopt.adopt(deepspeed_json.as_read(source.data, target))
    origin = {path: _through(source.origin, there) for path, there in origin.items()}
    for path, there in source.origin.items():
        origin.setdefault(adopt.home(path) or path, there)
    for path, (value, there) in fragment.extra.items():
        raw.setdefault(str(path[0]), {})[str(path[1])] = value
        origin[path] = there
    ours_set = apply(source._replace(data=raw), ours, all_given or given)
    origin |= {path: path for path in ours_set.spots.keys() - source.spots.keys()}
    source = ours_set._replace(data=source.data, origin={**source.origin, **origin})
    spec, wrong = _validate(ours_set.data, source)
    told = {f.place for f in wrong} if fragment.source.origin else ()  # in the words of the user's own keys
    findings = [f for f in findings if f.place not in told]
    refused = {f.key for f in findings if f.is_error}
    findings += [f for f in wrong if f.key not in refused and f.key not in fragment.said_elsewhere]
    if any(f.gate == "SP006" and f.key in _BLOCKS and f.is_error for f in findings):
        spec = None  # nothing can be said about combinations with a block that nobody can read
    who = consumer or readers.guess(source.data)
    findings += readers.said(source, who) if consumer is None else ()
    found = Loaded(source.file, source, spec, tuple(findings), "deepspeed-json", consumer=who, format="deepspeed-json")
    return _failing(found)


def _is_ours(text: str) -> bool:
    """Is an override about a run spec's section rather than about a key of DeepSpeed's JSON?"""
    from harness.facts.deepspeed_keys import block

    first = first_key(text)
    return first in RunSpec.model_fields and first not in (block("") or {})


def _through(origin: Mapping[Path, Path], path: Path) -> Path:
    for end in range(len(path), 0, -1):
        if path[:end] in origin:
            return origin[path[:end]] + path[end:]
    return path


def _failing(loaded: Loaded) -> Loaded:
    """With errors there is no spec to go on with, and the exit code says so."""
    failed = any(f.is_error for f in loaded.findings)
    return loaded._replace(code=Exit.FINDINGS) if failed else loaded


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
