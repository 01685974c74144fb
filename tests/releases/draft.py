# SPDX-License-Identifier: Apache-2.0
"""A draft in Markdown of all that a new release of DeepSpeed asks to be looked at, made of its archive, its overlay and its grid.

`python -m tests.releases --new 0.19.9` downloads it, runs the grid and prints this. Nothing is decided here: each list
names the table that has a row to write.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.citations import find_misses, read_release
from benchmarks.message_sites import read_sites
from harness.gates.registry import all_gates
from tests.releases.archives import get_archive, read_python_files
from tests.releases.conformance import load_results
from tests.releases.grid_file import load_grid
from tests.releases.trials import overlay

_LIMIT = 60
"""Lines of a list; the rest is counted."""


def write_draft(release: str, before: str) -> str:
    """The draft for a release, against the release before it."""
    old, new = (read_python_files("deepspeed", name) for name in (before, release))
    sections = {
        "Keys and defaults: `harness/facts/deepspeed_keys.txt`, `harness/upgrades/behavior_changes.txt`": _lines(
            _values(old), _values(new)
        ),
        "Messages: `python benchmarks/log_catalogue.py --write`, then `harness/diagnosis/catalogue/messages`": _lines(
            _messages(old), _messages(new)
        ),
        "Quotes of gates that no longer stand": _citations(release),
        "Patch targets that changed: read each, then `tested` and the digest": _patch_targets(release),
        "Gates that cite a changed file, and say what was run on an older release: recheck by hand": _gates(old, new),
        "The grid: rows of `harness/facts/release_faults.json`": _grid(release, before),
        "Drawn JSONs on which gates and release disagree: `python -m tests.releases --conformance`": _conformance(
            release
        ),
    }
    out = [f"# DeepSpeed {release}, compared with {before}", ""]
    for title, found in sections.items():
        out += [f"## {title}", "", *(f"* {line}" for line in found[:_LIMIT])]
        out += [f"* and {len(found) - _LIMIT} more"] if len(found) > _LIMIT else [] if found else ["Nothing."]
        out.append("")
    return "\n".join(out)


def _lines(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """What is new, gone and different."""
    return [
        *(f"new: {name} {new[name]}".rstrip() for name in new if name not in old),
        *(f"gone: {name} {old[name]}".rstrip() for name in old if name not in new),
        *(f"changed: {name} {old[name]} -> {new[name]}" for name in new if name in old and old[name] != new[name]),
    ]


def _values(files: Mapping[str, str]) -> dict[str, str]:
    """Fields of the classes in files of configuration, and constants, with their values as written."""
    found = {}
    for path, text in files.items():
        name = path.rpartition("/")[2]
        if "config" not in name and name != "constants.py":
            continue
        tree = ast.parse(text)
        for owner, body in [("", tree.body), *((c.name, c.body) for c in tree.body if isinstance(c, ast.ClassDef))]:
            for node in body:
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "value", None)
                if isinstance(targets[0], ast.Name) and value is not None:
                    found[f"`{path}` {owner + '.' if owner else ''}{targets[0].id}"] = f"`{ast.unparse(value)[:100]}`"
    return found


def _messages(files: Mapping[str, str]) -> dict[str, str]:
    keys = (site.key for site in read_sites(dict(files)))
    return {f"`{file}` {function}: {line[:120]}": "" for file, function, line in keys}


def _citations(release: str) -> list[str]:
    files = {cite.file for gate in all_gates() for cite in gate.cites}
    read = read_release(release, get_archive("deepspeed", release), files)
    return [" ".join(map(str, miss)) for miss in find_misses([read])]


def _patch_targets(release: str) -> list[str]:
    path = os.pathsep.join([str(overlay(release)), os.getcwd()])  # noqa: PTH109
    command = [sys.executable, "-m", "harness.patches", "--changed"]
    environment = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if ": " in line]


def _gates(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    changed = {path for path in old if old[path] != new.get(path)}
    return [
        f"{gate.id} {gate.name}: {', '.join(sorted({cite.file for cite in gate.cites} & changed))}"
        for gate in all_gates()
        if gate.until is None and {cite.file for cite in gate.cites} & changed
    ]


def _grid(release: str, before: str) -> list[str]:
    releases = load_grid()["releases"]
    results = {name: releases.get(name, {}).get("cells", {}) for name in (before, release)}
    if "not_run" in results[release]:
        return [f"not run: {results[release]['not_run']}"]
    return [
        *_changes_of(results[before].get("red", {}), results[release].get("red", {}), "red"),
        *(
            f"{name}: {box['values']} {box['is']}"
            for name, result in results.items()
            for box in result.get("boxes", [])
        ),
    ]


def _conformance(release: str) -> list[str]:
    different = load_results()["releases"].get(release, {}).get("different", {})
    return [f"{name}: {kind}, {faults or 'good'}: {did}" for name, (kind, faults, did) in different.items()]


def _changes_of(old: Mapping[str, Any], new: Mapping[str, Any], what: str) -> Iterator[str]:
    yield from (f"now {what}: {code} {new[code]}" for code in new if code not in old)
    yield from (f"no longer {what}: {code} {old[code]}" for code in old if code not in new)
