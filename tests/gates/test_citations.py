# SPDX-License-Identifier: Apache-2.0
"""Quotes of DeepSpeed's code: in the releases that `benchmarks/citations.py` looked at, and what errors rest on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.facts.deepspeed_version import parse_version
from harness.gates.registry import Gate, all_gates
from tests.support.gate_examples import speaks_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
FOUND = json.loads(max(RESULTS.glob("citations-*.json")).read_text(encoding="utf-8"))
RELEASES = [(name, parse_version(name)) for name in FOUND["releases"]]
PLACES = {
    (entry["file"], entry["quote"]): {
        name
        for first, last in entry["stands"]
        for name, version in RELEASES
        if parse_version(first) <= version <= parse_version(last or first)
    }
    for entry in FOUND["quotes"]
}
OWN_RULES = ("HO", "MD", "EN", "SE", "ST", "PP016", "CK008", "CC010", "OP040")
"""Families and gates about hosts, files and the harness's own fields, of which DeepSpeed's code says nothing."""
GATES = pytest.mark.parametrize("gate", all_gates(), ids=lambda gate: gate.id)


@GATES
def test_a_quote_stands_in_every_release_that_it_speaks_of(gate: Gate) -> None:
    """A quote that the last run of the benchmark did not look up is new; the installed release has it (next file)."""
    for cite in gate.cites:
        stands = PLACES.get((cite.file, cite.quote))
        asked = {name for name, version in RELEASES if gate.applies_to(version) and speaks_of(cite, version)}
        assert asked, f"{cite} speaks of no release of {gate.id}"
        assert stands is None or asked <= stands, f"not in {sorted(asked - stands)}: {cite}"


def test_the_benchmark_has_looked_up_nearly_all_quotes() -> None:
    """`python benchmarks/citations.py --write` looks up the rest."""
    cites = {(cite.file, cite.quote) for gate in all_gates() for cite in gate.cites}
    assert len(cites - PLACES.keys()) < 30
    assert len(RELEASES) >= 47


def test_the_test_sees_a_quote_that_does_not_stand() -> None:
    """From the result, not from a gate: this default is one of 0.19.3 and newer."""
    stands = PLACES["runtime/constants.py", "GRADIENT_CLIPPING_DEFAULT = 1.0"]
    assert stands == {name for name, version in RELEASES if version >= (0, 19, 3)}


def _rests_on(gate: Gate) -> str:
    """What an error rests on: code of DeepSpeed, a run, or a rule of the harness's own; empty for nothing of these."""
    if any(not cite.file.endswith((".md", ".rst")) for cite in gate.cites):
        return "code"
    if re.search(r"\((?:[^()]*\b)?run\b|\brun (?:on|with|for)\b", gate.page.why, re.IGNORECASE):
        return "run"
    return "own rule" if gate.id.startswith(OWN_RULES) else ""


@pytest.mark.parametrize("gate", [g for g in all_gates() if "error" in g.severities], ids=lambda gate: gate.id)
def test_no_error_rests_on_documentation_alone(gate: Gate) -> None:
    assert _rests_on(gate), "cite the code, or say on the page what a run showed"
