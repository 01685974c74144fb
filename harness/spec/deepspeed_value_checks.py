# SPDX-License-Identifier: Apache-2.0
"""Findings about values of a DeepSpeed JSON that are of another kind than their keys take.

`harness.facts.deepspeed_values` has DeepSpeed's reading of a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.facts.deepspeed_keys import Key, block_keys, is_typed_block
from harness.facts.deepspeed_values import ValueReading, interpret_value
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix, Place
from harness.spec.deepspeed_mapping import spec_key
from harness.spec.parse.source import KeyPath, join_key
from harness.spec.suggestions import nearest_name

_TYPE_WORDS = {
    "bool": "`true` or `false`",
    "switch": "`true` or `false`",
    "flag": "`true` or `false`",
    "int": "a whole number",
    "number": "a number",
    "str": "a text",
    "list": "a list",
    "blocks": "a list of maps",
    "dict": "a map",
    "block": "a map",
    "maps": "a map of maps",
}
_CHECKED_BY_GATES = frozenset(
    """communication_data_type seq_parallel_communication_data_type torch_autocast.dtype data_types.grad_accum_dtype
    data_types.param_dtype data_types.buffer_dtype""".split()
)
"""Keys whose wrong words have a gate with a page."""
_SIGNS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def check_value(
    key: Key, value: Any, key_path: KeyPath, path: str, place: Place, target: DeepSpeedTarget
) -> Iterator[Finding]:
    """At most one finding about the value of `key` in the block `path`. "auto" is not checked here."""
    if value == "auto" or key.type == "any":
        return
    if key.name == "zero_optimization" and isinstance(value, bool):
        yield _boolean_stage_finding(value, key_path, place)
        return
    is_typed = is_typed_block(path, target.version)
    reading = interpret_value(key, value, is_typed=is_typed, version=target.version)
    if reading.outcome == "as written":
        return
    if reading.out_of_range and (f"{path}.{key.name}" if path else key.name) in _CHECKED_BY_GATES:
        return
    if reading.out_of_range:
        yield _out_of_range_finding(key, value, key_path, place, target)
    elif key.type == "python":
        message = f"`{join_key(key_path)}` takes a Python object, which JSON cannot express"
        fix = Fix("remove it", {spec_key(key_path): None}, effect="DeepSpeed takes its default")
        yield Finding("SP006", "error", message, join_key(key_path), place, notes=(_REFUSED,), fix=fix)
    else:
        yield _wrong_type_finding(key, value, reading, key_path, path, place, is_typed)


def convert_as_deepspeed(config: dict[str, Any], target: DeepSpeedTarget, path: str = "") -> dict[str, Any]:
    """A copy of a DeepSpeed JSON with values that DeepSpeed itself converts (`"5"`, `"true"`, 2.0) converted."""
    keys = block_keys(path) or {}
    is_typed = is_typed_block(path, target.version)
    converted: dict[str, Any] = {}
    for name, value in config.items():
        key = keys.get(name)
        converted[name] = value
        if key is None or value == "auto":
            continue
        if key.type == "block" and isinstance(value, dict):
            converted[name] = convert_as_deepspeed(value, target, f"{path}.{key.alias or name}" if path else name)
        elif key.type in ("bool", "switch", "flag", "int", "number"):
            reading = interpret_value(key, value, is_typed=is_typed, version=target.version)
            if reading.outcome == "converted" or (reading.outcome == "as written" and isinstance(value, float)):
                converted[name] = reading.value
    return converted


def describe_value(value: Any) -> str:
    """A value and its kind, for a message: `the text "8"`, `a list`, `8.5`."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'the text "{value[:40]}"'
    if isinstance(value, (list, tuple)):
        return "a list"
    return "a map" if isinstance(value, dict) else f"`{value}`"


def _boolean_stage_finding(value: bool, key_path: KeyPath, place: Place) -> Finding:
    name, stage = join_key(key_path), int(value)
    message = f"`{name}: {str(value).lower()}` is an old form"
    spec_changes = {"deepspeed.zero_optimization": None, "zero.stage": stage}
    sets = spec_changes if key_path[0] == "deepspeed" else {"deepspeed.zero_optimization": {"stage": stage}}
    fix = Fix(f'write `{{"stage": {stage}}}`', sets, safe=True)
    notes = (f"DeepSpeed takes it as stage {stage}",)
    return Finding("SP014", "warning", message, name, place, notes=notes, fix=fix)


