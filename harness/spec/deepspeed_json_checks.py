# SPDX-License-Identifier: Apache-2.0
"""Checks of keys and values of a DeepSpeed JSON (or of a spec's `deepspeed` section) against the documented keys.

One key at a time, and two names for one thing; `harness.gates` checks combinations.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

from harness import input_limits
from harness.facts.deepspeed_keys import Key, block_keys, block_paths, is_typed_block
from harness.facts.deepspeed_version import DeepSpeedTarget, Version
from harness.findings import Finding, Fix, Place, Severity
from harness.spec.deepspeed_mapping import renamed_spec_key, spec_key
from harness.spec.deepspeed_value_checks import check_value
from harness.spec.parse.source import KeyPath, Source, join_key, split_key
from harness.spec.suggestions import FOREIGN_KEYS, Suggestions, is_same_name, plain_name, respell_block, similarity


def check_deepspeed_json(
    config: dict[str, Any], source: Source, prefix: KeyPath, target: DeepSpeedTarget
) -> list[Finding]:
    """Findings about every key of `config`, which is at `prefix` of the user's file.

    Errors: unknown, removed and future keys, values that DeepSpeed refuses or reads as something else, two names for
    one thing. Warnings: deprecated keys, values that it converts, names at the top of a DeepSpeed JSON that look like
    none of its keys. It stops after 1,000 findings, with an error.
    """
    found = list(islice(_check_block(config, source, prefix, "", target, Suggestions()), input_limits.FINDINGS + 1))
    if len(found) > input_limits.FINDINGS:
        message = f"more than {input_limits.FINDINGS:,} keys are wrong, and the harness checked no others"
        stop = Finding("SP005", _ERROR, message, place=found[0].place, fix=Fix("is this a DeepSpeed JSON?"))
        return [stop, *found[:-1]]
    return found


def _check_block(
    config: dict[str, Any],
    source: Source,
    prefix: KeyPath,
    path: str,
    target: DeepSpeedTarget,
    suggestions: Suggestions,
) -> Iterator[Finding]:
    keys = block_keys(path)
    if keys is None:
        return
    yield from _check_duplicate_names(config, keys, source, prefix)
    for name, value in config.items():
        key_path = (*prefix, name)
        key = keys.get(name)
        if key is None:
            yield _unknown_key_finding(name, value, key_path, path, keys, source, target, suggestions)
            continue
        release_finding = _check_release(key, value, key_path, path, source, target)
        if release_finding is not None:
            yield release_finding
        if release_finding is not None and release_finding.is_error:
            continue
        inner_path = f"{path}.{key.alias or name}" if path else name
        if key.type == "block" and isinstance(value, dict):
            yield from _check_block(value, source, key_path, inner_path, target, suggestions)
            continue
        yield from check_value(key, value, key_path, path, source.place(key_path), target)
        items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for index, item in items if key.type in ("maps", "blocks") else ():
            if isinstance(item, dict):
                yield from _check_block(item, source, (*key_path, index), inner_path, target, suggestions)


def _unknown_key_finding(
    name: str,
    value: Any,
    key_path: KeyPath,
    path: str,
    keys: dict[str, Key],
    source: Source,
    target: DeepSpeedTarget,
    suggestions: Suggestions,
) -> Finding:
    block = f"DeepSpeed's `{path}` block" if path else "DeepSpeed's JSON"
    similar = suggestions.nearest_name(name, (key.name for key in keys.values() if key.gone is None))
    other_block = _find_block_with_key(name, path, target.version)
    if similar is not None and is_same_name(name, similar):
        if similar in _section_at(source, key_path[:-1]):
            return _second_spelling_finding(similar, key_path, block, source)
        other_block = None
    elif not path and (foreign := _find_foreign_key(name, is_elsewhere=other_block is not None)) is not None:
        return _foreign_key_finding(name, foreign, value, key_path, source)
    if similar in _section_at(source, key_path[:-1]) or (
        similar and other_block is not None and similarity(name, similar) < 0.8
    ):
        similar = None  # it is in the section already, or the key belongs to another block
    if is_typed_block(path, target.version):
        note = f"DeepSpeed refuses unknown keys in `{path}` once every rank has started"
    else:
        note = "DeepSpeed silently ignores it" + (f" and trains without `{similar}`" if similar else "")
    fix = _move_fix(name, other_block, value, key_path, source)
    if similar:
        fix = _rename_fix(similar, respell_block(value, f"{path}.{similar}" if path else similar), key_path)
    message, severity = f"`{join_key(key_path)}` is not a key of {block}", _ERROR
    if len(key_path) == 1 and similar is None and other_block is None and name not in _WORDS_OF_BLOCKS:
        severity = _WARNING  # DeepSpeed ignores it, and it looks like none of its keys
    if _is_comment(name) and not is_typed_block(path, target.version):
        note, severity, fix = "DeepSpeed does not read it", _INFO, Fix("keep it as a comment")
    return Finding(
        "SP005", severity, message, join_key(key_path), source.place(key_path, of_key=True), notes=(note,), fix=fix
    )


def _second_spelling_finding(similar: str, key_path: KeyPath, block: str, source: Source) -> Finding:
    """A misspelt key next to the right one."""
    return Finding(
        "SP005",
        _ERROR,
        f"`{join_key(key_path)}` is not a key of {block}",
        join_key(key_path),
        source.place(key_path, of_key=True),
        notes=(f"another spelling of `{similar}`, which is there too",),
        fix=Fix(f"remove it, since `{similar}` is there", {spec_key(key_path): None}, effect="nothing changes"),
    )


def _find_foreign_key(name: str, *, is_elsewhere: bool) -> KeyPath | None:
    """DeepSpeed's key for another program's name; () if DeepSpeed has no such key, None if no program has the name. A
    name that another block of DeepSpeed has is not foreign, unless DeepSpeed's key for it is known.
    """
    from harness.spec.accelerate_config import find_json_key
    from harness.spec.trainer_names import ADVICE, SPEC_KEYS

    plain = plain_name(name)
    key = FOREIGN_KEYS.get(plain, find_json_key(plain))
    if key is None and (plain in SPEC_KEYS or plain in ADVICE):
        key = ()
    return None if is_elsewhere and not key else key


def _is_accelerate_key(name: str) -> bool:
    from harness.spec.accelerate_config import find_json_key

    return find_json_key(plain_name(name)) is not None


def _foreign_key_finding(name: str, key: KeyPath, value: Any, key_path: KeyPath, source: Source) -> Finding:
    """Another program's name for one of DeepSpeed's keys, or for a setting that DeepSpeed does not have."""
    target_path = (*key_path[:-1], *key)
    title, sets, effect, severity = "remove it", {spec_key(key_path): None}, "nothing changes", _ERROR
    if target_path == key_path[:-1]:
        reader = "accelerate's own file" if _is_accelerate_key(name) else "the script, the trainer or the launcher"
        note = f"it is for {reader}; DeepSpeed silently ignores it"
        severity = _WARNING if len(key_path) == 1 else _ERROR
    else:
        note = "another program's name for it, which DeepSpeed silently ignores"
        target_name = join_key(key)
        if str(target_path[-1]) not in _section_at(source, target_path[:-1]):
            title, sets, effect = (
                f"did you mean `{target_name}`?",
                {**sets, spec_key(target_path): value},
                f"`{target_name}` takes effect",
            )
        else:
            title = f"remove it, since `{target_name}` is there"
    message = f"`{join_key(key_path)}` is not a key of DeepSpeed's JSON"
    fix = Fix(title, sets, effect=effect)
    return Finding(
        "SP005", severity, message, join_key(key_path), source.place(key_path, of_key=True), notes=(note,), fix=fix
    )


_ERROR: Severity = "error"
_WARNING: Severity = "warning"
_INFO: Severity = "info"


def _is_comment(name: str) -> bool:
    return name.startswith(("_", "//", "#", "$")) or name.lower() in ("comment", "comments", "note", "description")


def _rename_fix(new_name: str, value: Any, key_path: KeyPath) -> Fix:
    new_key = spec_key((*key_path[:-1], new_name))
    shown_name = new_key if key_path[0] == "deepspeed" and not new_key.startswith("deepspeed.") else new_name
    return Fix(
        f"did you mean `{shown_name}`?", {spec_key(key_path): None, new_key: value}, effect=f"`{new_name}` takes effect"
    )


def _move_fix(name: str, block: str | None, value: Any, key_path: KeyPath, source: Source) -> Fix:
    """Move it to the block that has a key of this name, or remove it."""
    removal = {spec_key(key_path): None}
    if block is None and name in _WORDS_OF_BLOCKS:
        return Fix(f"write it into the block whose `{name}` it is, such as `{_WORDS_OF_BLOCKS[name]}`, or remove it")
    if block in ("optimizer.params", "scheduler.params") and len(key_path) == 1:
        owner = block.partition(".")[0]
        if owner not in source.data:
            return Fix(f"remove it: `{owner}` is left to the script", removal, effect="nothing changes")
        if name in _section_at(source, (owner, "params")):
            return Fix(f"remove it, since `{block}.{name}` is there", removal, effect="nothing changes")
    if block is None:
        return Fix("remove it, or look up the name in DeepSpeed's documentation", removal, effect="nothing changes")
    block_path = split_key(block) if block else ()
    new_key = spec_key((*(("deepspeed",) if key_path[0] == "deepspeed" else ()), *block_path, name))
    title = f"`{name}` belongs in `{block}`" if block else f"`{name}` belongs at the top level"
    return Fix(title, {**removal, new_key: value}, effect="it is read")


def _section_at(source: Source, path: KeyPath) -> dict[str, Any]:
    """The section of the user's file at `path`; empty if there is none."""
    value: Any = source.data
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        else:
            value = value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None
    return value if isinstance(value, dict) else {}


