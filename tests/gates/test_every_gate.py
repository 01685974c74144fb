# SPDX-License-Identifier: Apache-2.0
"""Walks the registry: each gate's own page is its test."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from harness.check.finding_index import FAMILIES
from harness.facts.deepspeed_version import installed_source_folder, installed_version, parse_version
from harness.finding_pages import load_pages
from harness.gates.page import Example
from harness.gates.registry import all_gates
from harness.gates.use_instead import use_instead
from harness.spec.text_editor import EditError
from tests.support.gate_examples import example_of, judge, speaks_of

ONLY_THE_USER_KNOWS = ("MD015", "SE007", "UT017")
"""Gates whose fix is a reason or a path of the user's own."""
GATES = pytest.mark.parametrize("gate", all_gates(), ids=lambda g: g.id)


def report_on(gate, write, heading="Example", overrides=(), **kwargs):
    return judge(gate, heading, write, overrides, **kwargs).report


LIMITS = {g.id for g in all_gates() if "a launch" in g.needs}


COMPANIONS = {"OF032": {"CK003"}, "EX017": {"SE001"}}
"""Gates that fire with every example of another: what DeepSpeed does with any JSON that has its optimizer on NVMe, and
a model's own code."""


def relevant(gate, report):
    """What this version cannot train is told beside the gate that an example is about, and fp32 where a JSON of a few
    keys says no precision (PR067).
    """
    return [
        f for f in report.findings if f.gate not in (LIMITS | {"PR067"}) - {gate.id} | COMPANIONS.get(gate.id, set())
    ]


@GATES
def test_the_page_is_complete(gate):
    page = gate.page  # without any of its parts it cannot be read
    assert page.example.lead == ""
    assert re.fullmatch(r"[A-Z]{2}\d{3}", gate.id)
    assert gate.id[:2] in FAMILIES
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", gate.name)
    assert gate.id not in load_pages()
    assert gate.docstring.isascii()


@GATES
def test_the_example_fires_this_gate_and_no_other(gate, write):
    judged = judge(gate, "Example", write)
    assert [f"{f.gate}: {f.message}" for f in judged.loading if f.severity != "info"] == []
    assert {f.gate for f in relevant(gate, judged.report)} == {gate.id}


@GATES
def test_use_instead_is_clean_against_all_gates(gate, write):
    assert relevant(gate, report_on(gate, write, "Use instead")) == []


@GATES
def test_the_fix_leaves_nothing(gate, write):
    judged = judge(gate, "Example", write)
    for finding in relevant(gate, judged.report):
        assert finding.fix, "every finding has a fix"
        if "hosts" in gate.needs and not finding.fix.sets:
            return  # it is mended in the hostfile, which is no key of the spec
        if gate.id in ONLY_THE_USER_KNOWS and gate.page.instead is not None:
            assert not finding.fix.sets, "`--fix` would invent it"
            return
        assert finding.fix.sets, "a fix sets keys, unless it is made on hosts"
        assert finding.fix.safe or finding.fix.effect, "an unsafe fix says what changes"
    sets = {key: value for f in relevant(gate, judged.report) for key, value in f.fix.sets.items()}
    overrides = [f"{judged.source.user_key(key)}={json.dumps(value)}" for key, value in sets.items()]
    assert relevant(gate, report_on(gate, write, overrides=overrides)) == []


@GATES
def test_the_title_of_a_fix_says_what_it_does(gate, write):
    """What `--fix --unsafe-fixes` would do: remove something, or set a key, by its name or the value."""
    for finding in relevant(gate, judge(gate, "Example", write).report):
        title, sets = finding.fix.title, finding.fix.sets
        names = [
            word
            for key, value in sets.items()
            for word in (
                key.split(".")[-1],
                f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('[]"'),
            )
        ]
        removes = any(value is None or isinstance(value, list) for value in sets.values())
        is_said = any(name in title for name in names) or (removes and re.search("remove|leave", title))
        assert is_said or not sets, f"{title}: {dict(sets)}"


@GATES
def test_a_written_use_instead_says_more_than_the_fix(gate):
    """What the fix makes of the example is not written a second time."""
    if gate.page.instead is None:
        return
    derived = gate._replace(docstring=re.split(r"\n *Use instead:", gate.docstring)[0])  # 3.13 takes the indent away
    assert derived.page.instead is None
    with contextlib.suppress(EditError):  # the fix leaves nothing of the file
        assert use_instead(derived) != gate.page.instead


@GATES
def test_a_severity_is_one_of_the_gates(gate, write):
    severities = {f.severity for f in report_on(gate, write).findings if f.gate == gate.id}
    assert severities <= set(gate.severities)


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
            assert not text or proper or not first[0].isupper(), f"lower case, please: {text}"
        assert finding.place is not None
        assert finding.place.line >= 1
        assert 20 < len(finding.message) < 160, "more than 20 characters, fewer than 160"


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
        assert gate.id in {s.gate for s in report_on(gate, write, example=example._replace(hostfile="")).skipped}
    for need, lines in (("world size", r"  num_gpus: \d+\n"), ("the accelerator", r"  gpu: \S+\n")):
        if need in gate.needs and re.search(lines, example.text):
            text = re.sub(lines, "", re.sub(r"^(launch|cluster):\n" + lines + r"(?!  )", "", example.text, flags=re.M))
            report = report_on(gate, write, example=Example(text, example.kind), launching=False, accelerator=None)
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


def list_quotes_of_the_installed():
    """The quotes that say that they stand in the installed release; none without DeepSpeed."""
    installed = installed_version()
    version = parse_version(installed) if installed else None
    for gate in all_gates() if version else ():
        for cite in gate.cites:
            if gate.applies_to(version) and speaks_of(cite, version):
                yield pytest.param(cite, id=f"{gate.id}-{cite.file}")


@pytest.mark.skipif(installed_source_folder() is None, reason="needs DeepSpeed's files")
@pytest.mark.parametrize("cite", list(list_quotes_of_the_installed()))
def test_the_quote_stands_in_the_installed_deepspeed(cite):
    assert cite.quote in Path(installed_source_folder(), cite.file).read_text(encoding="utf-8")


def test_a_name_is_used_once():
    names = Counter(gate.name for gate in all_gates())
    assert [name for name, count in names.items() if count > 1] == []
