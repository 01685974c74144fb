"""Checks keys and values of a DeepSpeed JSON (or of a spec's `deepspeed` section) against the documented keys.

One key at a time, and names that mean the same; what goes together is the business of `harness.gates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from harness.facts.deepspeed import Target, Version
from harness.facts.deepspeed_keys import Key, block, block_paths, is_typed
from harness.findings import Finding, Fix, Severity
from harness.spec.adopt import home as field_of
from harness.spec.deepspeed_json_values import as_read, describe, judge
from harness.spec.source import Path, Source, dotted, split_key
from harness.spec.suggest import ALSO_CALLED, Suggestions

__all__ = ["as_read", "check", "describe"]


def check(config: dict[str, Any], source: Source, prefix: Path, target: Target) -> list[Finding]:
    """Findings about every key of `config`, which stands at `prefix` of the user's file.

    Errors: unknown, removed and not yet known keys, values that DeepSpeed refuses or reads as something else, two names
    for one thing. Warnings: deprecated keys, values that it converts.
    """
    return list(_walk(config, source, prefix, "", target, Suggestions()))


def _walk(
    config: dict[str, Any], source: Source, prefix: Path, path: str, target: Target, suggestions: Suggestions
) -> Iterator[Finding]:
    known = block(path)
    if known is None:
        return
    yield from _doubles(config, known, source, prefix)
    for name, value in config.items():
        here = (*prefix, name)
        key = known.get(name)
        if key is None:
            yield _unknown(name, value, here, path, known, source, target, suggestions)
            continue
        aged = _version(key, value, here, path, source, target)
        if aged is not None:
            yield aged
        if aged is not None and aged.is_error:
            continue
        below = f"{path}.{key.alias or name}" if path else name
        if key.type == "block" and isinstance(value, dict):
            yield from _walk(value, source, here, below, target, suggestions)
            continue
        yield from judge(key, value, here, path, source, target)
        items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for at, item in items if key.type in ("maps", "blocks") else ():
            if isinstance(item, dict):
                yield from _walk(item, source, (*here, at), below, target, suggestions)


def spec_key(here: Path) -> str:
    """The run spec's key for a place in the user's file, for `Fix.sets`: a field of its own, or one of `deepspeed`."""
    path = here[1:] if here[:1] == ("deepspeed",) else here
    return dotted(field_of(path) or ("deepspeed", *path))


def new_key(here: Path) -> str:
    """`spec_key` for a key that takes the place of an old one, to which the field of its own still leads in a JSON."""
    return spec_key(here) if here[:1] == ("deepspeed",) else dotted(("deepspeed", *here))


def _unknown(
    name: str,
    value: Any,
    here: Path,
    path: str,
    known: dict[str, Key],
    source: Source,
    target: Target,
    suggestions: Suggestions,
) -> Finding:
    where = f"DeepSpeed's `{path}` block" if path else "DeepSpeed's JSON"
    better = suggestions.nearest(name, (k.name for k in known.values() if k.gone is None))
    home = _elsewhere(name, path, target.version)
    if not path and name.lower() in ALSO_CALLED:
        return _called_otherwise(name, value, here, source)
    if better in _keys_of(source, here[:-1]) or (better and home is not None and _likeness(name, better) < 0.8):
        better = None  # it is there already, or this one is somebody else's
    if is_typed(path, target.version):
        note = f"DeepSpeed refuses unknown keys in `{path}` once every rank has started"
    else:
        note = "DeepSpeed ignores it in silence" + (f" and trains without `{better}`" if better else "")
    fix = _renamed(better, value, here) if better else _elsewhere_fix(name, home, value, here)
    message, severity = f"`{dotted(here)}` is not a key of {where}", _ERROR
    if _is_comment(name) and not is_typed(path, target.version):
        note, severity, fix = "DeepSpeed does not read it, as befits a comment", _INFO, Fix("keep it as a comment")
    return Finding("SP005", severity, message, dotted(here), source.place(here, of_key=True), notes=(note,), fix=fix)


def _called_otherwise(name: str, value: Any, here: Path, source: Source) -> Finding:
    """A name that other programs have for one of DeepSpeed's keys, or for what is no business of DeepSpeed's."""
    right = (*here[:-1], *ALSO_CALLED[name.lower()])
    title, sets, effect = "remove it", {spec_key(here): None}, "nothing changes"
    if right == here[:-1]:
        note = "it is for the script or the launcher; DeepSpeed ignores it in silence"
    else:
        note = "another program's name for it, which DeepSpeed ignores in silence"
        said = dotted(ALSO_CALLED[name.lower()])
        if str(right[-1]) not in _keys_of(source, right[:-1]):
            title, sets, effect = f"did you mean `{said}`?", {**sets, spec_key(right): value}, f"`{said}` takes effect"
        else:
            title = f"remove it, since `{said}` is there"
    message = f"`{dotted(here)}` is not a key of DeepSpeed's JSON"
    fix = Fix(title, sets, effect=effect)
    return Finding("SP005", "error", message, dotted(here), source.place(here, of_key=True), notes=(note,), fix=fix)


_ERROR: Severity = "error"
_INFO: Severity = "info"


def _is_comment(name: str) -> bool:
    return name.startswith(("_", "//", "#", "$")) or name.lower() in ("comment", "comments", "note", "description")


def _renamed(better: str, value: Any, here: Path) -> Fix:
    right = spec_key((*here[:-1], better))
    said = right if here[0] == "deepspeed" and not right.startswith("deepspeed.") else better
    return Fix(f"did you mean `{said}`?", {spec_key(here): None, right: value}, effect=f"`{better}` takes effect")


def _elsewhere_fix(name: str, home: str | None, value: Any, here: Path) -> Fix:
    """Move it to the block that has a key of this name, or take it out."""
    old = {spec_key(here): None}
    if home is None:
        return Fix("remove it, or look the name up in DeepSpeed's documentation", old, effect="nothing changes")
    block_path = split_key(home) if home else ()
    right = spec_key((*(("deepspeed",) if here[0] == "deepspeed" else ()), *block_path, name))
    title = f"`{name}` belongs in `{home}`" if home else f"`{name}` belongs at the top level"
    return Fix(title, {**old, right: value}, effect="it is read")


def _likeness(name: str, other: str) -> float:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, name.lower(), other.lower()).ratio()


def _keys_of(source: Source, path: Path) -> dict[str, Any]:
    """The section of the user's file at `path`; empty where there is none."""
    value: Any = source.data
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        else:
            value = value[part] if isinstance(value, list) and isinstance(part, int) and part < len(value) else None
    return value if isinstance(value, dict) else {}


