# SPDX-License-Identifier: Apache-2.0
"""Limits of safe fixes, over every gate: `--fix` runs unattended, as in a pre-commit hook.

A safe fix moves no tier of offload, touches no path, and replaces no written value that works: only values that
DeepSpeed refuses, or that nothing reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import pytest

from harness.facts.deepspeed_version import FALLBACK_VERSION, DeepSpeedTarget
from harness.findings import Finding, Fix
from harness.gates import check_run
from harness.gates.registry import all_gates
from harness.run.resolved_run import resolve_run
from harness.spec.parse.source import KeyPath, Source, join_key, value_at
from harness.spec.parse.source_parser import parse
from harness.spec.spec_loader import load_spec
from harness.spec.text_editor import edits_of_fix
from tests.conformance.case import file_text
from tests.conformance.draw import draw
from tests.support.gate_examples import judge

GATES = {gate.id: gate for gate in all_gates()}
REFUSED = ("raises", "asserts", "crashes")
_TIERS = ("offload_optimizer", "offload_param")


def leaves(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    """Every value in a block that is set or removed as a whole."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from leaves((*path, name), inner)
    else:
        yield path, value


def is_tier(path: KeyPath) -> bool:
    """Where states are: the device of an offload, and which share of them."""
    return len(path) > 1 and path[-2] in _TIERS and path[-1] in ("device", "ratio")


def is_path(path: KeyPath, value: Any) -> bool:
    """A file or a folder, by the key's name or by its look."""
    named = str(path[-1]).endswith(("path", "dir", "folder", "file"))
    return isinstance(value, str) and value not in ("", "auto") and (named or PurePosixPath(value).is_absolute())


def harm(finding: Finding, source: Source) -> list[str]:
    """What a safe fix would do to a file that it must not do."""
    if finding.fix is None or not finding.fix.safe:
        return []
    gate = GATES[finding.gate]
    refused = finding.is_error and gate.upstream in REFUSED
    found = []
    for path, new in edits_of_fix(finding.fix, source).items():
        old = value_at(source.data, path)
        before, after = dict(leaves(path, old)), dict(leaves(path, new))
        for where in {**before, **after}:
            was, becomes = before.get(where), after.get(where)
            if was == becomes:
                continue
            if is_tier(where):
                found.append(f"moves a tier of offload: {join_key(where)} from {was} to {becomes}")
            if is_path(where, was) or is_path(where, becomes):
                found.append(f"touches a path: {join_key(where)} from {was} to {becomes}")
        if old is not None and old != new and not refused and not gate.unread:
            found.append(f"replaces {join_key(path)}: {old}, which works")
    return found


@pytest.mark.parametrize("gate", all_gates(), ids=lambda g: g.id)
def test_a_safe_fix_leaves_what_works(gate, write):
    judged = judge(gate, "Example", write)
    found = [f for f in judged.report.findings if f.gate == gate.id]
    assert [harm(f, judged.source) for f in found] == [[] for _ in found]


def test_the_rule_sees_each_kind_of_harm():
    text = "zero:\n  stage: 3\n  offload_optimizer: {device: nvme, nvme_path: /nvme}\n  sub_group_size: 7\n"
    source = parse(text, "a.yaml")

    def of(gate, severity="warning", **sets):
        keys = {f"zero.{name.replace('__', '.')}": value for name, value in sets.items()}
        return harm(Finding(gate, severity, "", fix=Fix("", keys, safe=True)), source)

    assert of("CK003", offload_optimizer__device="cpu") != []
    assert of("CK003", offload_optimizer__nvme_path=None) != []
    assert of("CK003", offload_optimizer=None) != []
    assert of("CK003", offload_param__device="cpu") != []
    assert of("CK003", sub_group_size=8) != []
    assert of("CK003", stage3_max_live_parameters=8) == []
    assert of("ZR005", "error", sub_group_size=8) == []
    assert of("ZR005", sub_group_size=8) != []
    assert of("ZR024", sub_group_size=None) == []


def test_only_gates_that_need_it_are_excused(write):
    for name, gate in GATES.items():
        if not gate.unread:
            continue
        assert gate.upstream not in REFUSED, name
        judged = judge(gate, "Example", write)
        fixes = [f.fix for f in judged.report.findings if f.gate == name and f.fix]
        replaced = [value_at(judged.source.data, p) for fix in fixes for p in edits_of_fix(fix, judged.source)]
        assert any(fix.safe for fix in fixes) or name in {"OF027", "PR005", "PR020"}, name
        assert any(value is not None for value in replaced), name


def test_no_safe_fix_of_a_drawn_configuration_harms_it(write):
    target, seen = DeepSpeedTarget(FALLBACK_VERSION, "asked for"), 0
    for number in range(200):
        case = draw(1, number)
        suffix, text = file_text(case)
        loaded = load_spec(write(f"case-{number}{suffix}", text), (), target)
        if loaded.spec is None or loaded.source is None:
            continue
        run = resolve_run(loaded.spec, world_size=case.world, kind=loaded.kind)
        for finding in check_run(run, loaded.source, deepspeed=target, consumer=loaded.consumer).findings:
            if finding.gate in GATES:
                seen += finding.fix is not None and finding.fix.safe
                assert harm(finding, loaded.source) == [], f"{finding.gate} in {case.id}"
    assert seen > 50
