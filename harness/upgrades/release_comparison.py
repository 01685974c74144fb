# SPDX-License-Identifier: Apache-2.0
"""Compares the findings on one file under two releases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from harness.errors import UnreadableKeyError
from harness.facts.deepspeed_keys import Key, block_keys, block_paths
from harness.facts.deepspeed_version import DeepSpeedTarget, Version, parse_version
from harness.findings import Finding, Fix, Severity, sort_findings
from harness.gates.context import Context
from harness.upgrades.behavior_changes import BEHAVIOR_CHANGES, BehaviorChange

_SEVERITY_ORDER = {"error": 0, "warning": 1, "info": 2}
_IGNORED_NOTE = "silently ignores it"


def compare_releases(
    before: Sequence[Finding],
    after: Sequence[Finding],
    context: Context | None,
    releases: tuple[DeepSpeedTarget, DeepSpeedTarget],
) -> tuple[Finding, ...]:
    """The differences between `before` and `after`, the findings on one file under two releases, in reading order.

    `context` is the run under the newer release, None where the file has no run. Findings that both releases have are
    left to `validate-config`.
    """
    old, new = releases
    findings = [*_new_findings(before, after, new), *_removed_findings(before, after, releases, context)]
    if context is not None:
        unreadable: set[str] = set()
        try:
            findings += [finding._replace(gate="UP001") for finding in find_changed_defaults(context, old, new)]
        except UnreadableKeyError as error:
            unreadable.add(str(error))
        for change in (change for change in BEHAVIOR_CHANGES if _lies_between(change, releases)):
            try:
                findings += [_finding_of_change(change, context)] if change.applies(context) else []
            except UnreadableKeyError as error:
                unreadable.add(str(error))
        findings += [finding for finding in _unreadable_findings(after, unreadable) if finding not in findings]
    return sort_findings(findings)


def _unreadable_findings(after: Sequence[Finding], keys: set[str]) -> Iterator[Finding]:
    """The errors on keys that a change depends on and nobody can read, though both releases have them."""
    for finding in after:
        if finding.is_error and any(f".{finding.key}.".endswith(f".{key}.") for key in keys):
            yield finding._replace(notes=(*finding.notes, "the effect of an upgrade on this file is not known"))


def _new_findings(before: Sequence[Finding], after: Sequence[Finding], new: DeepSpeedTarget) -> Iterator[Finding]:
    """Findings that only the newer release has, or has at a higher severity."""
    before_by_key = {_finding_key(finding): finding for finding in before}
    for finding in after:
        earlier = before_by_key.get(_finding_key(finding))
        if (
            earlier is None
            or _SEVERITY_ORDER[finding.severity] < _SEVERITY_ORDER[earlier.severity]
            or _is_now_rejected(earlier, finding)
        ):
            yield finding._replace(notes=(*finding.notes, f"new in DeepSpeed {new.text}"))


def _removed_findings(
    before: Sequence[Finding],
    after: Sequence[Finding],
    releases: tuple[DeepSpeedTarget, DeepSpeedTarget],
    context: Context | None,
) -> Iterator[Finding]:
    """Findings that the newer release no longer has: it reads the key, or has the bug fixed."""
    after_by_key = {_finding_key(finding): finding for finding in after}
    old, new = releases
    for finding in before:
        later = after_by_key.get(_finding_key(finding))
        if later is not None and _SEVERITY_ORDER[later.severity] <= _SEVERITY_ORDER[finding.severity]:
            continue
        if any(f.key == finding.key and f.key and f.is_error for f in after):
            continue  # refused for another reason now
        if finding.gate == "SP013":
            yield _newly_read_finding(finding, releases, context)
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


def _newly_read_finding(
    finding: Finding, releases: tuple[DeepSpeedTarget, DeepSpeedTarget], context: Context | None
) -> Finding:
    """The finding for a key that the older release does not have."""
    old, new = releases
    is_silent = any(_IGNORED_NOTE in note for note in finding.notes)
    message = f"`{finding.key}` is read by {new.text}, {old.text} " + ("ignores it" if is_silent else "refuses it")
    changes_training = is_silent and not _has_no_effect(finding.key, context)
    sets = finding.fix.sets if finding.fix else {}
    fix = Fix("remove it to keep what is trained today", sets, safe=True) if changes_training else None
    return finding._replace(
        gate="UP004", severity="error" if changes_training else "info", message=message, notes=(), fix=fix
    )


def _has_no_effect(key: str, context: Context | None) -> bool:
    """Does a file without the key have the same value: a block that is off, a degree of 1, the default?"""
    value: object = context.source.data if context else None
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        return value.get("enabled") is False or value.get("autotp_size") in (0, 1)
    path, _, name = key.removeprefix("deepspeed.").rpartition(".")
    key_row = (block_keys(path) or {}).get(name)
    return key_row is not None and key_row.default == value


def _is_now_rejected(earlier: Finding, later: Finding) -> bool:
    """Was the unknown key ignored before, and is it refused now?"""
    return later.gate == "SP005" and earlier.notes != later.notes and any("refuses" in note for note in later.notes)


def _lies_between(change: BehaviorChange, releases: tuple[DeepSpeedTarget, DeepSpeedTarget]) -> bool:
    old, new = (release.version for release in releases)
    is_over = bool(change.until) and new >= parse_version(change.until)
    return old < parse_version(change.release) <= new and not is_over


def _finding_of_change(change: BehaviorChange, context: Context) -> Finding:
    key = next((k for k in _iter_enclosing_keys(context.spec_key(change.key)) if context.source.has_key(k)), "")
    sets = {context.spec_key(name): value for name, value in change.sets.items()}
    fix = Fix(change.fix, sets, safe=bool(sets) and change.severity == "warning") if change.fix else None
    finding = context.finding(
        f"from {change.release} on: {change.message}",
        key,
        notes=[change.note, f"said by: {change.cite}"],
        fix=fix,
        severity=change.severity,
    )
    return finding._replace(gate="UP005" if change.is_bug_fix else "UP002")


def _iter_enclosing_keys(key: str) -> Iterator[str]:
    """The key and the keys around it: `a.b.c`, `a.b`, `a`."""
    while key:
        yield key
        key = key.rpartition(".")[0]


def _finding_key(finding: Finding) -> tuple[str, str]:
    return finding.gate, finding.key


_EFFECTS: dict[str, tuple[Severity, str]] = {
    "gradient_clipping": ("error", "gradients are clipped at another norm, so training changes"),
    "bf16.check_grad_overflow": ("warning", "a step with an infinite gradient is skipped, where it was taken before"),
    "steps_per_print": ("info", "only what is printed"),
}
"""Dotted key -> severity and effect of another value."""
_ALWAYS_PINNED_BEFORE: Version = (0, 18, 3)
"""Before this release, stages 1 and 2 pinned their buffers in any case."""
_PINNING_EFFECT: tuple[Severity, str] = ("warning", "host memory that cannot be swapped, and faster copies")
_READ_CONDITIONS: dict[str, Callable[[Context], bool]] = {
    "bf16.check_grad_overflow": lambda ctx: ctx.is_enabled("bf16"),
    "zero_optimization.offload_optimizer.pin_memory": lambda ctx: (
        ctx.offload_device("offload_optimizer") in ("cpu", "nvme")
    ),
    "zero_optimization.offload_param.pin_memory": lambda ctx: ctx.offload_device("offload_param") in ("cpu", "nvme"),
}
"""The conditions under which DeepSpeed reads a key; it always reads the others."""


def find_changed_defaults(context: Context, before: DeepSpeedTarget, after: DeepSpeedTarget) -> Iterator[Finding]:
    """A finding for each default that differs, with the value that keeps the old behavior.

    A run spec renders to a JSON with all of these keys, so it has no findings.
    """
    if context.run.kind != "deepspeed-json":
        return
    for path, key in _iter_changed_defaults(before.version, after.version):
        name = f"{path}.{key.name}" if path else key.name
        if context.has_key(name) or (path and not context.has_key(path)) or not _is_read(name, context):
            continue
        if name.endswith("pin_memory") and context.stage < 3 and before.version < _ALWAYS_PINNED_BEFORE:
            continue  # pinned before and after
        old, new = key.default_at(before.version), key.default_at(after.version)
        release = ".".join(map(str, key.was[1])) if key.was else after.text
        severity, effect = _EFFECTS.get(name, _PINNING_EFFECT)
        yield context.finding(
            f"the default of `{name}` is {_to_json(new)} from {release} on, it was {_to_json(old)}",
            context.spec_key(path) if path else "",
            notes=[f"effect: {effect}"],
            fix=Fix(f"write `{name}: {_to_json(old)}` to keep it", {context.spec_key(name): old}, safe=True),
            severity=severity,
        )


def _is_read(name: str, context: Context) -> bool:
    return name not in _READ_CONDITIONS or _READ_CONDITIONS[name](context)


def _iter_changed_defaults(before: Version, after: Version) -> Iterator[tuple[str, Key]]:
    for path in block_paths():
        for key in (block_keys(path) or {}).values():
            if key.was is not None and before < key.was[1] <= after and key.alias is None:
                yield path, key


def _to_json(value: object) -> str:
    return json.dumps(value)
