# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from pathlib import Path

import pytest

import harness.gates as package
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Fix
from harness.gates import check_run, registry
from harness.run.resolved_run import resolve_run
from harness.spec.spec_loader import load_spec


def test_every_module_of_rules_is_imported_and_has_gates():
    files = {path.stem for path in Path(registry.__file__).with_name("rules").glob("[!_]*.py")}
    registry.all_gates()
    imported = {name.rpartition(".")[2] for name in sys.modules if name.startswith("harness.gates.rules.")}
    assert imported == files


def test_an_id_is_used_once(monkeypatch):
    monkeypatch.setattr(registry, "_GATES", {})
    registry.gate("XX001 a-gate", upstream="silent")(lambda _: iter(()))
    with pytest.raises(ValueError, match="defined twice"):
        registry.gate("XX001 another-gate", upstream="silent")(lambda _: iter(()))


def report_of(check, write, monkeypatch, **data):
    """The report of this check as the only gate, on a spec at stage 3."""
    monkeypatch.setattr(registry, "_GATES", {})
    registry.gate("XX001 a-gate", **{"upstream": "silent"} | data)(check)
    monkeypatch.setattr(package, "all_gates", lambda: tuple(registry._GATES.values()))
    loaded = load_spec(write("a.yaml", "zero:\n  stage: 3\n"))
    return check_run(resolve_run(loaded.spec), loaded.source, deepspeed=DeepSpeedTarget("0.19.8", "asked for"))


def stage(ctx):
    yield ctx.finding("a stage", "zero.stage", fix=ctx.fix_to_set("zero.stage", 2))
    yield ctx.finding("the same stage", "zero.stage", severity="info", fix=ctx.fix_to_remove("zero.stage", safe=True))


def test_a_finding_has_the_severity_of_its_gate_or_its_own(write, monkeypatch):
    assert [f.severity for f in report_of(stage, write, monkeypatch).findings] == ["error", "info"]
    report = report_of(stage, write, monkeypatch, severity=("warning", "info"))
    assert [(f.gate, f.severity) for f in report.findings] == [("XX001", "warning"), ("XX001", "info")]


def test_fixes_name_the_key_and_the_value(write, monkeypatch):
    fixes = [f.fix for f in report_of(stage, write, monkeypatch).findings]
    assert fixes == [
        Fix("set `zero.stage` to 2", {"zero.stage": 2}),
        Fix("remove `zero.stage`", {"zero.stage": None}, effect="it decides memory"),  # the gate calls it safe
    ]


@pytest.mark.parametrize(("value", "text"), [(True, "true"), ("cpu", "`cpu`"), (1e-5, "1e-05"), (0.5, "0.5")])
def test_a_value_is_shown_as_it_is_written(value, text, write, monkeypatch):
    def check(ctx):
        yield ctx.finding("a key", "zero.stage", fix=ctx.fix_to_set("zero.stage", value))

    assert report_of(check, write, monkeypatch).findings[0].fix.title == f"set `zero.stage` to {text}"


def test_a_guard_that_does_not_hold_keeps_the_gate_silent(write, monkeypatch):
    report = report_of(stage, write, monkeypatch, when=lambda ctx: ctx.stage == 2, needs=("model facts",))
    assert (report.findings, report.skipped, report.checked) == ((), (), 1)