@cache
def _blocks_by_nearness(path: str) -> tuple[str, ...]:
    return tuple(sorted(block_paths(), key=lambda block: (not block.startswith(path) or not path, block.count("."))))


def _find_block_with_key(name: str, path: str, version: Version) -> str | None:
    """The block that has a key of this name (`` is the top level), near ones first; None if there is none."""
    if name in ("enabled", "type", "params", "dtype"):
        return None
    blocks = _blocks_by_nearness(path)
    if "_" not in name:  # a word that can mean anything, such as `mode` or `name`
        blocks = tuple(
            block for block in blocks if not block.startswith(_UNLIKELY_BLOCKS) or block.startswith(path or ".")
        )
    for candidate in blocks:
        key = (block_keys(candidate) or {}).get(name)
        if candidate != path and key is not None and (key.gone is None or version < key.gone):
            return candidate
    for owner, names in _PARAMS.items():
        if path in ("", owner) and name in names:
            return f"{owner}.params"
    return None


_UNLIKELY_BLOCKS = (
    "autotuning",
    "comet",
    "wandb",
    "tensorboard",
    "csv_monitor",
    "datastates",
    "expert_parallel",
    "data_eff",
)
"""Unlikely blocks for a word such as `mode`."""
_PARAMS = {
    "optimizer": frozenset(
        """lr betas eps weight_decay momentum nesterov dampening amsgrad adam_w_mode torch_adam bias_correction
        set_grad_none max_coeff min_coeff eps_inside_sqrt freeze_step cuda_aware comm_backend_name muon_lr adam_lr
        ns_method foreach fused maximize""".split()
    ),
    "scheduler": frozenset(
        """warmup_type warmup_min_lr warmup_max_lr warmup_num_steps warmup_min_ratio cos_min_ratio total_num_steps
        cycle_min_lr cycle_max_lr cycle_first_step_size cycle_second_step_size cycle_momentum decay_step_size
        lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate""".split()
    ),
}
"""Parameters that people write into `optimizer` and `scheduler` themselves, or at the top level."""
_WORDS_OF_BLOCKS = {"enabled": "bf16", "type": "optimizer", "params": "optimizer"}
"""A word of many blocks, which means nothing at the top level."""


