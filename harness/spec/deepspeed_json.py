"""Checks keys and types of a DeepSpeed JSON (or of a spec's `deepspeed` section) against the documented keys.

One key at a time; what goes together is the business of `harness.gates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.facts.deepspeed import Target
from harness.facts.deepspeed_keys import STRICT_BLOCKS, Key, block, block_paths
from harness.findings import Finding, Fix
from harness.spec.adopt import home as field_of
from harness.spec.source import Path, Source, dotted
from harness.spec.suggest import nearest

_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "number": (float, int),
    "str": (str,),
    "list": (list,),
    "dict": (dict,),
    "block": (dict,),
}
_WORDS = {
    "bool": "`true` or `false`",
    "int": "a whole number",
    "number": "a number",
    "str": "a text",
    "list": "a list",
    "dict": "a map",
    "block": "a map",
}


def check(config: dict[str, Any], source: Source, prefix: Path, target: Target) -> list[Finding]:
    """Findings about every key of `config`, which stands at `prefix` of the user's file.

    Unknown, removed and not yet known keys are errors, deprecated ones warnings, wrong types errors.
    """
    return list(_walk(config, source, prefix, "", target))


def _walk(config: dict[str, Any], source: Source, prefix: Path, path: str, target: Target) -> Iterator[Finding]:
    known = block(path)
    if known is None:
        return
    for name, value in config.items():
        here = (*prefix, name)
        key = known.get(name)
        if key is None:
            yield _unknown(name, here, path, known, source)
            continue
        yield from _version(key, here, path, source, target)
        wrong = _wrong_type(key, value, here, source)
        if wrong is not None:
            yield wrong
        elif key.type == "block" and isinstance(value, dict):
            yield from _walk(value, source, here, f"{path}.{name}" if path else name, target)


def _unknown(name: str, here: Path, path: str, known: dict[str, Key], source: Source) -> Finding:
    where = f"DeepSpeed's `{path}` block" if path else "DeepSpeed's JSON"
    better = nearest(name, (k.name for k in known.values() if k.gone is None))
    home = None if better else next((p for p in block_paths() if p and name in (block(p) or {})), None)
    if better:
        own = field_of((*(path.split(".") if path else ()), better)) if here[0] == "deepspeed" else None
        fix = Fix(f"did you mean `{dotted(own) if own else better}`?")
    elif home:
        fix = Fix(f"`{name}` belongs in `{home}`")
    else:
        fix = Fix("remove it, or look the name up in DeepSpeed's documentation")
    top = path.split(".", maxsplit=1)[0]
    note = (
        f"DeepSpeed refuses unknown keys in `{top}` once every rank has started"
        if top in STRICT_BLOCKS
        else f"DeepSpeed ignores it in silence{_loss(better)}"
    )
    return Finding(
        "SP005",
        "error",
        f"`{dotted(here)}` is not a key of {where}",
        dotted(here),
        source.place(here, of_key=True),
        notes=(note,),
        fix=fix,
    )


def _loss(better: str | None) -> str:
    return f" and trains without `{better}`" if better else ""


def _version(key: Key, here: Path, path: str, source: Source, target: Target) -> Iterator[Finding]:
    place, name = source.place(here, of_key=True), dotted(here)
    version = target.version
    if key.gone is not None and version >= key.gone:
        title = f"use `{key.successor}`" if key.successor else "remove it"
        release = ".".join(map(str, key.gone))
        refused = path == "zero_optimization" or (path == "" and key.type in ("dict", "any"))
        note = (
            f"DeepSpeed refuses it from {release} on"
            if refused
            else f"DeepSpeed ignores it in silence from {release} on"
        )
        yield Finding(
            "SP012", "error", f"`{name}` is gone since DeepSpeed {release}", name, place, notes=(note,), fix=Fix(title)
        )
    elif key.since is not None and version < key.since:
        release = ".".join(map(str, key.since))
        top = path.split(".", maxsplit=1)[0]
        note = (
            "this release refuses it as an unknown key"
            if top in STRICT_BLOCKS
            else "this release ignores it in silence"
        )
        yield Finding(
            "SP013",
            "error",
            f"`{name}` is read from DeepSpeed {release} on, this is {target.text}",
            name,
            place,
            notes=(note,),
            fix=Fix("remove it, or upgrade DeepSpeed"),
        )
    elif key.successor is not None and key.gone is None:
        yield Finding("SP014", "warning", f"`{name}` is deprecated", name, place, fix=Fix(f"use `{key.successor}`"))


def _wrong_type(key: Key, value: Any, here: Path, source: Source) -> Finding | None:
    if value == "auto" or key.type == "any" or (value is None and key.nullable):
        return None
    allowed = _TYPES[key.type]
    if isinstance(value, allowed) and not (isinstance(value, bool) and key.type != "bool"):
        return None
    if key.type == "int" and isinstance(value, float) and value.is_integer():
        return None  # 5e8 in a JSON: DeepSpeed takes it as the whole number it is
    if key.name == "zero_optimization" and isinstance(value, bool):
        return Finding(
            "SP014",
            "warning",
            f"`{dotted(here)}: {str(value).lower()}` is an old form",
            dotted(here),
            source.place(here),
            notes=(f"DeepSpeed takes it as stage {int(value)}",),
            fix=Fix(f'write `{{"stage": {int(value)}}}`'),
        )
    message = f"`{dotted(here)}` is {describe(value)} where {_WORDS[key.type]} belongs"
    return Finding(
        "SP006",
        "error",
        message,
        dotted(here),
        source.place(here),
        notes=_consequence(key, value),
        fix=Fix(f"write {_WORDS[key.type]}"),
    )


def _consequence(key: Key, value: Any) -> tuple[str, ...]:
    if key.type == "bool" and isinstance(value, str):
        return ("in blocks without types DeepSpeed takes any text as true, even `false`",)
    return ()


def describe(value: Any) -> str:
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
