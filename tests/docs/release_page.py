# SPDX-License-Identifier: Apache-2.0
"""The faults of DeepSpeed's releases as a page: `python -m tests.docs.release_page > docs/releases.md`.

It also writes what `harness explain releases` says of the grid into `harness/facts/release_faults.json`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.facts.release_faults import RELEASE_CHANGES, RELEASE_FAULTS, ReleaseFault
from harness.views.release_list import name_of, range_of
from tests.releases.grid_file import load_conformance, load_grid

FAULTS = Path(__file__).parents[2] / "harness/facts/release_faults.json"

_INTRO = (
    "Each release was compared with one plain torch process: three steps of a small model on two gloo ranks of the CPU",
    "accelerator, with each pair of settings at each ZeRO stage, seeded (`tests/releases/cells.py`). A cell is red",
    "if its weights differ from plain torch's by more than 1e-4 of the distance that these moved, in bf16 by more than",
    "four times the rounding of plain torch itself. Each red cell was reduced to the settings that it needs; then each",
    "setting was varied alone. `python -m tests.releases RELEASE` repeats a release. The cells with offload by a ratio",
    "and to NVMe need ops that compile for minutes: they were run on the releases with a row of their own (`--ops`).",
)
_TAIL = (
    "*Refused* cells ended with an error of DeepSpeed: most are a module that is used twice under reentrant activation",
    "checkpointing, which ZeRO-2 and ZeRO-3 refuse. Two faults in one cell hide each other: a row lists settings in",
    "which its fault was seen alone. 0.18.7 to 0.18.9 cannot step at stages 1 and 2 with this torch: all are refused.",
)

_CONFORMANCE = (
    "`validate-config --deepspeed-version` was compared with each release. Random DeepSpeed JSONs, valid ones and ones",
    "with a key that is odd, wrong or misspelt, went to `deepspeed.initialize` and trained for three steps on one or",
    "two ranks of the CPU accelerator, until the release had parsed 150. *Same*: accepted, and DeepSpeed trains what",
    "the file says; or refused, and DeepSpeed refuses it or trains something else. *Warned*: DeepSpeed silently does",
    "something else, and a warning says so. *On purpose*: refused although it runs, with a reason, or beyond what a",
    "gate can see (`tests/conformance/known.py`). Without NVMe, tensor, pipeline and sequence parallelism; the CPU ops",
    "were those of the installed release. `python -m tests.releases --conformance RELEASE` repeats a release.",
)
_CLASSES = {
    "Same": ("agree-good", "agree-bad"),
    "Warned": ("told",),
    "On purpose": ("explained", "known"),
    "Different": ("missed", "false-alarm", "crash", "unknown"),
}
"""A column of the page, and the classes of `tests/conformance` that it counts."""


def to_markdown() -> str:
    """The page."""
    lines = [
        "# Releases of DeepSpeed",
        "",
        "Faults that change what is trained, by release. `harness validate-config --deepspeed-version V` finds those",
        "that a file is in, [`harness upgrade-check`](upgrade.md) compares two releases, `harness explain releases`",
        "prints this list, and `harness explain 0.18.2` the part about a release.",
        "",
        "| Fault | Releases | Settings | What is trained | Instead |",
        "| --- | --- | --- | --- | --- |",
        *(_row(fault) for fault in RELEASE_FAULTS),
        "",
        "## Other changes",
        "",
        "| Change | Releases | Settings | Effect | Instead | Seen |",
        "| --- | --- | --- | --- | --- | --- |",
        *(f"{_row(fault)} {fault.evidence} |" for fault in RELEASE_CHANGES),
        "",
        "## The grid",
        "",
        *_INTRO,
        "",
        "| DeepSpeed | torch | Cells | Red | Refused | Seconds | Date |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
        *(line for name, parts in reversed(load_grid()["releases"].items()) for line in _grid_rows(name, parts)),
        "",
        *_TAIL,
        "",
        "## The gates",
        "",
        *_CONFORMANCE,
        "",
        f"| DeepSpeed | Cases | Parsed | {' | '.join(_CLASSES)} | Date |",
        f"| --- | ---: | ---: |{' ---: |' * len(_CLASSES)} --- |",
        *(
            f"| {name} | {r['cases']} | {r['parsed']} | {' | '.join(map(str, _count(r).values()))} | {r['date']} |"
            for name, r in reversed(load_conformance()["releases"].items())
        ),
    ]
    return "\n".join(lines) + "\n"


def _count(result: dict[str, Any]) -> dict[str, int]:
    return {column: sum(result["counts"].get(kind, 0) for kind in kinds) for column, kinds in _CLASSES.items()}


def _row(fault: ReleaseFault) -> str:
    return f"| {name_of(fault)} | {range_of(fault)} | {fault.settings} | {fault.effect} | {fault.workaround} |"


def _grid_rows(release: str, parts: dict[str, Any]) -> Iterator[str]:
    for part, result in parts.items():
        name = release if part == "cells" else f"{release}, ratio and NVMe"
        if "not_run" in result:
            yield f"| {name} | {result['torch']} | not run: {result['not_run'][:80]} | | | | {result['date']} |"
            continue
        refused = sum(map(len, result["refused"].values()))
        yield (
            f"| {name} | {result['torch']} | {result['compared']} | {len(result['red'])} | {refused} |"
            f" {result['seconds']} | {result['date']} |"
        )


def find_summary() -> dict[str, Any]:
    """`tried` and `drawn` of `release_faults.json`."""
    tried = [name for name, parts in load_grid()["releases"].items() if "not_run" not in parts.get("cells", {})]
    drawn = load_conformance()["releases"].values()
    counts = {"cases": sum(r["cases"] for r in drawn), "different": sum(_count(r)["Different"] for r in drawn)}
    return {"tried": tried, "drawn": {"releases": len(drawn), **counts}}


def write_summary() -> None:
    """The lines of both in the file."""
    text = FAULTS.read_text(encoding="utf-8")
    for key, value in find_summary().items():
        text = re.sub(rf'^  "{key}": .*,$', f'  "{key}": {json.dumps(value)},', text, flags=re.MULTILINE)
    FAULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_summary()
    sys.stdout.write(to_markdown())
