# SPDX-License-Identifier: Apache-2.0
"""Files to a run spec, or to findings: syntax, unknown keys, wrong types and ranges. Raises nothing at a user.

A DeepSpeed configuration may also be a Python dict, pasted from a script or a tutorial: parsed, and never run.

`harness.gates` checks combinations.
"""

from __future__ import annotations

import ast
import copy
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.facts.deepspeed_version import resolve_target as find_target
from harness.findings import Finding, Fix, Place
from harness.spec import config_format, deepspeed_json_checks, deepspeed_mapping
from harness.spec.deepspeed_mapping import DeepSpeedJson
from harness.spec.deepspeed_value_checks import convert_as_deepspeed
from harness.spec.overrides import apply_overrides, first_key
from harness.spec.parse.source import (
    BOM,
    KeyPath,
    Source,
    decode,
    input_error,
    is_json,
    join_key,
    read_bytes,
    split_key,
)
from harness.spec.parse.source_parser import parse, parse_lenient
from harness.spec.pydantic_errors import translate_errors
from harness.spec.run_spec import Consumer, InputKind, RunSpec
from harness.spec.unread_values import adapt_to_reader, soften_unread_values

if TYPE_CHECKING:
    from harness.spec.partial_spec import PartialSpec

_MAX_DICT_LENGTH = 200_000
_SECTIONS = tuple(
    name for name, field in RunSpec.model_fields.items() if field.default_factory not in (None, dict) and name != "zero"
)

_VALUE_FINDINGS = ("SP006", "SP007")
_BLOCKS = ("zero_optimization", "fp16", "bf16", "optimizer", "scheduler")


class LoadedSpec(NamedTuple):
    """The result of loading one file. `spec` is None with error findings; `code` is then the exit code.

    `kind` is the kind that gates see (accelerate's YAML stands for the DeepSpeed JSON that it makes), `format` the
    file's own, `consumer` the reader of a DeepSpeed JSON. `partial` is the readable part of a spec with errors.
    """

    file: str
    source: Source | None
    spec: RunSpec | None
    findings: tuple[Finding, ...]
    kind: InputKind = "spec"
    code: ExitCode = ExitCode.OK
    consumer: Consumer | None = None
    format: config_format.ConfigFormat = "spec"
    partial: PartialSpec | None = None

    @property
    def readable(self) -> RunSpec | None:
        """The spec, or else its readable part."""
        return self.partial.spec if self.partial is not None else self.spec


def load_spec(
    file: str,
    overrides: Sequence[str] = (),
    target: DeepSpeedTarget | None = None,
    *,
    consumer: Consumer | None = None,
    text: str | None = None,
) -> LoadedSpec:
    """Read a run spec, a DeepSpeed JSON or an accelerate YAML, and apply `--set key=value` overrides.

    `target` is the DeepSpeed version of the keys; default: the installed one. `consumer` is the reader of a DeepSpeed
    JSON; default: guessed by its "auto" values. `text` is the file's, where the caller has it already (standard input
    under a name, a file while it is fixed).
    """
    target = target or find_target()
    source: Source | None = None
    try:
        content = read_bytes(file) if text is None else text.encode()
        text = decode(content, file)
        source = Source(
            file, "yaml", text, {}, extra_lines={"--set": list(overrides)}
        )  # for quotes from a file that cannot be parsed
        if is_json(file, text):
            return _load_json(file, text, content.startswith(BOM), overrides, target, consumer)
        return _load_yaml(file, text, overrides, target, consumer)
    except UserError as error:
        return LoadedSpec(file, source, None, error.findings, code=error.code)


def _load_yaml(
    file: str, text: str, overrides: Sequence[str], target: DeepSpeedTarget, consumer: Consumer | None
) -> LoadedSpec:
    try:
        source = parse(text, file)
    except UserError as error:
        raise find_python_dict(text, file) or _template_error(error, text) from None
    file_format = config_format.detect_format(source)
    if file_format == "accelerate-yaml":
        return _load_accelerate(source, overrides, target, consumer)
    config_format.require_supported_format(source, file_format)
    return _load_run_spec(apply_overrides(source, overrides), target)


