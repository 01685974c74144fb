# SPDX-License-Identifier: Apache-2.0
"""Findings as text: excerpts, marks below what they mean, colour only when asked."""

from __future__ import annotations

import pytest

from harness.check.check_file import check_file
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import UNREADABLE_KEYS, Finding, Place, Report, SkippedGate
from harness.spec.parse.source import Source
from harness.views import findings_text
from harness.views.style import Style, style_for

SPEC = """\
model: {name_or_path: x}
data: {train: y}
train:
  max_steps: 1
  per_device_train_batch_size: 2
zero:
  stage: 2
parallel:
  pipeline_parallel_size: 4
"""
EXPECTED = """\
error[PP001]: ZeRO stage 2 cannot run under a PipelineModule of 4 stages
  --> {file}:7:10
   |
 7 |   stage: 2
   |          ^ shards gradients
...
 9 |   pipeline_parallel_size: 4
   |                           - the pipeline is set here
   |
   = note: DeepSpeed asserts this only when the engine is built, after every rank has its weights
help: set `zero.stage` to 1  (the same steps with more memory)
"""


def test_a_finding_shows_both_places(write):
    file = write("a.yaml", SPEC)
    checked = check_file(file, deepspeed=DeepSpeedTarget("0.19.8", "installed"))
    found = [finding for finding in checked.report.findings if finding.gate == "PP001"]
    assert findings_text.render_findings(found, checked.lines_of, Style()) == EXPECTED.format(file=file)


def test_the_summary_says_what_was_not_looked_at():
    skipped = [
        SkippedGate("BT001", "world size"),
        SkippedGate("BT003", "world size"),
        SkippedGate("PP003", "model facts"),
        *(SkippedGate(f"HO00{n}", "hosts") for n in range(6)),
        SkippedGate("TP001", "DeepSpeed 0.18.0 and newer, this is 0.17.0"),
        SkippedGate("MD004", "a launch"),
        SkippedGate("MD005", "a launch"),
    ]
    finding = Finding("PP001", "error", "m")
    report = Report("a.yaml", (finding,), 15, tuple(skipped), left_out=(finding,))
    assert findings_text.format_summary([report], Style(), against=" against DeepSpeed 0.19.8", verbose=True) == (
        "Found 1 error. 15 gates checked against DeepSpeed 0.19.8, 1 finding left out by --select or --ignore, "
        "9 skipped: BT001, BT003 (no --hostfile or --world-size); PP003 (the model's sizes are not known); "
        "HO000, HO001, HO002, HO003 and 2 more (no --hostfile), 1 of other releases, 2 more on launch"
    )
    assert findings_text.format_summary([report], Style()) == (
        "Found 1 error. 15 gates checked, 1 finding left out by --select or --ignore, 9 skipped"
    )
    waiting = report._replace(skipped=(*skipped, SkippedGate("ZR001", UNREADABLE_KEYS)))
    assert "1 waits for the keys that cannot be read, 9 skipped (`-v`)" in findings_text.format_summary(
        [waiting], Style(), verbose=False
    )


def test_several_files_have_a_line_each():
    warning = Finding("PP001", "warning", "m")
    reports = [Report("good"), Report("b", (warning, warning._replace(severity="error"))), Report("c", (warning,))]
    assert findings_text.render_file_table(reports, Style()) == "1 error, 1 warning  b\n1 warning           c"


def test_an_override_is_shown_as_typed(write):
    checked = check_file(write("a.yaml", SPEC), overrides=["zero.stage=3"])
    shown = findings_text.render_findings(checked.report.findings, checked.lines_of, Style())
    assert "--> the command line, zero.stage=3" in shown
    assert "a.yaml:9:27: the pipeline is set here" in shown


def test_tabs_and_long_lines_do_not_move_the_mark(write):
    file = write("a.json", '{\n\t"train_batch_size":\t"x",\n\t"a":' + " " * 300 + "1}")
    checked = check_file(file)
    shown = findings_text.render_findings(checked.report.findings, checked.lines_of, Style()).splitlines()
    line = next(i for i, row in enumerate(shown) if row.startswith(" 2 |"))
    assert shown[line + 1].expandtabs().index("^") == shown[line].expandtabs().index('"x"')
    assert max(map(len, shown)) < 200


def test_a_place_far_to_the_right_is_shown(write):
    one_line = '{"train_batch_size": 8, "bf16": {"enabled": true}, ' + " " * 200 + '"zero_optimization": {"stag": 3}}'
    checked = check_file(write("ds.json", one_line), deepspeed=DeepSpeedTarget("0.19.8", "asked for"))
    lines = findings_text.render_findings(checked.report.findings, checked.lines_of, Style()).splitlines()
    quoted = next(n for n, line in enumerate(lines) if line.startswith(" 1 | ..."))
    at = lines[quoted].index('"stag"')
    assert lines[quoted + 1].index("^" * 6) == at


def test_good_news_is_one_line():
    report = Report("a.yaml", checked=16, skipped=(SkippedGate("BT001", "world size"),))
    assert findings_text.format_summary([report], Style()) == "OK. 16 gates checked, 1 skipped"


@pytest.mark.parametrize(
    ("env", "tty", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_when_there_is_colour(env, tty, colour, monkeypatch):
    class Stream:
        def isatty(self):
            return tty

    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    style = style_for(Stream())
    assert style.colour is colour
    assert ("\x1b[" in style.paint("x", "red")) is colour


def test_the_mark_stands_below_what_it_means_where_characters_are_escaped():
    source = Source("s.yaml", "yaml", "a\x9bb: wr\u202eng # x", {})
    finding = Finding("SP007", "error", "m", place=Place("s.yaml", 1, 6, 5))
    lines = findings_text.render_findings([finding], source.lines, Style()).split("\n")
    quoted = next(line for line in lines if "wr" in line)
    marks = next(line for line in lines if "^" in line)
    assert quoted.endswith(r"a\x9bb: wr\u202eng # x")
    assert quoted[marks.index("^") : marks.rindex("^") + 1] == r"wr\u202eng"
