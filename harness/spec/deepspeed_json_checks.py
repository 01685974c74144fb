"""Checks keys and values of a DeepSpeed JSON (or of a spec's `deepspeed` section) against the documented keys.

One key at a time, and names that mean the same; what goes together is the business of `harness.gates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from harness.facts.deepspeed_keys import Key, block_keys, block_paths, is_typed_block
from harness.facts.deepspeed_version import DeepSpeedTarget, Version
from harness.findings import Finding, Fix, Severity
from harness.spec.deepspeed_mapping import spec_field_of as field_of
from harness.spec.deepspeed_value_checks import check_value, convert_as_deepspeed, describe_value
from harness.spec.parse.source import KeyPath, Source, join_key, split_key
from harness.spec.suggestions import FOREIGN_KEYS, Suggestions

__all__ = ["check_deepspeed_json", "convert_as_deepspeed", "describe_value"]


def check_deepspeed_json(
    config: dict[str, Any], source: Source, prefix: KeyPath, target: DeepSpeedTarget
) -> list[Finding]:
    """Findings about every key of `config`, which stands at `prefix` of the user's file.

    Errors: unknown, removed and not yet known keys, values that DeepSpeed refuses or reads as something else, two names
    for one thing. Warnings: deprecated keys, values that it converts.
    """
    return list(_check_block(config, source, prefix, "", target, Suggestions()))


def _check_block(
    config: dict[str, Any],
    source: Source,
    prefix: KeyPath,
    path: str,
    target: DeepSpeedTarget,
    suggestions: Suggestions,
) -> Iterator[Finding]:
    known = block_keys(path)
    if known is None:
        return
    yield from _check_duplicate_names(config, known, source, prefix)
    for name, value in config.items():
        here = (*prefix, name)
        key = known.get(name)
        if key is None:
            yield _unknown_key_finding(name, value, here, path, known, source, target, suggestions)
            continue
        aged = _check_release(key, value, here, path, source, target)
        if aged is not None:
            yield aged
        if aged is not None and aged.is_error:
            continue
        below = f"{path}.{key.alias or name}" if path else name
        if key.type == "block" and isinstance(value, dict):
            yield from _check_block(value, source, here, below, target, suggestions)
            continue
        yield from check_value(key, value, here, path, source, target)
        items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for at, item in items if key.type in ("maps", "blocks") else ():
            if isinstance(item, dict):
                yield from _check_block(item, source, (*here, at), below, target, suggestions)


def spec_key(here: KeyPath) -> str:
    """The run spec's key for a place in the user's file, for `Fix.sets`: a field of its own, or one of `deepspeed`."""
    path = here[1:] if here[:1] == ("deepspeed",) else here
    return join_key(field_of(path) or ("deepspeed", *path))


def renamed_spec_key(here: KeyPath) -> str:
    """`spec_key` for a key that takes the place of an old one, to which the field of its own still leads in a JSON."""
    return spec_key(here) if here[:1] == ("deepspeed",) else join_key(("deepspeed", *here))


def _unknown_key_finding(
    name: str,
    value: Any,
    here: KeyPath,
    path: str,
    known: dict[str, Key],
    source: Source,
    target: DeepSpeedTarget,
    suggestions: Suggestions,
) -> Finding:
    where = f"DeepSpeed's `{path}` block" if path else "DeepSpeed's JSON"
    better = suggestions.nearest_name(name, (k.name for k in known.values() if k.gone is None))
    home = _find_block_with_key(name, path, target.version)
    if not path and name.lower() in FOREIGN_KEYS:
        return _foreign_key_finding(name, value, here, source)
    if better in _section_at(source, here[:-1]) or (better and home is not None and _similarity(name, better) < 0.8):
        better = None  # it is there already, or this one is somebody else's
    if is_typed_block(path, target.version):
        note = f"DeepSpeed refuses unknown keys in `{path}` once every rank has started"
    else:
        note = "DeepSpeed ignores it in silence" + (f" and trains without `{better}`" if better else "")
    fix = _rename_fix(better, value, here) if better else _move_fix(name, home, value, here)
    message, severity = f"`{join_key(here)}` is not a key of {where}", _ERROR
    if _is_comment(name) and not is_typed_block(path, target.version):
        note, severity, fix = "DeepSpeed does not read it, as befits a comment", _INFO, Fix("keep it as a comment")
    return Finding("SP005", severity, message, join_key(here), source.place(here, of_key=True), notes=(note,), fix=fix)


def _foreign_key_finding(name: str, value: Any, here: KeyPath, source: Source) -> Finding:
    """A name that other programs have for one of DeepSpeed's keys, or for what is no business of DeepSpeed's."""
    right = (*here[:-1], *FOREIGN_KEYS[name.lower()])
    title, sets, effect = "remove it", {spec_key(here): None}, "nothing changes"
    if right == here[:-1]:
        note = "it is for the script or the launcher; DeepSpeed ignores it in silence"
    else:
        note = "another program's name for it, which DeepSpeed ignores in silence"
        said = join_key(FOREIGN_KEYS[name.lower()])
        if str(right[-1]) not in _section_at(source, right[:-1]):
            title, sets, effect = f"did you mean `{said}`?", {**sets, spec_key(right): value}, f"`{said}` takes effect"
        else:
            title = f"remove it, since `{said}` is there"
    message = f"`{join_key(here)}` is not a key of DeepSpeed's JSON"
    fix = Fix(title, sets, effect=effect)
    return Finding("SP005", "error", message, join_key(here), source.place(here, of_key=True), notes=(note,), fix=fix)


_ERROR: Severity = "error"
_INFO: Severity = "info"


def _is_comment(name: str) -> bool:
    return name.startswith(("_", "//", "#", "$")) or name.lower() in ("comment", "comments", "note", "description")


def _rename_fix(better: str, value: Any, here: KeyPath) -> Fix:
    right = spec_key((*here[:-1], better))
    said = right if here[0] == "deepspeed" and not right.startswith("deepspeed.") else better
    return Fix(f"did you mean `{said}`?", {spec_key(here): None, right: value}, effect=f"`{better}` takes effect")


def _move_fix(name: str, home: str | None, value: Any, here: KeyPath) -> Fix:
    """Move it to the block that has a key of this name, or take it out."""
    old = {spec_key(here): None}
    if home is None:
        return Fix("remove it, or look the name up in DeepSpeed's documentation", old, effect="nothing changes")
    block_path = split_key(home) if home else ()
    right = spec_key((*(("deepspeed",) if here[0] == "deepspeed" else ()), *block_path, name))
    title = f"`{name}` belongs in `{home}`" if home else f"`{name}` belongs at the top level"
    return Fix(title, {**old, right: value}, effect="it is read")


def _similarity(name: str, other: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, name.lower(), other.lower()).ratio()


def _section_at(source: Source, path: KeyPath) -> dict[str, Any]:
    """The section of the user's file at `path`; empty where there is none."""
    value: Any = source.data
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        else:
            value = value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None
    return value if isinstance(value, dict) else {}