def _load_json(
    file: str, text: str, bom: bool, overrides: Sequence[str], target: DeepSpeedTarget, consumer: Consumer | None
) -> LoadedSpec:
    from harness.spec import json_dialects

    try:
        document = parse_lenient(text, file)
    except UserError as error:
        raise find_python_dict(text, file) or _template_error(error, text) from None
    file_format = config_format.detect_format(document.source)
    if file_format == "accelerate-yaml":
        return _load_accelerate(parse(text, file), overrides, target, consumer)
    config_format.require_supported_format(document.source, file_format)
    if file_format == "spec":
        return _load_run_spec(apply_overrides(parse(text, file), overrides), target)
    template = json_dialects.find_template(document)
    if template is not None:
        raise UserError([template])
    misspelt = frozenset(
        join_key(item.path) for item in document.nonstandard_syntax if json_dialects.is_misread_text(item)
    )
    fragment = DeepSpeedJson(document.source, document.duplicate_keys, misspelt_keys=misspelt)
    loaded = load_deepspeed_json(fragment, overrides, target, consumer)
    dialect_findings = list(json_dialects.check_dialect(document, loaded.consumer or "deepspeed", bom=bom))
    return _with_exit_code(loaded._replace(findings=(*loaded.findings, *dialect_findings)))


def _template_error(error: UserError, text: str) -> UserError:
    """The finding about a template where its placeholder is the syntax error."""
    from harness.spec import json_dialects

    place = error.findings[0].place
    if error.findings[0].gate != "SP002" or place is None:
        return error
    word = json_dialects.find_placeholder(text, place.line, place.column)
    return UserError([json_dialects.template_finding(word, place)]) if word else error


def _load_accelerate(
    source: Source, overrides: Sequence[str], target: DeepSpeedTarget, consumer: Consumer | None
) -> LoadedSpec:
    from harness.spec import accelerate_config

    accelerate_overrides = [text for text in overrides if accelerate_config.is_accelerate_key(first_key(text))]
    fragment = accelerate_config.to_deepspeed_json(apply_overrides(source, accelerate_overrides, overrides))
    other_overrides = [text for text in overrides if text not in accelerate_overrides]
    reader = consumer or (None if _has_trainer_auto_values(fragment.source.data) else "accelerate")
    loaded = load_deepspeed_json(fragment, other_overrides, target, reader, overrides)
    return loaded._replace(format="accelerate-yaml")


