# SPDX-License-Identifier: Apache-2.0
"""pydantic's errors about one field as findings, under the user's own keys and at their places in the file."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import ValidationError

from harness import input_limits
from harness.findings import Finding, Fix
from harness.spec.deepspeed_value_checks import describe_value
from harness.spec.parse.source import KeyPath, Source, join_key, value_at
from harness.spec.run_spec import RunSpec
from harness.spec.section_fields import inner_model, section_fields
from harness.spec.suggestions import Suggestions, nearest_name
from harness.spec.unknown_keys import describe_unknown_key

_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "`true` or `false`",
    "string_type": "a text",
    "dict_type": "a map",
    "model_type": "a map of keys",
    "tuple_type": "a list",
    "list_type": "a list",
}

_PATTERNS = {
    "name": "hold letters, digits, `.`, `_` and `-` only, at most 64",
    "telemetry.profile_steps": "be a step or a range of steps, such as `10-12`",
    "parallel.pipeline_partition_method": "be `parameters`, `uniform` or `type:CLASS`",
}
"""Fields with a pattern, and the pattern in words."""

_MAIN_KEYS = {
    "model": "model.name_or_path",
    "model.lora": "model.lora.r",
    "data": "data.train",
    "train": "train.max_steps",
    "optimizer": "optimizer.type",
    "scheduler": "scheduler.type",
    "precision": "precision.bf16",
    "zero": "zero.stage",
    "zero.offload_optimizer": "zero.offload_optimizer.device",
    "zero.offload_param": "zero.offload_param.device",
    "checkpoint": "checkpoint.save_steps",
    "eval": "eval.eval_steps",
    "logging": "logging.logging_steps",
    "telemetry": "telemetry.trackers",
}
"""A section -> the key of it that people write in its place, such as `optimizer: adamw`."""

_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def translate_errors(error: ValidationError, source: Source) -> list[Finding]:
    """One finding for each field that is wrong; alternatives of a union count once. Of more than 1,000 the rest is
    counted.
    """
    findings: dict[KeyPath, Finding] = {}
    suggestions = Suggestions()
    items = error.errors(include_url=False)
    sections_read = {path_of_location(item["loc"])[:-1] for item in items}
    for item in items[: input_limits.FINDINGS]:
        path = path_of_location(item["loc"])
        if path in sections_read:
            continue  # the plain value that stands for the section: the section's own keys say more
        finding = _finding_of_error(item, path, source, suggestions)
        if path not in findings or finding.gate == "SP005":
            findings[path] = finding
    suggested_titles = {f.fix.title for f in findings.values() if f.gate == "SP005" and f.fix}
    # A misspelt key that is also required is one mistake, not two.
    shown = [f for f in findings.values() if f.gate != "SP008" or f"did you mean `{f.key}`?" not in suggested_titles]
    left_out = items[input_limits.FINDINGS :]
    if left_out:
        place = source.place(path_of_location(left_out[0]["loc"]), of_key=True)
        message = f"{len(left_out):,} more keys from here on are wrong"
        shown.append(Finding("SP005", "error", message, place=place, fix=Fix("is this a run spec?")))
    return shown


def path_of_location(loc: tuple[int | str, ...]) -> KeyPath:
    """pydantic's location without the names of union members (`data.train.str`, `lora.LoraSpec.r`)."""
    path: list[str | int] = []
    model: Any = RunSpec
    members: tuple[str, ...] = ()
    for part in loc:
        fields = getattr(model, "model_fields", None)
        if isinstance(part, str) and part.startswith(members or ("\0",)):
            members = ()
            continue
        if fields is None and not isinstance(part, int) and model is not dict:
            break
        path.append(part)
        if isinstance(part, int):
            continue  # an entry of a list is what the list is of
        field = fields.get(part) if fields and isinstance(part, str) else None
        model = inner_model(field.annotation) if field is not None else (dict if model is dict else None)
        members = _union_members(model) if field is not None and bool in get_args(field.annotation) else ()
    return tuple(path)


def _union_members(section: Any) -> tuple[str, ...]:
    """The names by which pydantic's locations tell the alternatives of a section apart: its own, and plain values."""
    return (section.__name__, "bool", "literal[") if isinstance(section, type) and section is not dict else ()


