# SPDX-License-Identifier: Apache-2.0
"""Export a checkpoint as a Hugging Face folder, for `harness export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.checkpoints.checkpoint_list import find_best_checkpoint, is_checkpoint
from harness.checkpoints.latest import find_complete
from harness.errors import ExitCode, UserError, user_error
from harness.findings import Finding, Fix
from harness.hostinfo.training_packages import PACKAGES, missing_packages_finding
from harness.launching.hosts.local_host import workers_folder
from harness.launching.process.signals import Signals
from harness.launching.setup.launch_context import LaunchContext, LaunchObserver
from harness.launching.supervise.export_step import run_export
from harness.run_records.run_list import fix_for_no_checkpoint, known_runs_notes
from harness.units import parse_bytes


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of `harness export`."""

    dtype: str | None = None
    max_shard_size: str | None = None
    lora: Literal["merge", "adapter"] = "merge"
    verify: bool = False
    allow_code: bool = False

    def to_args(self) -> list[str]:
        """The arguments for `export_worker.py`. Raises UserError for an invalid size."""
        args = ["--dtype", self.dtype] if self.dtype else []
        if self.max_shard_size is not None:
            args += ["--max-shard-bytes", str(_parse_size(self.max_shard_size))]
        args += ["--lora", self.lora] if self.lora != "merge" else []
        args += ["--verify"] if self.verify else []
        return [*args, "--allow-local-code"] if self.allow_code else args


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The checkpoint, the folder to make, and the arguments for `export_worker.py`."""

    checkpoint: Path
    out: Path
    args: list[str]


def plan_export(run: Path, out: Path, options: ExportOptions, *, best: bool = False) -> ExportPlan:
    """Check the request before the export starts. `best`: the checkpoint of the run with the lowest held-out loss, not
    the last complete one. Raises UserError.
    """
    checkpoint = _find_best(run) if best else _find_checkpoint(run)
    _check_output_folder(out)
    arguments = options.to_args()
    missing = missing_packages_finding((*PACKAGES, "safetensors"))
    if missing is not None:
        raise UserError([missing], ExitCode.PREFLIGHT)
    return ExportPlan(checkpoint, out, arguments)


def export_checkpoint(plan: ExportPlan, observer: LaunchObserver) -> int:
    """Run the export; returns its exit code. Raises SignalInterrupt when a signal stopped it."""
    with Signals() as signals:
        ctx = LaunchContext(workers_folder(), observer, signals)
        code = run_export(plan.checkpoint, plan.out, plan.args, ctx, None)
    return code if code >= 0 else 128 - code


def _parse_size(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        fix = Fix("write a size such as 500MB or 2GiB")
        raise UserError([Finding("SP011", "error", f"`--max-shard-size` {error}", fix=fix)], ExitCode.USAGE) from None


def _find_checkpoint(folder: Path) -> Path:
    checkpoint = find_complete(folder) if folder.is_dir() else None
    if checkpoint is None:
        reason = "has no complete checkpoint" if folder.is_dir() else "is not a folder or the name of a run"
        notes = () if folder.exists() else known_runs_notes()
        fix = fix_for_no_checkpoint(folder)
        raise UserError([Finding("CK001", "error", f"`{folder}` {reason}", notes=notes, fix=fix)], ExitCode.USAGE)
    return checkpoint


def _find_best(run: Path) -> Path:
    if is_checkpoint(run):
        message = f"`{run}` is one checkpoint: `--best` chooses from those of a run"
        raise user_error("CK001", message, fix="name the run, or leave `--best` out", code=ExitCode.USAGE)
    newest = _find_checkpoint(run)
    best = find_best_checkpoint(run)
    if best is None:
        fix = Fix(f"leave `--best` out: `{newest.name}` is exported then; `eval.eval_steps` evaluates during a run")
        message = f"`{run}` has no checkpoint whose step was evaluated"
        raise UserError([Finding("CK001", "error", message, fix=fix)], ExitCode.USAGE)
    return best.path


def _check_output_folder(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        reason = "is not empty" if out.is_dir() else "is not a folder"
        raise user_error("CK002", f"`{out}` {reason}", fix="name a folder that does not exist yet", code=ExitCode.USAGE)
