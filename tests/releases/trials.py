# SPDX-License-Identifier: Apache-2.0
"""One release of DeepSpeed on gloo ranks: an overlay of the release alone over this environment, and the grid's cells on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.facts.deepspeed_version import installed_source_folder, installed_version
from harness.launching.hosts.local_host import find_free_port
from tests.releases.archives import CACHE, get_archive
from tests.releases.cells import DIMENSIONS, Cell, needs_ops
from tests.support.training.runtime_helpers import JOBS, rank_environment

OVERLAYS = CACHE / "deepspeed-releases"
RANKS = 2
START_LIMIT_S, CELL_LIMIT_S, COMPILE_LIMIT_S = 400.0, 30.0, 400.0
_SLOW = "nothing for"


class CannotRun(Exception):
    """The release does not start here; the text is its reason. `is_slow`: a slow machine may be the reason."""

    def __init__(self, reason: str, *, is_slow: bool = False) -> None:
        super().__init__(reason)
        self.is_slow = is_slow


def overlay(release: str) -> Path:
    """The folder that has this DeepSpeed and nothing else, filled by pip from the release's archive where it is not there.
    For the installed release, the folder of this environment.
    """
    installed = installed_source_folder()
    if release == installed_version() and installed is not None:
        return installed.parent
    place = OVERLAYS / release
    if not (place / "deepspeed").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        archive = get_archive("deepspeed", release)
        environment = {**os.environ, "DS_BUILD_OPS": "0"}
        subprocess.run([*pip, "--target", str(place), str(archive)], check=True, env=environment)
    return place


def run_cells(
    release: str,
    cells: list[Cell],
    *,
    boxes: list[dict[str, Any]] | None = None,
    reduce: bool = True,
    limit_s: float = 1200.0,
) -> list[dict[str, Any]]:
    """The rows that the job wrote for the cells: of each cell `off` and `limit`, or `error`; and the boxes of red cells.
    `boxes` are those of other releases, which are tried first.

    A cell in which the ranks end or stop is an error, and the others run in new processes. Raises CannotRun where not
    even the first cell starts.
    """
    place = overlay(release)
    known: dict[str, Any] = {}
    end = time.monotonic() + limit_s
    while True:
        with tempfile.TemporaryDirectory(prefix="release-") as scratch:
            request = {
                "cells": cells,
                "dimensions": DIMENSIONS if reduce else {},
                "known": known,
                "boxes": boxes or [],
                "scratch": f"{scratch}/shared",
                "has_ops": any(map(needs_ops, cells)),
            }
            rows, reason = _run_once(place, request, Path(scratch), end)
        if any("done" in row for row in rows):
            version = next(row["done"] for row in rows if "done" in row)
            if version != release:
                raise CannotRun(f"{place} has {version}")
            return [{"key": key, **answer} for key, answer in known.items()] + [r for r in rows if "key" not in r]
        started = [row["start"] for row in rows if "start" in row]
        known |= {row["key"]: {k: v for k, v in row.items() if k != "key"} for row in rows if "key" in row}
        if not started or started[-1] in known:
            raise CannotRun(reason, is_slow=reason.startswith(_SLOW))
        known[started[-1]] = {"error": reason}
        if time.monotonic() > end:
            raise CannotRun(f"the time is up after {len(known)} cells; {reason}", is_slow=True)


def _run_once(place: Path, request: dict[str, Any], scratch: Path, end: float) -> tuple[list[dict[str, Any]], str]:
    """The rows of one start of the ranks, and how they ended where they did not come to the end."""
    asked, out = scratch / "request.json", scratch / "out.jsonl"
    asked.write_text(json.dumps(request), encoding="utf-8")
    out.touch()
    logs = [scratch / f"{rank}.log" for rank in range(RANKS)]
    command = [sys.executable, str(JOBS / "grid_cells.py"), str(asked), str(out)]
    ranks: list[subprocess.Popen[bytes]] = []
    reason, port = "", str(find_free_port())
    try:
        for rank, log in enumerate(logs):
            environment = environment_of_rank(place, rank, port)
            with log.open("w") as stream:
                ranks.append(subprocess.Popen(command, env=environment, stdout=stream, stderr=subprocess.STDOUT))
        reason = _wait(ranks, out, request["has_ops"], end)
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
            process.wait()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    request["known"] |= {row["key"]: {k: v for k, v in row.items() if k != "key"} for row in rows if "key" in row}
    return rows, f"{reason}: {_last_error(logs)}"


def _wait(ranks: list[subprocess.Popen[bytes]], out: Path, compiles: bool, end: float) -> str:
    """Wait until all ranks are done, or one failed, or nothing was written for too long."""
    size, since = 0, time.monotonic()
    while True:
        codes = [process.poll() for process in ranks]
        if all(code == 0 for code in codes):
            return ""
        if any(codes):
            return f"exit codes {codes}"
        now = time.monotonic()
        if out.stat().st_size != size:
            size, since = out.stat().st_size, now
        limit = START_LIMIT_S if not size else COMPILE_LIMIT_S if compiles else CELL_LIMIT_S
        if now - since > limit or now > end:
            return f"{_SLOW} {now - since:.0f} s"
        time.sleep(0.1)


def environment_of_rank(place: Path, rank: int, port: str, ranks: int = RANKS) -> dict[str, str]:
    """The environment of a rank under the DeepSpeed of this folder."""
    shared = {**rank_environment(), "PYTHONPATH": str(place), "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1"}
    shared["MASTER_PORT"] = port
    if place.parent == OVERLAYS:  # else the ops of the environment are there
        shared["TORCH_EXTENSIONS_DIR"] = str(place / "torch-extensions")
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    shared["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # old releases cannot load their own checkpoints otherwise
    shared.pop("LOCAL_SIZE", None)  # without it, nothing is left in /dev/shm
    return shared


def _last_error(logs: list[Path]) -> str:
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or ["no output"])[-1].strip()[:200]
