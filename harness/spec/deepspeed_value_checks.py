"""What to say about a value in a DeepSpeed JSON that is of another kind than its key takes.

What DeepSpeed makes of the value is `harness.facts.deepspeed_values`' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.facts.deepspeed_keys import Key, block_keys, is_typed_block
from harness.facts.deepspeed_values import ValueReading, interpret_value
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix
from harness.spec.parse.source import KeyPath, Source, join_key
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
"""Keys whose wrong words a gate tells, with a page."""
_SIGNS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def check_value(
    key: Key, value: Any, here: KeyPath, path: str, source: Source, target: DeepSpeedTarget
) -> Iterator[Finding]:
    """At most one finding about the value of `key`, which stands in the block `path`. "auto" is not judged here."""
    if value == "auto" or key.type == "any":
        return
    if key.name == "zero_optimization" and isinstance(value, bool):
        yield _boolean_stage_finding(value, here, source)
        return
    typed = is_typed_block(path, target.version)
    taken = interpret_value(key, value, typed=typed, version=target.version)
    if taken.outcome == "as written":
        return
    if taken.out_of_range and (f"{path}.{key.name}" if path else key.name) in _CHECKED_BY_GATES:
        return
    if taken.out_of_range:
        yield _out_of_range_finding(key, value, here, source, target)
    elif key.type == "python":
        message = f"`{join_key(here)}` takes an object of Python's, which JSON cannot say"
        fix = Fix("remove it", {_spec_key(here): None}, safe=True)
        yield Finding("SP006", "error", message, join_key(here), source.place(here), notes=(_REFUSED,), fix=fix)
    else:
        yield _wrong_type_finding(key, value, taken, here, path, source, typed)


def convert_as_deepspeed(config: dict[str, Any], target: DeepSpeedTarget, path: str = "") -> dict[str, Any]:
    """A copy of a DeepSpeed JSON with values that DeepSpeed itself converts (`"5"`, `"true"`, 2.0) converted."""
    known = block_keys(path) or {}
    typed = is_typed_block(path, target.version)
    copy: dict[str, Any] = {}
    for name, value in config.items():
        key = known.get(name)
        copy[name] = value
        if key is None or value == "auto":
            continue
        if key.type == "block" and isinstance(value, dict):
            copy[name] = convert_as_deepspeed(value, target, f"{path}.{key.alias or name}" if path else name)
        elif key.type in ("bool", "switch", "flag", "int", "number"):
            taken = interpret_value(key, value, typed=typed, version=target.version)
            if taken.outcome == "converted" or (taken.outcome == "as written" and isinstance(value, float)):
                copy[name] = taken.value
    return copy


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


def _spec_key(here: KeyPath) -> str:
    from harness.spec.deepspeed_json_checks import spec_key

    return spec_key(here)


def _boolean_stage_finding(value: bool, here: KeyPath, source: Source) -> Finding:
    name, stage = join_key(here), int(value)
    message = f"`{name}: {str(value).lower()}` is an old form"
    ours = {"deepspeed.zero_optimization": None, "zero.stage": stage}
    sets = ours if here[0] == "deepspeed" else {"deepspeed.zero_optimization": {"stage": stage}}
    fix = Fix(f'write `{{"stage": {stage}}}`', sets, safe=True)
    notes = (f"DeepSpeed takes it as stage {stage}",)
    return Finding("SP014", "warning", message, name, source.place(here), notes=notes, fix=fix)


def _wrong_type_finding(
    key: Key, value: Any, taken: ValueReading, here: KeyPath, path: str, source: Source, typed: bool
) -> Finding:
    words = _TYPE_WORDS[key.type]
    message = f"`{join_key(here)}` is {describe_value(value)} where {words} belongs"
    title, sets, severity = f"write {words}", {}, "error"
    if taken.outcome == "converted":
        severity, sets = "warning", {_spec_key(here): taken.value}
        title = f"write `{_to_json(taken.value)}`"
    fix = Fix(title, sets, safe=bool(sets))
    notes = (_describe_consequence(key, value, taken, path, typed),)
    return Finding(
        "SP006", "warning" if severity == "warning" else "error", message, join_key(here), source.place(here),
        notes=notes, fix=fix,
    )  # fmt: skip


_REFUSED = "DeepSpeed refuses it once every rank has started"
_LATE_FAILURES = {
    "gradient_clipping": "DeepSpeed reads it without a look and fails at the first step",
    "steps_per_print": "DeepSpeed reads it without a look and fails at the first step",
    "autotp_size": "DeepSpeed compares it with 0 before it converts anything, and names no key",
    "activation_checkpoint_interval": "DeepSpeed fails on it while the engine is built and names no key",
}
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _describe_consequence(key: Key, value: Any, taken: ValueReading, path: str, typed: bool) -> str:
    if taken.outcome == "converted":
        return f"DeepSpeed takes it as `{_to_json(taken.value)}`"
    if taken.outcome == "misread":
        return _describe_misreading(key, value, taken)
    return _REFUSED if typed and not key.raw else _describe_failure(key, value, path)


def _describe_misreading(key: Key, value: Any, taken: ValueReading) -> str:
    if key.type != "switch":
        return f"DeepSpeed counts it as {taken.value:g}"
    lesson = "any text is true here, even `false`" if isinstance(value, str) else "any value but 0 is true here"
    return f"DeepSpeed takes it as `{_to_json(taken.value)}`: {lesson}"


def _describe_failure(key: Key, value: Any, path: str) -> str:
    """What becomes of a value of the wrong kind where nothing looks at types."""
    batch = path == "" and key.name in _BATCH_KEYS
    if batch and isinstance(value, float):
        return "DeepSpeed accepts it and computes with the fraction"
    if batch or key.type in ("block", "flag", "maps"):
        return "DeepSpeed fails on it once every rank has started, and names no key"
    if key.name in _LATE_FAILURES:
        return _LATE_FAILURES[key.name]
    return "DeepSpeed looks at no types in this block: it fails later on, or the value has no effect"


def _out_of_range_finding(key: Key, value: Any, here: KeyPath, source: Source, target: DeepSpeedTarget) -> Finding:
    name, version = join_key(here), target.version
    note = _REFUSED
    if key.allowed:
        better = nearest_name(str(value), key.allowed) if isinstance(value, str) else None
        known = ", ".join(f"`{word}`" for word in key.allowed)
        message = f"`{name}` is {describe_value(value)}, which is none of {known}"
        if len(message) > 150:
            message = f"`{name}` is {describe_value(value)}, which DeepSpeed does not know"
        sets = {_spec_key(here): better} if better else {}
        fix = Fix(f"did you mean `{better}`?" if better else f"write one of {known}", sets, effect="it is read")
        return Finding("SP007", "error", message, name, source.place(here), notes=(note,), fix=fix)
    if key.filled and not value:
        message, title = f"`{name}` is empty", "write a text, or remove it"
        return Finding("SP007", "error", message, name, source.place(here), notes=(note,), fix=Fix(title))
    broken = [b for b in key.bounds if not b.allows(float(value)) and (b.since is None or version >= b.since)]
    wanted = f"{_SIGNS[broken[0].op]} {broken[0].limit:g}" if broken else "in range"
    message = f"`{name}` is {describe_value(value)}, it must be {wanted}"
    return Finding("SP007", "error", message, name, source.place(here), notes=(note,), fix=Fix(f"write {wanted}"))


def _to_json(value: Any) -> str:
    import json

    return json.dumps(value)