def _names(path: str | None) -> dict[str, Key]:
    return (block(path) if path is not None else None) or {}


@cache
def _near_first(path: str) -> tuple[str, ...]:
    return tuple(sorted(block_paths(), key=lambda p: (not p.startswith(path) or not path, p.count("."))))


def _elsewhere(name: str, path: str, version: Version) -> str | None:
    """The block that has a key of this name (`` is the top level), near ones first; None where there is none."""
    if name in ("enabled", "type", "params", "dtype"):
        return None
    paths = _near_first(path)
    if "_" not in name:  # a word that can mean anything, such as `mode` or `name`
        paths = tuple(p for p in paths if not p.startswith(_FAR) or p.startswith(path or "."))
    for candidate in paths:
        key = (block(candidate) or {}).get(name)
        if candidate != path and key is not None and (key.gone is None or version < key.gone):
            return candidate
    if path in ("optimizer", "scheduler") and name in _PARAMETERS:
        return f"{path}.params"
    return None


_FAR = ("autotuning", "comet", "wandb", "tensorboard", "csv_monitor", "datastates", "expert_parallel", "data_eff")
"""Blocks that are not thought of for a word such as `mode`."""
_PARAMETERS = frozenset(
    """lr betas eps weight_decay momentum adam_w_mode torch_adam
    warmup_type warmup_min_lr warmup_max_lr warmup_num_steps total_num_steps""".split()
)
"""What people write into `optimizer` and `scheduler` themselves."""


def _version(key: Key, value: Any, here: Path, path: str, source: Source, target: Target) -> Finding | None:
    """Gone or not yet there (errors), or deprecated or renamed (a warning)."""
    place, name, version = source.place(here, of_key=True), dotted(here), target.version
    without = {spec_key(here): None}
    if key.gone is not None and version >= key.gone:
        release = ".".join(map(str, key.gone))
        refused = path == "zero_optimization" or (path == "" and key.type in ("dict", "any"))
        note = f"DeepSpeed {'refuses it' if refused else 'ignores it in silence'} from {release} on"
        if path == "aio":  # speed alone depends on it, and published examples have it
            fix = Fix(f"use `{key.successor}`", _moved(key, value, here), safe=True)
            message = f"`{name}` is an old name"
            return Finding("SP014", "warning", message, name, place, notes=(note,), fix=fix)
        fix = Fix(f"use `{key.successor}`" if key.successor else "remove it", without, effect=_LOST)
        message = f"`{name}` is gone since DeepSpeed {release}"
        return Finding("SP012", "error", message, name, place, notes=(note,), fix=fix)
    if key.since is not None and version < key.since:
        release = ".".join(map(str, key.since))
        typed = is_typed(path, version)
        note = f"this release {'refuses it as an unknown key' if typed else 'ignores it in silence'}"
        fix = Fix("remove it, or upgrade DeepSpeed", without, effect=_LOST)
        message = f"`{name}` is read from DeepSpeed {release} on, this is {target.text}"
        return Finding("SP013", "error", message, name, place, notes=(note,), fix=fix)
    if key.successor is None or key.gone is not None or key.successor in _keys_of(source, here[:-1]):
        return None
    moved = _moved(key, value, here)
    fix = Fix(f"use `{key.successor}`", moved, safe=bool(moved))
    return Finding("SP014", "warning", f"`{name}` is deprecated", name, place, fix=fix)


_LOST = "trains without it"


def _moved(key: Key, value: Any, here: Path) -> dict[str, Any]:
    """What says the same as a deprecated key; empty where that takes thought."""
    old = {spec_key(here): None}
    if key.successor in ("offload_optimizer", "offload_param") and isinstance(value, bool):
        return {**old, new_key((*here[:-1], key.successor, "device")): "cpu"} if value else old
    if key.name in ("stage3_gather_fp16_weights_on_model_save", "thread_count"):
        return {**old, new_key((*here[:-1], str(key.successor))): value}
    return {}


def _doubles(config: dict[str, Any], known: dict[str, Key], source: Source, prefix: Path) -> Iterator[Finding]:
    """Two names for one thing: an alias with its key, a deprecated key with its successor."""
    for name in config:
        key = known.get(name)
        other = (key.alias or key.successor) if key is not None and key.gone is None else None
        if key is None or other not in config or other == "bf16":  # a gate tells `bfloat16` beside `bf16`
            continue
        here, name_it = (*prefix, name), dotted((*prefix, name))
        note = "DeepSpeed refuses them together once every rank has started, whatever their values"
        fix = Fix(f"remove `{name_it}`", {spec_key(here): None}, effect=f"`{other}` decides")
        message = f"`{name_it}` and `{dotted((*prefix, str(other)))}` are two names for one thing"
        yield Finding("SP022", "error", message, name_it, source.place(here, of_key=True), notes=(note,), fix=fix)
