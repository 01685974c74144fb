# SPDX-License-Identifier: Apache-2.0
"""Gates against settings that must not be combined: one module for each feature of DeepSpeed, in `rules`.

Knows nothing of rendering or running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from harness.errors import UnreadableKeyError
from harness.facts.deepspeed_version import DeepSpeedTarget, resolve_target
from harness.finding_pages import is_ignorable, load_pages
from harness.findings import UNREADABLE_KEYS, Finding, Fix, Report, SkippedGate, sort_findings
from harness.gates.context import Context
from harness.gates.registry import Gate, Need, all_gates
from harness.run.resolved_run import ResolvedRun
from harness.spec.parse.source import KeyPath, Source
from harness.spec.run_spec import Consumer

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import Survey

__all__ = ["check_run"]


def check_run(
    run: ResolvedRun,
    source: Source,
    *,
    deepspeed: DeepSpeedTarget | None = None,
    launching: bool = False,
    consumer: Consumer | None = None,
    accelerator: str | None = None,
    survey: Survey | None = None,
    allow_code: bool = False,
    unreadable: frozenset[KeyPath] = frozenset(),
) -> Report:
    """Run every gate. A gate that lacks a fact which it needs is skipped and reported as skipped.

    `consumer` is who reads a DeepSpeed JSON. `accelerator` is torch's name of the device; where it is not given,
    `cluster.gpu` names it, or this machine when a run is launched on it. `survey` is the facts that the hosts report.
    `allow_code`: whoever runs it allows code that the spec chooses, or nothing of the spec's is run.
    A gate that raises is a bug in harness: it becomes finding GT001, and the others still run.
    `unreadable` are the paths of the spec whose values are wrong: a gate that reads one of them is skipped, since its
    finding could be false.
    """
    device = accelerator or _detect_accelerator(run, launching)
    if unreadable:
        from harness.spec.partial_spec import guard_source

        source = guard_source(source, unreadable)
    context = Context(run, source, deepspeed or resolve_target(), consumer, device, survey, allow_code, unreadable)
    version, known = context.target.version, _AvailableFacts(context, launching)
    findings: list[Finding] = []
    skipped: list[SkippedGate] = []
    checked = 0
    for gate in all_gates():
        if not gate.applies_to(version):
            skipped.append(SkippedGate(gate.id, f"DeepSpeed {gate.versions}, this is {context.target.text}"))
            continue
        try:
            if not _is_relevant(gate, context):
                checked += 1
            elif missing := next((need for need in gate.needs if not known[need]), None):
                if missing != "a run spec":  # a DeepSpeed JSON has no model or data to miss
                    skipped.append(SkippedGate(gate.id, missing))
            else:
                findings += _run_gate(gate, context)
                checked += 1
        except UnreadableKeyError:
            skipped.append(SkippedGate(gate.id, UNREADABLE_KEYS))
    active, ignored, unused = _apply_ignores(findings, context)
    if unreadable:
        unused = []  # what a skipped gate would have found is not known
    return Report(source.file, sort_findings([*active, *unused]), checked, tuple(skipped), tuple(ignored))


def _is_relevant(gate: Gate, context: Context) -> bool:
    try:
        return gate.when is None or gate.when(context)
    except UnreadableKeyError:
        raise
    except Exception:
        return True  # let the check itself fail, which is reported


class _AvailableFacts(dict[Need, bool]):
    """The facts that gates need, and whether each is there; each is looked up once."""

    def __init__(self, context: Context, launching: bool) -> None:
        self._lookups: Mapping[Need, Callable[[], bool]] = {
            "world size": lambda: context.world_size is not None,
            "a run spec": lambda: context.run.kind == "spec",
            "a launch": lambda: launching,
            "model facts": lambda: context.model is not None,
            "the accelerator": lambda: context.accelerator is not None,
            "hosts": lambda: context.run.cluster is not None,
            "the hosts' answers": lambda: context.survey is not None,
        }

    def __missing__(self, need: Need) -> bool:
        self[need] = known = self._lookups[need]()
        return known


def _detect_accelerator(run: ResolvedRun, launching: bool) -> str | None:
    try:
        return _name_accelerator(run, launching)
    except UnreadableKeyError:
        return None


def _name_accelerator(run: ResolvedRun, launching: bool) -> str | None:
    if run.spec.cluster.gpu is not None:
        return "cpu" if run.spec.cluster.gpu.strip().lower() == "cpu" else "cuda"
    if not launching or run.cluster is not None:
        return None
    import os

    from harness.hostinfo.machine import accelerators_for

    return "cuda" if accelerators_for({**os.environ, **run.spec.launch.env}) else "cpu"


def _run_gate(gate: Gate, context: Context) -> list[Finding]:
    try:
        return [
            finding._replace(
                gate=gate.id, severity=finding.severity or gate.severities[0], fix=_honest_fix(finding.fix, context)
            )
            for finding in gate.check(context)
        ]
    except UnreadableKeyError:
        raise
    except Exception as error:
        return [
            Finding(
                "GT001",
                "warning",
                f"gate {gate.id} failed: {type(error).__name__}: {error}",
                notes=("this is a bug in harness; the mistake of this gate was not checked",),
            )
        ]


def _honest_fix(fix: Fix | None, context: Context) -> Fix | None:
    """The fix; not a safe one where it touches what decides training, memory or storage in this run."""
    if fix is None or not fix.safe:
        return fix
    from harness.gates.fix_safety import find_harm

    try:
        harm = find_harm(fix, context)
    except UnreadableKeyError as error:
        harm = f"depends on `{error}`, which cannot be read"
    return fix if harm is None else fix._replace(safe=False, effect=fix.effect or harm)


def _unused_ignore_message(name: str, known: Mapping[str, Gate]) -> str:
    if name not in known:
        return f"`ignore.{name}` names {'a finding that is always reported' if name in load_pages() else 'no gate'}"
    what = "ignored nothing" if known[name].ignorable else "has no effect: a spec cannot allow its own code"
    return f"`ignore.{name}` {what}"


def _apply_ignores(findings: list[Finding], context: Context) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """(active, ignored, complaints about `ignore` entries that ignored nothing)."""
    try:
        ignore = context.run.spec.ignore
        undocumented = [name for name in context.run.spec.allow_undocumented if name not in ("TP001",)]
    except UnreadableKeyError:
        return [], [], []  # the user's choice is in a key that cannot be read
    known = {gate.id: gate for gate in all_gates()} if ignore else {}
    obeyed = {name for name in ignore if name not in known or known[name].ignorable}
    active = [f for f in findings if f.gate not in obeyed]
    ignored = [f for f in findings if f.gate in obeyed]
    used = {f.gate for f in ignored}
    unused = [
        Finding(
            "GT002",
            "warning",
            _unused_ignore_message(name, known),
            f"ignore.{name}",
            context.source.place(("ignore", name), of_key=True),
            fix=Fix("remove it"),
        )
        for name in ignore
        if name not in used and not is_ignorable(name)
    ]
    unused += [
        Finding(
            "GT002",
            "warning",
            f"`allow_undocumented` names `{name}`, which is no gate of that kind",
            "allow_undocumented",
            context.source.place("allow_undocumented"),
            fix=Fix("remove it"),
        )
        for name in undocumented
    ]
    return active, ignored, unused