def _check_release(
    key: Key, value: Any, key_path: KeyPath, path: str, source: Source, target: DeepSpeedTarget
) -> Finding | None:
    """Removed or future keys (errors), deprecated or renamed ones (a warning)."""
    place, name, version = source.place(key_path, of_key=True), join_key(key_path), target.version
    removal = {spec_key(key_path): None}
    if key.gone is not None and version >= key.gone:
        release = ".".join(map(str, key.gone))
        is_refused = path == "zero_optimization" or (path == "" and key.type in ("dict", "any"))
        note = f"DeepSpeed {'refuses it' if is_refused else 'silently ignores it'} from {release} on"
        if path == "aio":  # speed alone depends on it, and published examples have it
            fix = Fix(f"use `{key.successor}`", _successor_values(key, value, key_path), safe=True)
            message = f"`{name}` is an old name"
            return Finding("SP014", "warning", message, name, place, notes=(note,), fix=fix)
        title, effect = "remove it", _EFFECT_OF_REMOVAL
        if key.successor:
            title, effect = f"remove it, or use `{key.successor}` instead", "trains without either"
        fix = Fix(title, removal, effect=effect)
        message = f"`{name}` was removed in DeepSpeed {release}"
        return Finding("SP012", "error", message, name, place, notes=(note,), fix=fix)
    if key.since is not None and version < key.since:
        release = ".".join(map(str, key.since))
        is_typed = is_typed_block(path, version)
        note = f"this release {'refuses it as an unknown key' if is_typed else 'silently ignores it'}"
        fix = Fix("remove it, or upgrade DeepSpeed", removal, effect=_EFFECT_OF_REMOVAL)
        message = f"`{name}` is read from DeepSpeed {release} on, this is {target.text}"
        return Finding("SP013", "error", message, name, place, notes=(note,), fix=fix)
    if key.successor is None or key.gone is not None or key.successor in _section_at(source, key_path[:-1]):
        return None
    own_field = key_path[:1] == ("deepspeed",) and _own_field_of(key.successor, source)
    if own_field:
        return _two_names_finding(name, own_field, key_path, place)
    successor_values = _successor_values(key, value, key_path)
    fix = Fix(f"use `{key.successor}`", successor_values, safe=bool(successor_values))
    return Finding("SP014", "warning", f"`{name}` is deprecated", name, place, fix=fix)


