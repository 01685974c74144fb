# SPDX-License-Identifier: Apache-2.0
"""`Use instead` of a page: the fix of the example, or what is written."""

from __future__ import annotations

import pytest

from harness.gates.registry import all_gates
from harness.gates.use_instead import newest_release, use_instead
from harness.spec.text_editor import EditError

GATES = {gate.id: gate for gate in all_gates()}


def test_the_fix_makes_it():
    assert GATES["OF012"].page.instead is None
    example, instead = GATES["OF012"].page.example.text, use_instead(GATES["OF012"]).text
    assert example.replace("    fast_init: true\n", "") == instead


def test_a_written_one_is_shown():
    gate = GATES["CC002"]
    assert use_instead(gate) == gate.page.instead
    without = gate._replace(docstring=gate.docstring.partition("Use instead:")[0])  # indented before Python 3.13
    with pytest.raises(EditError, match="the file would be empty"):
        use_instead(without)


def test_hosts_that_answer_otherwise_need_no_other_file():
    gate = GATES["EN051"]
    assert gate.page.example.probe
    assert use_instead(gate) == gate.page.example._replace(probe="")


def test_the_release_is_one_that_the_gate_is_true_of():
    for gate in GATES.values():
        assert gate.applies_to(tuple(map(int, newest_release(gate).split("."))))
    assert newest_release(GATES["TP001"]) == "0.19.3"
