"""Walks the registry: each gate's own page is its test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pages import Example, example_of, judge

from harness.finding_pages import load_pages
from harness.gates.registry import all_gates
from harness.hostinfo.installed_deepspeed import installed_source_folder

FAMILIES = set("SP BT ZR OF TP PP SQ EX PR OP MD CK CC UT SE HO HF MM EN GT".split())
HEADINGS = ("What it checks", "Why it fails", "Example", "Use instead")
GATES = pytest.mark.parametrize("gate", all_gates(), ids=lambda g: g.id)


def report_on(gate, write, heading="Example", overrides=(), **kwargs):
    return judge(gate, heading, write, overrides, **kwargs).report


LIMITS = {g.id for g in all_gates() if "a launch" in g.needs}


COMPANIONS = {"OF032": {"CK003"}}
"""Gates that fire with every example of another: what DeepSpeed does with any JSON that has its optimizer on NVMe."""


def relevant(gate, report):
    """What this version cannot train is told beside the gate that an example is about."""
    return [f for f in report.findings if f.gate not in LIMITS - {gate.id} | COMPANIONS.get(gate.id, set())]


@GATES
def test_the_page_is_complete(gate):
    for heading in HEADINGS:
        assert gate.section(heading), heading
    assert re.fullmatch(r"[A-Z]{2}\d{3}", gate.id)
    assert gate.id[:2] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", gate.name)
    assert gate.id not in load_pages()
    assert gate.page.isascii()


@GATES
def test_the_example_fires_this_gate_and_no_other(gate, write):
    assert {f.gate for f in relevant(gate, report_on(gate, write))} == {gate.id}


@GATES
def test_use_instead_is_clean_against_all_gates(gate, write):
    assert relevant(gate, report_on(gate, write, "Use instead")) == []


@GATES
def test_the_fix_leaves_nothing(gate, write):
    judged = judge(gate, "Example", write)
    for finding in relevant(gate, judged.report):
        assert finding.fix
        if "hosts" in gate.needs and not finding.fix.sets:
            return  # it is mended in the hostfile, which is no key of the spec
        assert finding.fix.sets
        assert finding.fix.safe or finding.fix.effect, "an unsafe fix says what changes"
    sets = {key: value for f in relevant(gate, judged.report) for key, value in f.fix.sets.items()}
    overrides = [f"{judged.source.user_key(key)}={json.dumps(value)}" for key, value in sets.items()]
    assert relevant(gate, report_on(gate, write, overrides=overrides)) == []


@GATES
def test_the_message_keeps_the_rules(gate, write):
    for finding in report_on(gate, write).findings:
        for text in (finding.message, *finding.notes, finding.label, finding.fix.title if finding.fix else ""):
            assert text == text.strip()
            assert not text.endswith("."), text
            assert text.isascii(), text
            assert "\n" not in text
            first = text.split(" ")[0]
            proper = first.startswith(("`", "ZeRO", "DeepSpeed", "Auto", "Adam", "NVMe")) or first.isupper()
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
        report = report_on(gate, write, version=version)
        assert gate.id not in {f.gate for f in report.findings}
        assert gate.id in {s.gate for s in report.skipped}
    if not outside:
        assert gate.id in {f.gate for f in report_on(gate, write, version="0.14.5").findings}


@GATES
def test_it_is_skipped_and_said_so_without_what_it_needs(gate, write):
    if "a launch" in gate.needs:
        assert gate.id in {s.gate for s in report_on(gate, write, launching=False).skipped}
    example = example_of(gate, "Example")
    if "hosts" in gate.needs:
        assert gate.id in {s.gate for s in report_on(gate, write, example=example._replace(hostfile=None)).skipped}
    for need, lines in (("world size", r"  num_gpus: \d+\n"), ("the accelerator", r"  gpu: \S+\n")):
        if need in gate.needs and re.search(lines, example.text):
            text = re.sub(lines, "", re.sub(r"^(launch|cluster):\n" + lines + r"(?!  )", "", example.text, flags=re.M))
            report = report_on(
                gate, write, example=Example(text, example.kind, None), launching=False, accelerator=None
            )
            assert gate.id in {s.gate for s in report.skipped}


@GATES
def test_an_ignore_with_a_reason_silences_it(gate, write):
    if example_of(gate, "Example").kind == "json":
        return  # a DeepSpeed JSON has no place for it; `validate-config --ignore` is for that
    report = report_on(gate, write, overrides=[f"ignore.{gate.id}=known"])
    if not gate.ignorable:
        assert {f.gate for f in report.findings} == {gate.id, "GT002"}
        return
    assert gate.id not in {f.gate for f in report.findings}
    assert gate.id in {f.gate for f in report.ignored}


@pytest.mark.skipif(installed_source_folder() is None, reason="needs DeepSpeed's files")
@pytest.mark.parametrize("cite", [pytest.param(c, id=f"{g.id}-{c.file}") for g in all_gates() for c in g.cites])
def test_the_quote_stands_in_the_installed_deepspeed(cite):
    assert cite.quote in Path(installed_source_folder(), cite.file).read_text(encoding="utf-8")


def test_ids_are_unique_and_names_too():
    names = [g.name for g in all_gates()]
    assert len(set(names)) == len(names)