_EFFECT_OF_REMOVAL = "trains without it"


def _own_field_of(successor: str, source: Source) -> str:
    """The run spec's own field for the successor of a key of `zero_optimization`, where the file has it; else empty."""
    is_written = successor.split(".", maxsplit=1)[0] in _section_at(source, ("zero",))
    return f"zero.{successor}" if is_written else ""


def _successor_values(key: Key, value: Any, key_path: KeyPath) -> dict[str, Any]:
    """The successor's values with the meaning of a deprecated key; empty where that takes thought."""
    removal = {spec_key(key_path): None}
    if key.successor in ("offload_optimizer", "offload_param") and isinstance(value, bool):
        return {**removal, renamed_spec_key((*key_path[:-1], key.successor, "device")): "cpu"} if value else removal
    if key.name in ("stage3_gather_fp16_weights_on_model_save", "thread_count"):
        return {**removal, renamed_spec_key((*key_path[:-1], str(key.successor))): value}
    return {}


def _check_duplicate_names(
    config: dict[str, Any], keys: dict[str, Key], source: Source, prefix: KeyPath
) -> Iterator[Finding]:
    """Two names for one thing: an alias with its key, a deprecated key with its successor."""
    for name in config:
        key = keys.get(name)
        other = (key.alias or key.successor) if key is not None and key.gone is None else None
        if key is None or other not in config or other == "bf16":  # a gate has `bfloat16` with `bf16`
            continue
        key_path = (*prefix, name)
        yield _two_names_finding(
            join_key(key_path), join_key((*prefix, str(other))), key_path, source.place(key_path, of_key=True)
        )


def _two_names_finding(name: str, other: str, key_path: KeyPath, place: Place) -> Finding:
    note = "DeepSpeed refuses them together once every rank has started, whatever their values"
    fix = Fix(f"remove `{name}`", {spec_key(key_path): None}, effect=f"`{split_key(other)[-1]}` decides")
    message = f"`{name}` and `{other}` are two names of one key"
    return Finding("SP022", "error", message, name, place, notes=(note,), fix=fix)