def _wrong_type_finding(
    key: Key, value: Any, reading: ValueReading, key_path: KeyPath, path: str, place: Place, is_typed: bool
) -> Finding:
    expected = _TYPE_WORDS[key.type]
    message = f"`{join_key(key_path)}` is {describe_value(value)} where {expected} belongs"
    title, sets, severity = f"write {expected}", {}, "error"
    if reading.outcome == "converted":
        severity, sets = "warning", {spec_key(key_path): reading.value}
        title = f"write `{_to_json(reading.value)}`"
    elif key.type == "block":
        title += _example_of_block(value, f"{path}.{key.alias or key.name}" if path else key.name)
    fix = Fix(title, sets, safe=bool(sets))
    notes = (_describe_consequence(key, value, reading, path, is_typed),)
    return Finding(
        "SP006", "warning" if severity == "warning" else "error", message, join_key(key_path), place,
        notes=notes, fix=fix,
    )  # fmt: skip


def _example_of_block(value: Any, path: str) -> str:
    """A block with the key that the value was probably meant for; empty where that is not known."""
    keys = block_keys(path) or {}
    meant: Any
    if isinstance(value, bool):
        name, meant = ("device", "cpu" if value else "none") if "device" in keys else ("enabled", value)
    else:
        name, meant = next(((name, value) for name in ("device", "stage", "type") if name in keys), ("", None))
        name = name if isinstance(value, str) != (name == "stage") else ""
    return f", such as `{_to_json({name: meant})}`" if name in keys else ""


_REFUSED = "DeepSpeed refuses it once every rank has started"
_LATE_FAILURES = {
    "gradient_clipping": "DeepSpeed reads it unchecked and fails at the first step",
    "steps_per_print": "DeepSpeed reads it unchecked and fails at the first step",
    "autotp_size": "DeepSpeed compares it with 0 before it converts anything, and names no key",
    "activation_checkpoint_interval": "DeepSpeed fails on it while the engine is built and names no key",
}
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _describe_consequence(key: Key, value: Any, reading: ValueReading, path: str, is_typed: bool) -> str:
    if reading.outcome == "converted":
        return f"DeepSpeed takes it as `{_to_json(reading.value)}`"
    if reading.outcome == "misread":
        return _describe_misreading(key, value, reading)
    return _REFUSED if is_typed and not key.raw else _describe_failure(key, value, path)


def _describe_misreading(key: Key, value: Any, reading: ValueReading) -> str:
    if key.type != "switch":
        return f"DeepSpeed counts it as {reading.value:g}"
    explanation = "any text is true here, even `false`" if isinstance(value, str) else "any value but 0 is true here"
    return f"DeepSpeed takes it as `{_to_json(reading.value)}`: {explanation}"


def _describe_failure(key: Key, value: Any, path: str) -> str:
    """The consequence of a value of the wrong kind where DeepSpeed does not check types."""
    is_batch_key = path == "" and key.name in _BATCH_KEYS
    if is_batch_key and isinstance(value, float):
        return "DeepSpeed accepts it and computes with the fraction"
    if is_batch_key or key.type in ("block", "flag", "maps"):
        return "DeepSpeed fails on it once every rank has started, and names no key"
    if key.name in _LATE_FAILURES:
        return _LATE_FAILURES[key.name]
    return "DeepSpeed checks no types in this block: it fails later, or the value has no effect"


def _out_of_range_finding(key: Key, value: Any, key_path: KeyPath, place: Place, target: DeepSpeedTarget) -> Finding:
    name, version = join_key(key_path), target.version
    note = _REFUSED
    if key.allowed:
        similar = nearest_name(str(value), key.allowed) if isinstance(value, str) else None
        choices = ", ".join(f"`{word}`" for word in key.allowed)
        message = f"`{name}` is {describe_value(value)}, which is none of {choices}"
        if len(message) > 150:
            message = f"`{name}` is {describe_value(value)}, which DeepSpeed does not know"
        sets = {spec_key(key_path): similar} if similar else {}
        fix = Fix(f"did you mean `{similar}`?" if similar else f"write one of {choices}", sets, effect="it is read")
        return Finding("SP007", "error", message, name, place, notes=(note,), fix=fix)
    if key.filled and not value:
        message, title = f"`{name}` is empty", "write a text, or remove it"
        return Finding("SP007", "error", message, name, place, notes=(note,), fix=Fix(title))
    violated = [
        bound
        for bound in key.bounds
        if not bound.allows(float(value)) and (bound.since is None or version >= bound.since)
    ]
    expected = f"{_SIGNS[violated[0].op]} {violated[0].limit:g}" if violated else "in range"
    message = f"`{name}` is {describe_value(value)}, it must be {expected}"
    return Finding("SP007", "error", message, name, place, notes=(note,), fix=Fix(f"write {expected}"))


def _to_json(value: Any) -> str:
    import json

    return json.dumps(value)