def _has_trainer_auto_values(config: Mapping[str, Any]) -> bool:
    """Does it have "auto" values that the Trainer fills in, and accelerate alone does not? The Trainer runs under
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
    spec, partial, errors = _validate_spec(raw, source)
    return _with_exit_code(LoadedSpec(source.file, source, spec, (*errors, *findings), partial=partial))


def load_deepspeed_json(
    fragment: DeepSpeedJson,
    overrides: Sequence[str],
    target: DeepSpeedTarget,
    consumer: Consumer | None,
    all_overrides: Sequence[str] | None = None,
) -> LoadedSpec:
    """A DeepSpeed configuration as a run spec. Overrides of its own keys apply to the JSON, those of a run spec to the
    spec.

    `all_overrides` are the options of the command line, where `overrides` are only some of them.
    """
    from harness.spec import auto_values as readers

    spec_overrides = [text for text in overrides if _is_spec_override(text)]
    source = apply_overrides(
        fragment.source, [text for text in overrides if text not in spec_overrides], all_overrides or overrides
    )
    findings = [*fragment.findings, *deepspeed_json_checks.check_deepspeed_json(source.data, source, (), target)]
    findings = [
        finding
        for finding in findings
        if finding.gate not in _VALUE_FINDINGS or finding.key not in fragment.misspelt_keys
    ]
    raw, origin = deepspeed_mapping.map_deepspeed_json(convert_as_deepspeed(source.data, target))
    origin = {path: _user_path(source.origin, user_path) for path, user_path in origin.items()}
    for path, user_path in source.origin.items():
        origin.setdefault(deepspeed_mapping.spec_field_of(path) or path, user_path)
    for path, (value, user_path) in fragment.extra_fields.items():
        raw.setdefault(str(path[0]), {})[str(path[1])] = value
        origin[path] = user_path
    spec_source = apply_overrides(source._replace(data=raw), spec_overrides, all_overrides or overrides)
    origin |= {path: path for path in spec_source.spots.keys() - source.spots.keys()}
    source = spec_source._replace(data=source.data, origin={**source.origin, **origin})
    spec, partial, errors = _validate_spec(spec_source.data, source)
    errors = soften_unread_values(errors, source.data, target)
    findings = soften_unread_values(findings, source.data, target)
    if errors and not any(finding.is_error for finding in errors):
        spec, partial, _ = _validate_spec(_without_values(spec_source.data, errors), source)
    # Errors of the spec name the user's own keys there, and replace findings about the JSON at the same places.
    error_places = {finding.place for finding in errors} if fragment.source.origin else ()
    findings = [finding for finding in findings if finding.place not in error_places]
    error_keys = {finding.key for finding in findings if finding.is_error}
    findings += [
        finding for finding in errors if finding.key not in error_keys and finding.key not in fragment.misspelt_keys
    ]
    blocks = [f.key for f in findings if f.gate == "SP006" and f.key in _BLOCKS and f.is_error]
    fields = deepspeed_mapping.find_maps_as_values(source.data)
    if blocks or fields:
        from harness.spec.partial_spec import paths_of_blocks

        unreadable = paths_of_blocks(blocks) | fields
        spec, partial = None, _without_keys(partial, spec, unreadable)
    reader = consumer or readers.guess_consumer(source.data)
    findings = list(adapt_to_reader(findings, source.data, reader))
    findings += readers.describe_auto_values(source, reader) if consumer is None else ()
    loaded = LoadedSpec(
        source.file,
        source,
        spec,
        tuple(findings),
        "deepspeed-json",
        consumer=reader,
        format="deepspeed-json",
        partial=partial,
    )
    return _with_exit_code(loaded)


def _without_values(raw: dict[str, Any], findings: Iterable[Finding]) -> dict[str, Any]:
    """A copy without the values of the offload sections that these findings are about."""
    raw = copy.deepcopy(raw)
    for finding in findings:
        _, section, name = split_key(finding.key)
        raw["zero"][section].pop(name)
    return raw


def _without_keys(partial: PartialSpec | None, spec: RunSpec | None, keys: frozenset[KeyPath]) -> PartialSpec | None:
    """The readable part of a spec without these keys of its DeepSpeed JSON."""
    from harness.spec.partial_spec import guard_spec

    if partial is not None:
        return guard_spec(partial.spec, partial.unreadable | keys)
    return guard_spec(spec, keys) if spec is not None else None


def _is_spec_override(text: str) -> bool:
    """Does an override name a run spec's section rather than a key of DeepSpeed's JSON?"""
    from harness.facts.deepspeed_keys import block_keys

    first = first_key(text)
    return first in RunSpec.model_fields and first not in (block_keys("") or {})


def _user_path(origin: Mapping[KeyPath, KeyPath], path: KeyPath) -> KeyPath:
    for end in range(len(path), 0, -1):
        if path[:end] in origin:
            return origin[path[:end]] + path[end:]
    return path


def _with_exit_code(loaded: LoadedSpec) -> LoadedSpec:
    """The exit code of the findings: errors leave no usable spec."""
    has_errors = any(finding.is_error for finding in loaded.findings)
    return loaded._replace(code=ExitCode.FINDINGS) if has_errors else loaded


def _validate_spec(raw: dict[str, Any], source: Source) -> tuple[RunSpec | None, PartialSpec | None, list[Finding]]:
    """The spec, or its readable part and the findings about the rest."""
    # Written-out sections spare pydantic a validator for each default section: a tenth of the start-up time.
    sections = {**{name: {} for name in _SECTIONS}, "zero": {"stage": 0}}
    sections |= {name: value for name, value in raw.items() if value is not None or name not in sections}
    try:
        return RunSpec.model_validate(sections), None, []
    except ValidationError as error:
        from harness.spec.partial_spec import read_partial_spec

        return None, read_partial_spec(sections, error), translate_errors(error, source)


def _duplicate_field_findings(extra: dict[str, Any], source: Source) -> Iterable[Finding]:
    """Keys of the `deepspeed` section with a field of their own: one setting in two places."""
    for path, field in deepspeed_mapping.covered_keys(extra):
        key_path = ("deepspeed", *path)
        yield Finding(
            "SP010",
            "error",
            f"`{join_key(key_path)}` has its own field in a run spec, `{join_key(field)}`",
            join_key(key_path),
            source.place(key_path, of_key=True),
            notes=("two places for one setting can disagree",),
            fix=Fix(f"set `{join_key(field)}` and remove it here"),
        )


def find_python_dict(text: str, file: str) -> UserError | None:
    """The error that the text is a Python dict: assigned to a name, or with `True`, `False` or `None`. None for
    anything else, JSON with comments or single quotes too.
    """
    body = _parse_python(text)
    for statement in body:
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)) else None
        if not isinstance(value, ast.Dict) or not value.keys:
            continue
        name = _name_of(statement)
        if name is None and not any(
            isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, bool))
            for node in ast.walk(value)
        ):
            return None
        shown = f" (`{name} = {{...}}`)" if name else ""
        title = (
            f"write it by `json.dump({name or 'config'}, open('ds_config.json', 'w'), indent=2)` and check that file"
        )
        place = Place(file, statement.lineno, statement.col_offset + 1)
        return input_error("SP002", f"this is a Python dict{shown}, not JSON", place, title)
    return None


def _parse_python(text: str) -> list[ast.stmt]:
    if len(text) > _MAX_DICT_LENGTH or _is_json(text):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _name_of(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Assign):
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    return target.id if isinstance(target, ast.Name) else "config"
