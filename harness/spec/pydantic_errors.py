# SPDX-License-Identifier: Apache-2.0
"""pydantic's errors about one field as findings, under the user's own keys and at their places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from harness.findings import Finding, Fix
from harness.spec.deepspeed_value_checks import describe_value
from harness.spec.parse.source import KeyPath, Source, join_key
from harness.spec.run_spec import RunSpec
from harness.spec.suggestions import Suggestions, nearest_name

FOREIGN_NAMES: Mapping[str, str] = {
    # DeepSpeed's names
    "train_batch_size": "train.global_batch_size",
    "train_micro_batch_size_per_gpu": "train.per_device_train_batch_size",
    "gradient_clipping": "train.max_grad_norm",
    "zero_optimization": "zero",
    "lr": "optimizer.learning_rate",
    "autotp_size": "parallel.tensor_parallel_size",
    "tensor_parallel": "parallel.tensor_parallel_size",
    "tp_size": "parallel.tensor_parallel_size",
    "pipeline": "parallel.pipeline_parallel_size",
    "num_stages": "parallel.pipeline_parallel_size",
    "steps_per_print": "logging.logging_steps",
    "activation_checkpointing": "train.gradient_checkpointing",
    # other trainers' names
    "model_name_or_path": "model.name_or_path",
    "base_model": "model.name_or_path",
    "micro_batch_size": "train.per_device_train_batch_size",
    "num_epochs": "train.num_train_epochs",
    "epochs": "train.num_train_epochs",
    "steps": "train.max_steps",
    "sequence_len": "data.max_length",
    "max_seq_length": "data.max_length",
    "cutoff_len": "data.max_length",
    "clip_grad": "train.max_grad_norm",
    "lr_scheduler_type": "scheduler.type",
    "adam_beta1": "optimizer.betas",
    "adam_beta2": "optimizer.betas",
    "adam_epsilon": "optimizer.eps",
    "activation_checkpointing_enabled": "train.gradient_checkpointing",
    "nproc_per_node": "launch.num_gpus",
    "batch_size": "train.per_device_train_batch_size",
    "tp": "parallel.tensor_parallel_size",
    "pp": "parallel.pipeline_parallel_size",
    "sp": "parallel.sequence_parallel_size",
    "cpu_offload": "zero.offload_optimizer.device",
    "zero_stage": "zero.stage",
}

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

_LIMITS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def translate_errors(error: ValidationError, source: Source) -> list[Finding]:
    """One finding for each field that is wrong; alternatives of a union count once."""
    findings: dict[KeyPath, Finding] = {}
    suggestions = Suggestions()
    for item in error.errors(include_url=False):
        path = _path_of_location(item["loc"])
        finding = _finding_of_error(item, path, source, suggestions)
        if path not in findings or finding.gate == "SP005":
            findings[path] = finding
    suggested_titles = {f.fix.title for f in findings.values() if f.gate == "SP005" and f.fix}
    # A misspelt key that is also required is one mistake, not two.
    return [f for f in findings.values() if f.gate != "SP008" or f"did you mean `{f.key}`?" not in suggested_titles]


def _path_of_location(loc: tuple[int | str, ...]) -> KeyPath:
    """pydantic's location without the names of union members (`data.train.str`)."""
    path: list[str | int] = []
    model: Any = RunSpec
    for part in loc:
        fields = getattr(model, "model_fields", None)
        if fields is None and not isinstance(part, int) and model is not dict:
            break
        path.append(part)
        if isinstance(part, int):
            continue  # an entry of a list is what the list is of
        field = fields.get(part) if fields and isinstance(part, str) else None
        model = _inner_model(field.annotation) if field is not None else (dict if model is dict else None)
    return tuple(path)


def _inner_model(annotation: Any) -> Any:
    candidates = list(_annotation_parts(annotation))
    model = next(
        (candidate for candidate in candidates if isinstance(candidate, type) and issubclass(candidate, BaseModel)),
        None,
    )
    if model is None and any(getattr(candidate, "__origin__", candidate) is dict for candidate in candidates):
        return dict
    return model


def _annotation_parts(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from _annotation_parts(part)


def _finding_of_error(item: Any, path: KeyPath, source: Source, suggestions: Suggestions) -> Finding:
    kind, value = item["type"], item["input"]
    key = join_key(source.user_path(path))
    if kind == "extra_forbidden":
        return _unknown_key_finding(path, source, suggestions)
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
        return Finding("SP006", "error", message, key, source.place(path), fix=Fix(f"write {expected}"))
    return Finding("SP007", "error", _range_message(item, key), key, source.place(path), fix=_range_fix(item))


def _expected_value(kind: str, path: KeyPath) -> str:
    if "betas" in path[-1:]:
        return "a list of two numbers"
    return _KINDS[kind]


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
        return f"`{key}` is {value}, it may hold letters, digits, `.`, `_` and `-` only"
    return f"`{key}` is {value}: {str(item['msg'])[0].lower()}{str(item['msg'])[1:]}"


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


def _unknown_key_finding(path: KeyPath, source: Source, suggestions: Suggestions) -> Finding:
    """An unknown key: a misspelling, a key of another section, a name from DeepSpeed or another trainer, or nothing
    known.
    """
    name, section = str(path[-1]), path[:-1]
    siblings = section_fields(section)
    user_path = source.user_path(path)
    section_name = f"`{join_key(section)}`" if section else "a run spec"
    similar = FOREIGN_NAMES.get(name) if name not in siblings else None
    nearest = suggestions.nearest_name
    similar = similar or nearest(name, siblings) or FOREIGN_NAMES.get(nearest(name, FOREIGN_NAMES) or "")
    fix: Fix
    if similar:
        fix = Fix(f"did you mean `{join_key((*section, similar)) if similar in siblings else similar}`?")
    elif field := _find_section_of_key(name):
        fix = (
            Fix(f"`{name}` is called `{field}` here")
            if field.split(".")[-1] != name
            else Fix(f"`{name}` belongs in `{field.rsplit('.', 1)[0]}`")
        )
    else:
        fix = Fix(f"known here: {', '.join(f'`{sibling}`' for sibling in siblings)}" if siblings else "remove it")
    return Finding(
        "SP005",
        "error",
        f"`{join_key(user_path)}` is not a key of {section_name}",
        join_key(user_path),
        source.place(path, of_key=True),
        fix=fix,
    )


def section_fields(section: KeyPath) -> tuple[str, ...]:
    """The keys that a section of the run spec knows; none for a path that is no section."""
    model: Any = RunSpec
    for part in section:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if isinstance(part, str) else None
        model = _inner_model(field.annotation) if field is not None else None
        if model is None or model is dict:
            return ()
    return tuple(model.model_fields)


@cache
def _sections_by_key() -> dict[str, str]:
    """The keys of all sections, each with the first that has it."""
    sections: dict[str, str] = {}
    for section, field in RunSpec.model_fields.items():
        inner = _inner_model(field.annotation)
        for name in inner.model_fields if inner not in (None, dict) else ():
            sections.setdefault(name, f"{section}.{name}")
    return sections


def _find_section_of_key(name: str) -> str | None:
    if name in _sections_by_key():
        return _sections_by_key()[name]
    if name in FOREIGN_NAMES:
        return FOREIGN_NAMES[name]
    from harness.facts.deepspeed_keys import block_keys

    return f"deepspeed.{name}" if name in (block_keys("") or {}) else None
