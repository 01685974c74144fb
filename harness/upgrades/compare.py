"""Two answers to one file, one a release, and what lies between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.facts.deepspeed import Target, parse_version
from harness.facts.deepspeed_keys import block
from harness.findings import Finding, Fix, in_reading_order
from harness.gates.context import Context
from harness.upgrades.changes import CHANGES, Change
from harness.upgrades.defaults import moved

_RANK = {"error": 0, "warning": 1, "info": 2}
_IGNORED = "ignores it in silence"


def compare(
    before: Sequence[Finding], after: Sequence[Finding], context: Context | None, releases: tuple[Target, Target]
) -> tuple[Finding, ...]:
    """What differs between `before` and `after`, the findings on one file under two releases, in reading order.

    `context` is the run under the newer one, None where the file could not be read as far as that. What both say alike
    is left to `validate-config`.
    """
    old, new = releases
    found = [*_new(before, after, new), *_gone(before, after, releases, context)]
    if context is not None:
        found += [finding._replace(gate="UP001") for finding in moved(context, old, new)]
        changes = (change for change in CHANGES if _lies_between(change, releases))
        found += [_told(change, context) for change in changes if change.when(context)]
    return in_reading_order(found)


def _new(before: Sequence[Finding], after: Sequence[Finding], new: Target) -> Iterator[Finding]:
    """What only the newer release has, or has as something worse."""
    known = {_key(finding): finding for finding in before}
    for finding in after:
        earlier = known.get(_key(finding))
        if earlier is None or _RANK[finding.severity] < _RANK[earlier.severity] or _now_refused(earlier, finding):
            yield finding._replace(notes=(*finding.notes, f"so it is with DeepSpeed {new.text}, and was not before"))


def _gone(
    before: Sequence[Finding], after: Sequence[Finding], releases: tuple[Target, Target], context: Context | None
) -> Iterator[Finding]:
    """What the newer release no longer has: a key that it reads, or a fault that it mends."""
    known = {_key(finding): finding for finding in after}
    old, new = releases
    for finding in before:
        later = known.get(_key(finding))
        if later is not None and _RANK[later.severity] <= _RANK[finding.severity]:
            continue
        if any(f.key == finding.key and f.key and f.is_error for f in after):
            continue  # refused for another reason now
        if finding.gate == "SP013":
            yield _read_now(finding, releases, context)
        elif finding.gate not in ("SP012", "EN020"):
            yield finding._replace(
                gate="UP003",
                severity="info",
                message=f"{new.text} no longer has this: {finding.message}",
                label="",
                related=(),
                notes=(*finding.notes, f"{finding.gate}, found with DeepSpeed {old.text}"),
                fix=None,
            )


def _read_now(finding: Finding, releases: tuple[Target, Target], context: Context | None) -> Finding:
    """A key that the older release did not have."""
    old, new = releases
    silent = any(_IGNORED in note for note in finding.notes)
    message = f"`{finding.key}` is read by {new.text}, {old.text} " + ("ignores it" if silent else "refuses it")
    trains = silent and not _without_effect(finding.key, context)
    sets = finding.fix.sets if finding.fix else {}
    fix = Fix("remove it to keep what is trained today", sets, safe=True) if trains else None
    return finding._replace(gate="UP004", severity="error" if trains else "info", message=message, notes=(), fix=fix)


def _without_effect(key: str, context: Context | None) -> bool:
    """Is the value what a file without the key would have: a block that is off, a degree of 1, the default?"""
    value: object = context.source.data if context else None
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        return value.get("enabled") is False or value.get("autotp_size") in (0, 1)
    path, _, name = key.removeprefix("deepspeed.").rpartition(".")
    known = (block(path) or {}).get(name)
    return known is not None and known.default == value


def _now_refused(earlier: Finding, later: Finding) -> bool:
    """An unknown key that was ignored in silence and is refused now."""
    return later.gate == "SP005" and earlier.notes != later.notes and any("refuses" in note for note in later.notes)


def _lies_between(change: Change, releases: tuple[Target, Target]) -> bool:
    old, new = (release.version for release in releases)
    over = bool(change.until) and new >= parse_version(change.until)
    return old < parse_version(change.release) <= new and not over


def _told(change: Change, context: Context) -> Finding:
    key = next((k for k in _outwards(context.home(change.key)) if context.source.has(k)), "")
    sets = {context.home(name): value for name, value in change.sets.items()}
    fix = Fix(change.fix, sets, safe=bool(sets) and change.severity == "warning") if change.fix else None
    finding = context.finding(
        f"from {change.release} on: {change.message}",
        key,
        notes=[change.note, f"said by: {change.cite}"],
        fix=fix,
        severity="info" if change.mended else change.severity,
    )
    return finding._replace(gate="UP005" if change.mended else "UP002")


def _outwards(key: str) -> Iterator[str]:
    """The key and what it stands in: `a.b.c`, `a.b`, `a`."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _key(finding: Finding) -> tuple[str, str]:
    return finding.gate, finding.key
