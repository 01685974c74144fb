# SPDX-License-Identifier: Apache-2.0
"""A gate -> the setting to use instead, in the keys of DeepSpeed's JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.findings import Fix
from harness.gates.registry import Gate
from harness.spec.deepspeed_mapping import json_key_of
from harness.spec.parse.source import join_key, split_key


def describe_gate_fix(gate: Gate) -> str:
    """The change where the gate's fault ended a job: the setting itself, and where to read more."""
    from harness.gates.use_instead import check_example

    more = f"`harness explain {gate.id}` has an example, and `harness validate-config` finds it before a job"
    try:
        findings, _ = check_example(gate, gate.page.example, f"example.{gate.page.example.kind}")
    except ValueError:
        return more
    fix = next((finding.fix for finding in findings if finding.fix is not None), None)
    setting = describe_fix(fix) if fix is not None else ""
    return f"{setting}; {more}" if setting else more


def describe_fix(fix: Fix) -> str:
    """The fix of an example: its keys as DeepSpeed's JSON has them; its title where that has no such key."""
    if not fix.sets:
        return fix.title
    keys = {key: _json_path(key) for key in fix.sets}
    if any(path is None for path in keys.values()):
        return fix.title
    removed = [f"`{key}`" for name, key in keys.items() if fix.sets[name] is None]
    written = {key: fix.sets[name] for name, key in keys.items() if fix.sets[name] is not None and key is not None}
    parts = [f"remove {' and '.join(removed)} from the DeepSpeed JSON"] if removed else []
    if written:
        parts.append(f"write `{_format_keys(written)}`" + ("" if removed else " in the DeepSpeed JSON"))
    return " and ".join(parts)


def _is_of_example(key: str, value: object) -> bool:
    """Is it a size, a count or a rate that fits the gate's example, and not the job that failed?"""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value not in (0, 1) and not key.endswith("stage")


def _json_path(key: str) -> str | None:
    """The dotted key of DeepSpeed's JSON for a key of a run spec; None where there is none."""
    path = split_key(key)
    return join_key(path[1:]) if path[0] == "deepspeed" else json_key_of(path)


def _format_keys(values: Mapping[str, Any]) -> str:
    """`"zero_optimization": {"reduce_scatter": false}`: the keys as DeepSpeed's JSON nests them; `...` for a number
    that is of the example alone.
    """
    tree = dict[str, Any]()
    for key, value in values.items():
        *parents, name = key.split(".")
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = "..." if _is_of_example(key, value) else value
    return json.dumps(tree)[1:-1].replace('"..."', "...")
