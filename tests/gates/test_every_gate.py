"""Walks the registry: each gate's own page is its test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pages import completed, yaml_of

from harness.facts.deepspeed import Target, source_folder
from harness.gates import check
from harness.gates.registry import Gate, gates
from harness.plan.run import resolve
from harness.spec.load import load
from harness.spec.pages import pages

FAMILIES = set("SP BT ZR OF TP PP SQ EX PR OP MD CK CC UT SE HO HF MM EN GT".split())
HEADINGS = ("What it checks", "Why it fails", "Example", "Use instead")
GATES = pytest.mark.parametrize("gate", gates(), ids=lambda g: g.id)
LATEST = "0.19.8"


def found(write, text: str, overrides=(), version: str = LATEST, *, launching: bool = True):
    """The findings of a spec, as it would be launched."""
    target = Target(version, "asked for")
    loaded = load(write("spec.yaml", text), [*completed(text), *overrides], target)
    assert loaded.spec is not None, loaded.findings
    return check(resolve(loaded.spec), loaded.source, deepspeed=target, launching=launching)


def example(gate: Gate, write, overrides=(), **kwargs):
    text = yaml_of(gate, "Example")
    missing = (
        "model." if gate.id == "MD001" else "data." if gate.id == "MD002" else "train.max" if gate.id == "MD003" else ""
    )
    if missing:
        target = Target(kwargs.get("version", LATEST), "")
        loaded = load(write("spec.yaml", text), [*completed(text, without=missing), *overrides], target)
        assert loaded.spec is not None, loaded.findings
        return check(resolve(loaded.spec), loaded.source, deepspeed=target, launching=kwargs.get("launching", True))
    return found(write, text, overrides, **kwargs)


LIMITS = {g.id for g in gates() if "a launch" in g.needs}


def relevant(gate: Gate, report):
    """What this version cannot train is told beside the gate that an example is about."""
    return [f for f in report.findings if f.gate not in LIMITS - {gate.id}]


@GATES
def test_the_page_is_complete(gate):
    for heading in HEADINGS:
        assert gate.section(heading), heading
    assert re.fullmatch(r"[A-Z]{2}\d{3}", gate.id)
    assert gate.id[:2] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", gate.name)
    assert gate.id not in pages()
    assert gate.page.isascii()


@GATES
def test_the_example_fires_this_gate_and_no_other(gate, write):
    report = example(gate, write)
    assert {f.gate for f in relevant(gate, report)} == {gate.id}


@GATES
def test_use_instead_is_clean_against_all_gates(gate, write):
    report = found(write, yaml_of(gate, "Use instead"))
    assert relevant(gate, report) == []


@GATES
def test_the_fix_leaves_nothing(gate, write):
    finding = next(f for f in example(gate, write).findings if f.gate == gate.id)
    assert finding.fix
    assert finding.fix.sets
    overrides = [f"{key}={json.dumps(value)}" for key, value in finding.fix.sets.items()]
    assert relevant(gate, example(gate, write, overrides)) == []
    assert finding.fix.safe or finding.fix.effect, "an unsafe fix says what changes"


@GATES
def test_the_message_keeps_the_rules(gate, write):
    for finding in example(gate, write).findings:
        for text in (finding.message, *finding.notes, finding.label, finding.fix.title if finding.fix else ""):
            assert text == text.strip()
            assert not text.endswith("."), text
            assert text.isascii(), text
            assert "\n" not in text
            first = text.split(" ")[0]
            proper = first.startswith(("`", "ZeRO", "DeepSpeed", "AutoTP", "Adam", "NVMe")) or first.isupper()
            assert not text or proper or not first[0].isupper(), text
        assert finding.place is not None
        assert finding.place.line >= 1
        assert 20 < len(finding.message) < 160


@GATES
def test_it_is_silent_outside_its_versions(gate, write):
    outside = []
    if gate.since:
        major, minor, patch = gate.since
        outside.append(f"{major}.{minor}.{patch - 1}" if patch else f"{major}.{minor - 1}.99")
    if gate.until:
        outside.append(".".join(map(str, (*gate.until[:2], gate.until[2] + 1))))
    for version in outside:
        report = example(gate, write, version=version)
        assert gate.id not in {f.gate for f in report.findings}
        assert gate.id in {s.gate for s in report.skipped}
    if not outside:
        assert gate.id in {f.gate for f in example(gate, write, version="0.14.5").findings}


@GATES
def test_it_is_skipped_and_said_so_without_what_it_needs(gate, write):
    report = example(gate, write, launching=False) if "a launch" in gate.needs else None
    if report is not None:
        assert gate.id in {s.gate for s in report.skipped}
    if "world size" in gate.needs:
        text = re.sub(r"launch:\n  num_gpus: \d+\n", "", yaml_of(gate, "Example"))
        assert gate.id in {s.gate for s in found(write, text).skipped}


@GATES
def test_an_ignore_with_a_reason_silences_it(gate, write):
    report = example(gate, write, [f"ignore.{gate.id}=known"])
    assert gate.id not in {f.gate for f in report.findings}
    assert gate.id in {f.gate for f in report.ignored}


@pytest.mark.skipif(source_folder() is None, reason="needs DeepSpeed's files")
@pytest.mark.parametrize("cite", [pytest.param(c, id=f"{g.id}-{c.file}") for g in gates() for c in g.cites])
def test_the_quote_stands_in_the_installed_deepspeed(cite):
    assert cite.quote in Path(source_folder(), cite.file).read_text(encoding="utf-8")


def test_ids_are_unique_and_names_too():
    names = [g.name for g in gates()]
    assert len(set(names)) == len(names)
