"""What must not be combined: one file per gate, one folder per family. Knows nothing of rendering or running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from harness.facts.deepspeed import Target, target
from harness.findings import Finding, Fix, Report, Skipped, in_reading_order
from harness.gates.context import Context
from harness.gates.registry import Gate, Need, gates
from harness.plan.run import Run
from harness.spec.model import Consumer
from harness.spec.pages import is_claim
from harness.spec.source import Source

if TYPE_CHECKING:
    from harness.facts.survey import Survey

__all__ = ["check"]


def check(
    run: Run,
    source: Source,
    *,
    deepspeed: Target | None = None,
    launching: bool = False,
    consumer: Consumer | None = None,
    accelerator: str | None = None,
    survey: Survey | None = None,
    allow_code: bool = False,
) -> Report:
    """Ask every gate. What lacks a fact that it needs is skipped and said to be skipped.

    `consumer` is who reads a DeepSpeed JSON. `accelerator` is torch's name of the device; where it is not given,
    `cluster.gpu` tells it, or this machine when a run is launched on it. `survey` is what the hosts said of themselves.
    `allow_code`: whoever runs it allows code that the spec chooses, or nothing of the spec's is run.
    A gate that fails is our fault: it becomes finding GT001 and the others still look.
    """
    device = accelerator or _accelerator(run, launching)
    context = Context(run, source, deepspeed or target(), consumer, device, survey, allow_code)
    version, known = context.target.version, _Known(context, launching)
    found: list[Finding] = []
    skipped: list[Skipped] = []
    checked = 0
    for gate in gates():
        if not gate.applies_to(version):
            skipped.append(Skipped(gate.id, f"DeepSpeed {gate.versions}, this is {context.target.text}"))
        elif not _relevant(gate, context):
            checked += 1
        elif missing := next((need for need in gate.needs if not known[need]), None):
            if missing != "a run spec":  # a DeepSpeed JSON has no model or data to miss
                skipped.append(Skipped(gate.id, missing))
        else:
            checked += 1
            found += _ask(gate, context)
    kept, ignored, unused = _suppress(found, context)
    return Report(source.file, in_reading_order([*kept, *unused]), checked, tuple(skipped), tuple(ignored))


def _relevant(gate: Gate, context: Context) -> bool:
    try:
        return gate.when is None or gate.when(context)
    except Exception:
        return True  # let the check itself fail, and tell


class _Known(dict[Need, bool]):
    """Which of the facts that gates need are there; each is looked for once."""

    def __init__(self, context: Context, launching: bool) -> None:
        self._there: Mapping[Need, Callable[[], bool]] = {
            "world size": lambda: context.world is not None,
            "a run spec": lambda: context.run.kind == "spec",
            "a launch": lambda: launching,
            "model facts": lambda: context.model is not None,
            "the accelerator": lambda: context.accelerator is not None,
            "hosts": lambda: context.run.cluster is not None,
            "the hosts' answers": lambda: context.survey is not None,
        }

    def __missing__(self, need: Need) -> bool:
        self[need] = found = self._there[need]()
        return found


def _accelerator(run: Run, launching: bool) -> str | None:
    if run.spec.cluster.gpu is not None:
        return "cpu" if run.spec.cluster.gpu.strip().lower() == "cpu" else "cuda"
    if not launching or run.cluster is not None:
        return None
    import os

    from harness.facts.machine import accelerators_for

    return "cuda" if accelerators_for({**os.environ, **run.spec.launch.env}) else "cpu"


def _ask(gate: Gate, context: Context) -> list[Finding]:
    try:
        return [finding._replace(gate=gate.id) for finding in gate.check(context)]
    except Exception as error:
        return [
            Finding(
                "GT001",
                "warning",
                f"gate {gate.id} failed: {type(error).__name__}: {error}",
                notes=("this is a fault of the harness; what the gate looks for was not checked",),
            )
        ]


def _unused(name: str, known: Mapping[str, Gate]) -> str:
    if name not in known:
        return f"`ignore.{name}` names no gate"
    what = "ignored nothing" if known[name].ignorable else "does not count: no spec can allow itself"
    return f"`ignore.{name}` {what}"


def _suppress(found: list[Finding], context: Context) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """(kept, ignored, complaints about `ignore` entries that ignored nothing)."""
    wanted = context.run.spec.ignore
    odd = [name for name in context.run.spec.allow_undocumented if name not in ("TP001",)]
    known = {gate.id: gate for gate in gates()} if wanted else {}
    obeyed = {name for name in wanted if name not in known or known[name].ignorable}
    kept = [f for f in found if f.gate not in obeyed]
    ignored = [f for f in found if f.gate in obeyed]
    hit = {f.gate for f in ignored}
    unused = [
        Finding(
            "GT002",
            "warning",
            _unused(name, known),
            f"ignore.{name}",
            context.source.place(("ignore", name), of_key=True),
            fix=Fix("remove it"),
        )
        for name in wanted
        if name not in hit and not is_claim(name)
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
        for name in odd
    ]
    return kept, ignored, unused