def _names(path: str | None) -> dict[str, Key]:
    return (block_keys(path) if path is not None else None) or {}


@cache
def _blocks_by_nearness(path: str) -> tuple[str, ...]:
    return tuple(sorted(block_paths(), key=lambda p: (not p.startswith(path) or not path, p.count("."))))


def _find_block_with_key(name: str, path: str, version: Version) -> str | None:
    """The block that has a key of this name (`` is the top level), near ones first; None where there is none."""
    if name in ("enabled", "type", "params", "dtype"):
        return None
    paths = _blocks_by_nearness(path)
    if "_" not in name:  # a word that can mean anything, such as `mode` or `name`
        paths = tuple(p for p in paths if not p.startswith(_UNLIKELY_BLOCKS) or p.startswith(path or "."))
    for candidate in paths:
        key = (block_keys(candidate) or {}).get(name)
        if candidate != path and key is not None and (key.gone is None or version < key.gone):
            return candidate
    if path in ("optimizer", "scheduler") and name in _OPTIMIZER_AND_SCHEDULER_PARAMS:
        return f"{path}.params"
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
"""Blocks that are not thought of for a word such as `mode`."""
_OPTIMIZER_AND_SCHEDULER_PARAMS = frozenset(
    """lr betas eps weight_decay momentum adam_w_mode torch_adam
    warmup_type warmup_min_lr warmup_max_lr warmup_num_steps total_num_steps""".split()
)
"""What people write into `optimizer` and `scheduler` themselves."""


