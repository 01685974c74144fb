# SPDX-License-Identifier: Apache-2.0
"""Runs the simulation of a rank in a process of its own, and keeps its answer for the same request and code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import harness
from harness.errors import ExitCode, UserError, user_error
from harness.facts.deepspeed_version import parse_version
from harness.facts.tested_releases import TESTED_RELEASES, describe_untested
from harness.file_io import read_regular, write_atomically
from harness.hostinfo import machine
from harness.hostinfo.loaded_files import are_loaded_files_the_same
from harness.hostinfo.training_packages import install_command
from harness.interpreter import python_command
from harness.launching.process.child_process import own_programs_path, read_child_lines
from harness.plan.simulation.request import SimulationRequest

TIMEOUT_SECONDS = 3600.0
_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "peft")
_MAX_ANSWER = 64 << 20
_SOURCES = ("facts", "patches", "plan", "runtime", "workers")


def simulate_rank(
    request: SimulationRequest, on_progress: Callable[[str], None], *, use_cache: bool = True, order: bool = False
) -> tuple[dict[str, Any], bool]:
    """The worker's result, and whether it was kept from before. `order`: with every collective in turn.

    Raises UserError: MM017 where no device can be simulated here (exit code 4), MM018 where DeepSpeed or the run failed
    on it.
    """
    missing = [name for name in _PACKAGES[:4] if machine.package_version(name) is None]
    if missing:
        raise _unavailable(f"{' and '.join(missing)} not installed", install_command("train"))
    torch, least = str(machine.package_version("torch")), TESTED_RELEASES["torch"][0]
    if parse_version(torch) < parse_version(least):
        raise _unavailable(
            f"torch {torch} is older than {least}, the first that it runs with", f"install torch {least} or newer"
        )
    body = {**request.body, "order": order}
    file = cache_dir() / f"{_digest(body)}.json"
    if use_cache:
        kept = _read_kept(file)
        if kept is not None:
            return kept, True
    result = _run_worker(body, on_progress)
    loaded = result.pop("loaded", None)
    if use_cache and loaded is not None:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, json.dumps({"loaded": loaded, "result": result}))
    return result, False


def _read_kept(file: Path) -> dict[str, Any] | None:
    """The kept result, if the files that its engine ran are what another one would run."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(read_regular(file, _MAX_ANSWER))
        if are_loaded_files_the_same(kept["loaded"]):
            return dict(kept["result"])
    return None


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of kept answers: below XDG_CACHE_HOME, else ~/.cache."""
    env = os.environ if environ is None else environ
    cache_home = Path(env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))  # noqa: PTH111 - Path.home() raises without a home
    return cache_home / "deepspeed-harness" / "simulations"


def _run_worker(body: Mapping[str, Any], on_progress: Callable[[str], None]) -> dict[str, Any]:
    def pass_on(line: dict[str, Any]) -> None:
        if line.get("event") == "progress":
            on_progress(str(line.get("text")))

    script = Path(harness.__file__ or "").resolve().parent / "workers" / "simulation_worker.py"
    with tempfile.TemporaryDirectory(prefix="harness-simulation-") as folder:
        request = Path(folder) / "request.json"
        request.write_text(json.dumps(body), encoding="utf-8")
        command = python_command(str(script), str(request))
        environ = {"PATH": own_programs_path(), "TMPDIR": folder}  # torch makes folders in it when it is imported
        lines = read_child_lines(command, pass_on, environ, timeout=TIMEOUT_SECONDS)
    last = lines[-1] if lines else {}
    if last.get("event") == "result":
        return last
    if last.get("event") == "unavailable":
        raise _unavailable(str(last["reason"]), str(last["fix"]))
    reason = str(last.get("error", "its process ended without an answer"))
    trace = [line for line in str(last.get("trace", "")).splitlines() if line.strip().startswith("File ")]
    raise user_error(
        "MM018",
        f"DeepSpeed's engine failed on the simulated device: {reason.splitlines()[0][:300]}",
        notes=(*(line.strip() for line in trace[-3:]), *filter(None, [describe_untested("torch")])),
        fix="see `harness explain MM018`; `harness plan` does not need the engine",
        code=ExitCode.FINDINGS,
    )


def _unavailable(reason: str, fix: str) -> UserError:
    message = f"no GPU can be simulated here: {reason}"
    return user_error("MM017", message, fix=fix, code=ExitCode.PREFLIGHT)


def _digest(body: Mapping[str, Any]) -> str:
    versions = {name: machine.package_version(name) for name in _PACKAGES}
    text = json.dumps([body, versions, _source_digest()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _source_digest() -> str:
    """Of everything of the harness that runs in the worker."""
    root = Path(harness.__file__ or "").resolve().parent
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for file in sorted((root / folder).rglob("*.[pc][yp]*")):
            if file.suffix in (".py", ".cpp"):
                digest.update(file.read_bytes())
    return digest.hexdigest()
