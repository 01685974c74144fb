# SPDX-License-Identifier: Apache-2.0
"""Imports of checkpoints that other programs wrote, and conversions back, for `harness checkpoint`.

Here the folder is told, its spec adopted and the request written; `workers/foreign_checkpoint_worker.py` does the rest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.checkpoints.foreign.adopted_spec import AdoptedSpec, WriterFacts, adopt_checkpoint, read_writer_facts
from harness.checkpoints.foreign.folder_reader import inspect_folder
from harness.checkpoints.foreign.inspection import OWN, Inspection
from harness.checkpoints.latest import find_complete
from harness.errors import ExitCode, UserError, user_error
from harness.facts.deepspeed_version import parse_target
from harness.findings import Finding, Fix
from harness.hostinfo.training_packages import PACKAGES, missing_packages_finding
from harness.interpreter import python_command
from harness.launching.hosts.local_host import workers_folder
from harness.launching.process.child_process import kill_session, spawn_child
from harness.spec.spec_loader import load_spec

Log = Callable[[str], None]


@dataclass(frozen=True)
class Imported:
    """The exit code of the worker, the spec to go on with, and what was adopted: None with a given spec."""

    code: int
    spec: Path
    adopted: AdoptedSpec | None


def import_checkpoint(
    folder: Path, run: Path, spec: str | None, log: Log, *, drop_optimizer_states: bool = False
) -> Imported:
    """Make the run directory `run` of the checkpoint in `folder`. Raises UserError (CK101, CK106, CK138)."""
    found = inspect_folder(folder)
    tag = _tag_of(found)
    if found.is_whole is False:
        partial = f"harness checkpoint import {folder} OUT --partial"
        raise user_error(
            "CK101",
            f"`{folder}` is not whole: {'; '.join(found.problems[:4])}",
            fix=f"name another checkpoint; `{partial}` writes what is left of this one, by name",
        )
    _check_new(run)
    _check_packages()
    base = tag.resolve().parent if tag == folder else folder  # where the program wrote its own files
    facts = read_writer_facts(base, tag)
    run.mkdir(parents=True, exist_ok=True)
    try:
        adopted = None if spec is not None else adopt_checkpoint(base, facts, run / "adopted", parse_target(None))
        settings = _settings_of(spec) if spec is not None else (adopted.settings if adopted is not None else {})
        spec_file = Path(spec) if spec is not None else run / "spec.yaml"
        if adopted is not None:
            spec_file.write_text(adopted.text, encoding="utf-8")
        log(facts.data_note)
        request = _request(base, tag, run, settings, facts, drop_optimizer_states=drop_optimizer_states)
        code = _run_worker(run / "import.json", request)
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        raise
    if code:
        shutil.rmtree(run, ignore_errors=True)
    return Imported(code, spec_file, adopted)


def import_partial(folder: Path, out: Path, log: Log) -> int:
    """Write the tensors that are left of a damaged save into `out`. Raises UserError (CK106, CK138)."""
    found = inspect_folder(folder)
    tag = _tag_of(found)
    _check_new(out)
    _check_packages()
    for problem in found.problems:
        log(f"not whole: {problem}")
    out.mkdir(parents=True, exist_ok=True)
    code = _run_worker(out / "request.json", {"action": "partial", "tag": str(tag), "out": str(out)})
    (out / "request.json").unlink(missing_ok=True)
    if code and not any(out.iterdir()):
        out.rmdir()
    return code


def convert_checkpoint(run: Path, out: Path, to: str) -> int:
    """Convert for another program. Raises UserError (CK001, CK106)."""
    checkpoint = find_complete(run) if run.is_dir() else None
    if checkpoint is None:
        message = f"`{run}` has no complete checkpoint"
        raise UserError([Finding("CK001", "error", message, fix=Fix("name a run or a checkpoint"))], ExitCode.USAGE)
    _check_new(out)
    _check_packages()
    request = {"action": "convert", "checkpoint": str(checkpoint), "out": str(out), "to": to}
    file = out.with_name(f".{out.name}.request.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _run_worker(file, request)
    finally:
        file.unlink(missing_ok=True)


def _tag_of(found: Inspection) -> Path:
    """The folder of DeepSpeed's save. Raises UserError (CK138)."""
    if found.kind == OWN:
        message = f"`{found.folder}` is a checkpoint of the harness: there is nothing to import"
        raise user_error("CK138", message, fix=f"harness launch SPEC --resume {found.folder}")
    name = found.facts.get("save")
    if name is None:
        message = f"`{found.folder}` is {found.kind}: it has no save of DeepSpeed"
        fix = Fix(
            "for its weights set `model.name_or_path` to the folder; `harness checkpoint inspect` says what it is"
        )
        raise UserError([Finding("CK138", "error", message, fix=fix)])
    return found.folder if found.folder.name == name and not (found.folder / name).is_dir() else found.folder / name


def _check_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise user_error("CK106", f"`{out}` exists", fix="name a folder that does not exist yet", code=ExitCode.USAGE)


def _check_packages() -> None:
    missing = missing_packages_finding((*PACKAGES, "safetensors"))
    if missing is not None:
        raise UserError([missing], ExitCode.PREFLIGHT)


def _settings_of(spec: str) -> dict[str, Any]:
    """All settings of a given spec. Raises UserError with its errors."""
    loaded = load_spec(spec, (), parse_target(None))
    errors = [finding for finding in loaded.findings if finding.is_error]
    if errors or loaded.spec is None:
        raise UserError(errors, loaded.code)
    return dict(loaded.spec.model_dump(mode="json", exclude={"launch"}))


def _request(
    base: Path, tag: Path, run: Path, settings: dict[str, Any], facts: WriterFacts, *, drop_optimizer_states: bool
) -> dict[str, Any]:
    return {
        "action": "import",
        "tag": str(tag),
        "folder": str(base),
        "run": str(run),
        "settings": settings,
        "model": (settings.get("model") or {}).get("name_or_path"),
        "global_batch": facts.global_batch,
        "position": facts.position,
        "order_seed": facts.order_seed,
        "drop_optimizer_states": drop_optimizer_states,
    }


def _run_worker(file: Path, request: dict[str, Any]) -> int:
    """The exit code of the worker, a signal as a shell has it."""
    file.write_text(json.dumps(request, indent=1) + "\n", encoding="utf-8")
    child = spawn_child(
        python_command(str(workers_folder() / "foreign_checkpoint_worker.py"), str(file)), Path.cwd(), None, None
    )
    try:
        code = child.wait()
    finally:
        kill_session(child, 1.0)
    return code if code >= 0 else 128 - code