def _check_release(
    key: Key, value: Any, here: KeyPath, path: str, source: Source, target: DeepSpeedTarget
) -> Finding | None:
    """Gone or not yet there (errors), or deprecated or renamed (a warning)."""
    place, name, version = source.place(here, of_key=True), join_key(here), target.version
    without = {spec_key(here): None}
    if key.gone is not None and version >= key.gone:
        release = ".".join(map(str, key.gone))
        refused = path == "zero_optimization" or (path == "" and key.type in ("dict", "any"))
        note = f"DeepSpeed {'refuses it' if refused else 'ignores it in silence'} from {release} on"
        if path == "aio":  # speed alone depends on it, and published examples have it
            fix = Fix(f"use `{key.successor}`", _successor_values(key, value, here), safe=True)
            message = f"`{name}` is an old name"
            return Finding("SP014", "warning", message, name, place, notes=(note,), fix=fix)
        fix = Fix(f"use `{key.successor}`" if key.successor else "remove it", without, effect=_EFFECT_OF_REMOVAL)
        message = f"`{name}` is gone since DeepSpeed {release}"
        return Finding("SP012", "error", message, name, place, notes=(note,), fix=fix)
    if key.since is not None and version < key.since:
        release = ".".join(map(str, key.since))
        typed = is_typed_block(path, version)
        note = f"this release {'refuses it as an unknown key' if typed else 'ignores it in silence'}"
        fix = Fix("remove it, or upgrade DeepSpeed", without, effect=_EFFECT_OF_REMOVAL)
        message = f"`{name}` is read from DeepSpeed {release} on, this is {target.text}"
        return Finding("SP013", "error", message, name, place, notes=(note,), fix=fix)
    if key.successor is None or key.gone is not None or key.successor in _section_at(source, here[:-1]):
        return None
    moved = _successor_values(key, value, here)
    fix = Fix(f"use `{key.successor}`", moved, safe=bool(moved))
    return Finding("SP014", "warning", f"`{name}` is deprecated", name, place, fix=fix)


_EFFECT_OF_REMOVAL = "trains without it"


def _successor_values(key: Key, value: Any, here: KeyPath) -> dict[str, Any]:
    """What says the same as a deprecated key; empty where that takes thought."""
    old = {spec_key(here): None}
    if key.successor in ("offload_optimizer", "offload_param") and isinstance(value, bool):
        return {**old, renamed_spec_key((*here[:-1], key.successor, "device")): "cpu"} if value else old
    if key.name in ("stage3_gather_fp16_weights_on_model_save", "thread_count"):
        return {**old, renamed_spec_key((*here[:-1], str(key.successor))): value}
    return {}


def _check_duplicate_names(
    config: dict[str, Any], known: dict[str, Key], source: Source, prefix: KeyPath
) -> Iterator[Finding]:
    """Two names for one thing: an alias with its key, a deprecated key with its successor."""
    for name in config:
        key = known.get(name)
        other = (key.alias or key.successor) if key is not None and key.gone is None else None
        if key is None or other not in config or other == "bf16":  # a gate tells `bfloat16` beside `bf16`
            continue
        here, name_it = (*prefix, name), join_key((*prefix, name))
        note = "DeepSpeed refuses them together once every rank has started, whatever their values"
        fix = Fix(f"remove `{name_it}`", {spec_key(here): None}, effect=f"`{other}` decides")
        message = f"`{name_it}` and `{join_key((*prefix, str(other)))}` are two names for one thing"
        yield Finding("SP022", "error", message, name_it, source.place(here, of_key=True), notes=(note,), fix=fix)
