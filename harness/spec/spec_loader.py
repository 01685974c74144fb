"""Files to a run spec, or to findings: syntax, unknown keys, wrong types and ranges. Raises nothing at a user.

What does not go together is the business of `harness.gates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.facts.deepspeed_version import resolve_target as find_target
from harness.findings import Finding, Fix
from harness.spec import config_format, deepspeed_json_checks, deepspeed_mapping
from harness.spec.overrides import apply_overrides, first_key
from harness.spec.parse.source import BOM, KeyPath, Source, decode, is_json, join_key, parse, read_bytes
from harness.spec.pydantic_errors import translate_errors
from harness.spec.run_spec import Consumer, InputKind, RunSpec

_SECTIONS = tuple(
    name for name, field in RunSpec.model_fields.items() if field.default_factory not in (None, dict) and name != "zero"
)

_VALUE_FINDINGS = ("SP006", "SP007")
_BLOCKS = ("zero_optimization", "fp16", "bf16", "optimizer", "scheduler")


class LoadedSpec(NamedTuple):
    """What became of one file. `spec` is None when there are error findings; `code` is then the exit code.

    `kind` is what gates are told (accelerate's YAML stands for the DeepSpeed JSON that it makes), `format` what the
    file is, `consumer` who reads a DeepSpeed JSON.
    """

    file: str
    source: Source | None
    spec: RunSpec | None
    findings: tuple[Finding, ...]
    kind: InputKind = "spec"
    code: ExitCode = ExitCode.OK
    consumer: Consumer | None = None
    format: config_format.ConfigFormat = "spec"


class DeepSpeedJson(NamedTuple):
    """A DeepSpeed configuration on its way to a spec: `source.data` is the JSON, `source.origin` leads from its keys to
    the user's own where those differ; `extra` is what else a run spec can say of the file, with the keys it came from.
    """

    source: Source
    findings: tuple[Finding, ...] = ()
    extra_fields: Mapping[KeyPath, tuple[Any, KeyPath]] = {}
    misspelt_keys: frozenset[str] = frozenset()
    """Keys whose value is no matter of type any more, because a finding about their spelling says so."""


def load_spec(
    file: str,
    overrides: Sequence[str] = (),
    target: DeepSpeedTarget | None = None,
    *,
    consumer: Consumer | None = None,
    text: str | None = None,
) -> LoadedSpec:
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
            return _load_json(file, text, content.startswith(BOM), overrides, target, consumer)
        return _load_yaml(file, text, overrides, target, consumer)
    except UserError as refused:
        return LoadedSpec(file, source, None, refused.findings, code=refused.code)


def _load_yaml(
    file: str, text: str, given: Sequence[str], target: DeepSpeedTarget, consumer: Consumer | None
) -> LoadedSpec:
    try:
        source = parse(text, file)
    except UserError as refused:
        raise _template_error(refused, text) from None
    found = config_format.detect_format(source)
    if found == "accelerate-yaml":
        return _load_accelerate(source, given, target, consumer)
    config_format.require_supported_format(source, found)
    return _load_run_spec(apply_overrides(source, given), target)


def _load_json(
    file: str, text: str, bom: bool, given: Sequence[str], target: DeepSpeedTarget, consumer: Consumer | None
) -> LoadedSpec:
    from harness.spec import json_dialects
    from harness.spec.parse import json_parser

    try:
        reading = json_parser.parse_lenient(text, file)
    except UserError as refused:
        raise _template_error(refused, text) from None
    found = config_format.detect_format(reading.source)
    if found == "accelerate-yaml":
        return _load_accelerate(parse(text, file), given, target, consumer)
    config_format.require_supported_format(reading.source, found)
    if found == "spec":
        return _load_run_spec(apply_overrides(parse(text, file), given), target)
    template = json_dialects.find_template(reading)
    if template is not None:
        raise UserError([template])
    odd = frozenset(join_key(item.path) for item in reading.nonstandard_syntax if json_dialects.is_misread_text(item))
    fragment = DeepSpeedJson(reading.source, reading.duplicate_keys, misspelt_keys=odd)
    loaded = load_deepspeed_json(fragment, given, target, consumer)
    spelling = list(json_dialects.check_dialect(reading, loaded.consumer or "deepspeed", bom=bom))
    return _with_exit_code(loaded._replace(findings=(*loaded.findings, *spelling)))


def _template_error(refused: UserError, text: str) -> UserError:
    """A template's placeholder where the syntax failed is told as that."""
    from harness.spec import json_dialects

    place = refused.findings[0].place
    if refused.findings[0].gate != "SP002" or place is None:
        return refused
    word = json_dialects.find_placeholder(text, place.line, place.column)
    return UserError([json_dialects.template_finding(word, place)]) if word else refused


def _load_accelerate(
    source: Source, given: Sequence[str], target: DeepSpeedTarget, consumer: Consumer | None
) -> LoadedSpec:
    from harness.spec import accelerate_config

    its_own = [text for text in given if accelerate_config.is_accelerate_key(first_key(text))]
    fragment = accelerate_config.to_deepspeed_json(apply_overrides(source, its_own, given))
    rest = [text for text in given if text not in its_own]
    who = consumer or (None if _needs_trainer(fragment.source.data) else "accelerate")
    loaded = load_deepspeed_json(fragment, rest, target, who, given)
    return loaded._replace(format="accelerate-yaml")


def _needs_trainer(config: Mapping[str, Any]) -> bool:
    """Does it leave values open that the Trainer fills in, and accelerate alone does not? The Trainer runs below
    `accelerate launch`, too (transformers: `propagate_args_to_deepspeed`).
    """
    from harness.spec import auto_values as readers

    return not (readers.FILLED_BY_TRAINER - readers.FILLED_BY_ACCELERATE).isdisjoint(readers.find_auto_values(config))


def _load_run_spec(source: Source, target: DeepSpeedTarget) -> LoadedSpec:
    findings: list[Finding] = []
    raw = dict(source.data)
    extra = raw.get("deepspeed")
    if isinstance(extra, dict):
        findings += deepspeed_json_checks.check_deepspeed_json(extra, source, ("deepspeed",), target)
        findings += _duplicate_field_findings(extra, source)
    spec, wrong = _validate_spec(raw, source)
    return _with_exit_code(LoadedSpec(source.file, source, spec, (*wrong, *findings)))


def load_deepspeed_json(
    fragment: DeepSpeedJson,
    given: Sequence[str],
    target: DeepSpeedTarget,
    consumer: Consumer | None,
    all_given: Sequence[str] | None = None,
) -> LoadedSpec:
    """A DeepSpeed configuration as a run spec. Overrides of its own keys count in it, those of a run spec beside it.

    `all_given` are the options as they were given, where `given` are only some of them.
    """
    from harness.spec import auto_values as readers

    ours = [text for text in given if _is_spec_override(text)]
    source = apply_overrides(fragment.source, [text for text in given if text not in ours], all_given or given)
    findings = [*fragment.findings, *deepspeed_json_checks.check_deepspeed_json(source.data, source, (), target)]
    findings = [f for f in findings if f.gate not in _VALUE_FINDINGS or f.key not in fragment.misspelt_keys]
    raw, origin = deepspeed_mapping.map_deepspeed_json(deepspeed_json_checks.convert_as_deepspeed(source.data, target))
    origin = {path: _user_path(source.origin, there) for path, there in origin.items()}
    for path, there in source.origin.items():
        origin.setdefault(deepspeed_mapping.spec_field_of(path) or path, there)
    for path, (value, there) in fragment.extra_fields.items():
        raw.setdefault(str(path[0]), {})[str(path[1])] = value
        origin[path] = there
    ours_set = apply_overrides(source._replace(data=raw), ours, all_given or given)
    origin |= {path: path for path in ours_set.spots.keys() - source.spots.keys()}
    source = ours_set._replace(data=source.data, origin={**source.origin, **origin})
    spec, wrong = _validate_spec(ours_set.data, source)
    told = {f.place for f in wrong} if fragment.source.origin else ()  # in the words of the user's own keys
    findings = [f for f in findings if f.place not in told]
    refused = {f.key for f in findings if f.is_error}
    findings += [f for f in wrong if f.key not in refused and f.key not in fragment.misspelt_keys]
    if any(f.gate == "SP006" and f.key in _BLOCKS and f.is_error for f in findings):
        spec = None  # nothing can be said about combinations with a block that nobody can read
    who = consumer or readers.guess_consumer(source.data)
    findings += readers.describe_auto_values(source, who) if consumer is None else ()
    found = LoadedSpec(
        source.file, source, spec, tuple(findings), "deepspeed-json", consumer=who, format="deepspeed-json"
    )
    return _with_exit_code(found)


def _is_spec_override(text: str) -> bool:
    """Is an override about a run spec's section rather than about a key of DeepSpeed's JSON?"""
    from harness.facts.deepspeed_keys import block_keys

    first = first_key(text)
    return first in RunSpec.model_fields and first not in (block_keys("") or {})


def _user_path(origin: Mapping[KeyPath, KeyPath], path: KeyPath) -> KeyPath:
    for end in range(len(path), 0, -1):
        if path[:end] in origin:
            return origin[path[:end]] + path[end:]
    return path


def _with_exit_code(loaded: LoadedSpec) -> LoadedSpec:
    """With errors there is no spec to go on with, and the exit code says so."""
    failed = any(f.is_error for f in loaded.findings)
    return loaded._replace(code=ExitCode.FINDINGS) if failed else loaded


def _validate_spec(raw: dict[str, Any], source: Source) -> tuple[RunSpec | None, list[Finding]]:
    # Written-out sections spare pydantic a validator for each default section: a tenth of the start-up time.
    full = {**{name: {} for name in _SECTIONS}, "zero": {"stage": 0}}
    full |= {name: value for name, value in raw.items() if value is not None or name not in full}
    try:
        return RunSpec.model_validate(full), []
    except ValidationError as error:
        return None, translate_errors(error, source)


def _duplicate_field_findings(extra: dict[str, Any], source: Source) -> Iterable[Finding]:
    """Keys of the `deepspeed` section that have a field of their own: two places for one thing is one too many."""
    for path, home in deepspeed_mapping.covered_keys(extra):
        here = ("deepspeed", *path)
        yield Finding(
            "SP010",
            "error",
            f"`{join_key(here)}` has a field of its own, `{join_key(home)}`",
            join_key(here),
            source.place(here, of_key=True),
            notes=("two places for one setting would disagree some day",),
            fix=Fix(f"set `{join_key(home)}` and remove it here"),
        )
