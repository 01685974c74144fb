# SPDX-License-Identifier: Apache-2.0
"""`release_grid.json`: the results of the grid, a release a line.

A cell is a text of one digit a dimension, the number of its value in `cells.DIMENSIONS`. Of each release: `red` (the
difference of each red cell, and the fault that explains it), `refused` (cells by the error that ended them), `boxes`
(the values with which a fault was seen: of each dimension all, if it is not named).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from tests.releases.cells import DIMENSIONS, Cell, covering_array, needs_ops

GRID_FILE = Path(__file__).with_name("release_grid.json")
CONFORMANCE_FILE = Path(__file__).with_name("release_conformance.json")
Part = Literal["cells", "ops"]


def load_grid() -> dict[str, Any]:
    """The file; without results where there is none."""
    if not GRID_FILE.is_file():
        return {"releases": {}}
    grid: dict[str, Any] = json.loads(GRID_FILE.read_text(encoding="utf-8"))
    return grid


def load_conformance() -> dict[str, Any]:
    """`seed`, `releases`: of each release `cases`, `parsed`, `counts` by class (`tests/conformance/README.md`), and
    `different`, the cases in which the gates and the release disagree.
    """
    results: dict[str, Any] = json.loads(CONFORMANCE_FILE.read_text(encoding="utf-8"))
    return results


def code_of(cell: Cell) -> str:
    """A cell as digits."""
    return "".join(str(values.index(cell[name])) for name, values in DIMENSIONS.items())


def cell_of(code: str) -> Cell:
    """The cell of these digits."""
    return {name: values[int(digit)] for (name, values), digit in zip(DIMENSIONS.items(), code, strict=True)}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of the job's rows. Cells that were tried for a box alone are kept in the box."""
    array = {code_of(cell) for cell in covering_array()}
    red: dict[str, Any] = {}
    refused: dict[str, list[str]] = {}
    count = 0
    for row in rows:
        if "key" not in row:
            continue
        code = code_of(dict(pair.split("=") for pair in row["key"].split(" ")))
        if code not in array:
            continue
        if "error" in row:
            refused.setdefault(row["error"], []).append(code)
            continue
        count += 1
        if not row["off"] <= row["limit"]:
            red[code] = [float(f"{row['off']:.2g}"), row.get("is", "")]
    boxes = [
        {"values": {name: values for name, values in row["box"].items() if len(values) < len(DIMENSIONS[name])}}
        | {
            "least": code_of(row["least"]),
            "off": float(f"{row['answer']['off']:.2g}"),
            "is": row["answer"].get("is", ""),
        }
        for row in rows
        if "box" in row
    ]
    return {"compared": count, "red": red, "refused": refused, "boxes": boxes}


def known_boxes(part: Part) -> list[dict[str, Any]]:
    """The boxes of all releases that have a result, each once, with all their values."""
    boxes: list[dict[str, Any]] = []
    for release in load_grid()["releases"].values():
        for box in release.get(part, {}).get("boxes", []):
            whole = {
                "values": {name: list(values) for name, values in DIMENSIONS.items()} | box["values"],
                "least": cell_of(box["least"]),
                "is": box["is"],
            }
            if whole not in boxes:
                boxes.append(whole)
    return boxes


def save_result(release: str, part: Part, result: dict[str, Any]) -> None:
    """Put a release's result into the file, a line a release and part."""
    grid = load_grid()
    result |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "torch": version("torch").partition("+")[0]}
    grid["releases"].setdefault(release, {})[part] = result
    ordered = sorted(grid["releases"], key=lambda text: [int(number) for number in text.split(".")])
    lines = [f"    {json.dumps(name)}: {_lines(grid['releases'][name])}" for name in ordered]
    head = f'  "dimensions": {json.dumps(DIMENSIONS)},\n  "cells": {json.dumps(_codes(False))},\n  "ops": {json.dumps(_codes(True))}'
    text = "{\n" + head + ',\n  "releases": {\n' + ",\n".join(lines) + "\n  }\n}\n"
    GRID_FILE.write_text(text, encoding="utf-8")


def _codes(ops: bool) -> list[str]:
    return [code_of(cell) for cell in covering_array() if needs_ops(cell) == ops]


def _lines(parts: dict[str, Any]) -> str:
    return "{" + ",\n      ".join(f"{json.dumps(part)}: {json.dumps(result)}" for part, result in parts.items()) + "}"