def _finding_of_error(item: Any, path: KeyPath, source: Source, suggestions: Suggestions) -> Finding:
    kind, value = item["type"], item["input"]
    key = join_key(source.user_path(path))
    if kind == "extra_forbidden":
        section, name = path[:-1], str(path[-1])
        message = f"`{key}` is not a key of {f'`{join_key(section)}`' if section else 'a run spec'}"
        title = describe_unknown_key(section, name, suggestions)
        fix = Fix(title, *_rename_key(path, value, source, title))
        return Finding("SP005", "error", message, key, source.place(path, of_key=True), fix=fix)
    if kind == "missing" and isinstance(path[-1], int):
        message = (
            f"`{join_key(source.user_path(path[:-1]))}` is {describe_value(value)} where a list of two numbers belongs"
        )
        return Finding(
            "SP006", "error", message, key, source.place(path[:-1]), fix=Fix("write two numbers, such as `[0.9, 0.95]`")
        )
    if kind == "missing":
        message = f"`{key}` is missing"
        return Finding("SP008", "error", message, key, source.place(path[:-1], of_key=True), fix=Fix(f"write `{key}`"))
    if kind == "too_long":
        return Finding(
            "SP006",
            "error",
            f"`{key}` has more than two numbers",
            key,
            source.place(path),
            fix=Fix("write two numbers"),
        )
    if kind in _KINDS:
        expected = _expected_value(kind, path)
        message = f"`{key}` is {describe_value(value)} where {expected} belongs"
        return Finding("SP006", "error", message, key, source.place(path), fix=_type_fix(kind, path, value, expected))
    finding = Finding("SP007", "error", _range_message(item, key), key, source.place(path), fix=_range_fix(item))
    return finding._replace(notes=_NOT_AN_OBJECTIVE) if path == ("objective",) else finding


_NOT_AN_OBJECTIVE = (
    "PPO and GRPO are neither trained nor planned as a whole: plan the policy as `causal_lm`, PPO's critic as `reward`",
    "each frozen model beside them (reference, rewards) takes 2 bytes a parameter, over all GPUs under ZeRO-3",
)


def _rename_key(path: KeyPath, value: Any, source: Source, title: str) -> tuple[dict[str, Any], bool, str]:
    """The setting of a fix for a misspelt key: its value under the name of the same section that the title suggests,
    unless the file has that name too. Nothing for a name of another section or program, whose value may mean something
    else.
    """
    section, name = path[:-1], str(path[-1])
    meant = next(
        (key for key in section_fields(section) if title == f"did you mean `{join_key((*section, key))}`?"), ""
    )
    written = value_at(source.data, section)
    if not meant or value is None or not isinstance(written, dict) or name not in written or meant in written:
        return {}, False, ""
    new_key = join_key((*section, meant))
    return {join_key(path): None, new_key: value}, False, f"`{new_key}` takes effect"


def _type_fix(kind: str, path: KeyPath, value: Any, expected: str) -> Fix:
    """For a scalar in the place of a section, the key that it was probably meant for."""
    if isinstance(value, dict | list) or kind not in ("model_type", "dict_type"):
        return Fix(f"write {expected}")
    if path == ("deepspeed",):
        return Fix("write DeepSpeed's keys below it; `harness adopt FILE` converts a DeepSpeed JSON")
    key = _MAIN_KEYS.get(join_key(path))
    return Fix(f"write {expected}, such as `{key}`" if key else f"write {expected}")


def _expected_value(kind: str, path: KeyPath) -> str:
    if "betas" in path[-1:]:
        return "a list of two numbers"
    return "`true`, `false`, `auto` or a map" if path[-1:] == ("gradient_checkpointing",) else _KINDS[kind]


def _range_message(item: Any, key: str) -> str:
    value, context, kind = describe_value(item["input"]), item.get("ctx", {}), item["type"]
    if kind == "literal_error":
        return f"`{key}` is {value}, which is none of {context['expected'].replace(chr(39), '`')}"
    if kind in _LIMITS:
        name, relation = _LIMITS[kind]
        return f"`{key}` is {value}, it must be {relation} {context[name]}"
    if kind == "finite_number":
        return f"`{key}` is {value}, it must be a finite number"
    if kind == "string_pattern_mismatch":
        words = _PATTERNS.get(key)
        return f"`{key}` is {value}, it must {words or 'match `' + context['pattern'] + '`'}"
    reason = str(item["msg"]).removeprefix("Value error, ")
    return f"`{key}` is {value}: {reason[0].lower()}{reason[1:]}"


def _range_fix(item: Any) -> Fix | None:
    if item["type"] in _LIMITS:
        name, relation = _LIMITS[item["type"]]
        return Fix(f"write {relation} {item['ctx'][name]}")
    if item["type"] != "literal_error":
        return Fix("write a value that the schema allows: `harness schema`")
    choices = item["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
    similar = nearest_name(str(item["input"]), choices)
    return Fix(
        f"did you mean `{similar}`?" if similar else f"choose one of {', '.join(f'`{choice}`' for choice in choices)}"
    )
