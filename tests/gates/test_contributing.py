# SPDX-License-Identifier: Apache-2.0
"""The gate that CONTRIBUTING.md adds works as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import harness.gates as package
from harness.gates import registry
from harness.gates.use_instead import use_instead
from tests.support.gate_examples import judge

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_entry_of_the_guide_is_a_gate(write, monkeypatch):
    section = CONTRIBUTING.read_text().partition("## Add a gate")[2]
    entry = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    monkeypatch.setattr(registry, "_GATES", {})
    exec(f"from __future__ import annotations\n{entry}", {"gate": registry.gate, "Cite": registry.Cite})  # noqa: S102
    (gate,) = registry._GATES.values()
    monkeypatch.setattr(package, "all_gates", lambda: (gate,))
    findings = judge(gate, "Example", write).report.findings
    assert [(f.gate, f.severity, f.message) for f in findings] == [
        ("ZR999", "warning", "`zero.sub_group_size` is 0, which steps the optimizer once for each parameter")
    ]
    assert findings[0].fix.title == "remove `zero.sub_group_size`"
    assert use_instead(gate).text == "zero:\n  stage: 3\n"
