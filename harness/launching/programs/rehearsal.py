# SPDX-License-Identifier: Apache-2.0
"""Plan a rehearsal of a run on this machine, and run it: files, training, comparison with the plan."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.check.check_file import CheckedFile
from harness.errors import ExitCode, UserError
from harness.facts.devices import find_device
from harness.facts.environment_variables import is_secret
from harness.facts.model_lookup import find_configuration
from harness.findings import Finding, Fix, sort_findings
from harness.hostinfo import machine
from harness.hostinfo.training_packages import missing_packages_finding
from harness.launching.hosts.local_host import LocalHost, inspect_local_host
from harness.launching.programs.rehearsal_runner import Log, RehearsalStage, run_rehearsal
from harness.launching.setup.run_dir import make_output_folder
from harness.plan.memory.memory_estimate import HOST_RESERVE
from harness.plan.planner import Plan, make_plan
from harness.rehearsal.extrapolation import Quantity, extrapolate
from harness.rehearsal.small_run import SAVE_STEPS, STEPS, AvailableResources, SmallRun, shrink_run
from harness.run.resolved_run import ResolvedRun
from harness.spec.yaml_text import spec_as_yaml
from harness.units import format_bytes


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """The run, the plan of the whole, the small run of this machine, and the folder for its files."""

    run: ResolvedRun
    whole: Plan
    small: SmallRun
    folder: Path
    scripts: Path


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """The stages that ran, their measurements against the plan, and findings about the whole run."""

    stages: tuple[RehearsalStage, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the stage that failed, else that of the findings."""
        failed = [stage.code for stage in self.stages if stage.code]
        has_errors = any(finding.is_error for finding in self.findings)
        return failed[0] if failed else ExitCode.FINDINGS if has_errors else ExitCode.OK


def plan_rehearsal(checked: CheckedFile, run: ResolvedRun, folder: Path) -> RehearsalPlan:
    """The rehearsal that fits this machine. Raises UserError where none does."""
    local_host = inspect_local_host(variables=run.spec.launch.env)
    small = _shrink_run(run, local_host, folder)
    if isinstance(small, Finding):
        if checked.source is not None and small.key:
            small = small._replace(place=checked.source.place(small.key))
        raise UserError([small], ExitCode.FINDINGS if small.gate == "MM008" else ExitCode.PREFLIGHT)
    return RehearsalPlan(run, make_plan(run, Path.cwd(), with_alternatives=False), small, folder, local_host.scripts)


def prepare_rehearsal(plan: RehearsalPlan) -> None:
    """Write the small spec. Raises UserError where training packages are missing or the folder cannot be made."""
    missing = missing_packages_finding()
    if missing is not None:
        raise UserError([missing], ExitCode.PREFLIGHT)
    folder = make_output_folder(plan.folder, "rehearsal")
    (folder / "nvme").mkdir(exist_ok=True)
    head = f"# {plan.run.name}, shrunk by `harness rehearse`: rehearsal.json lists the changed keys.\n"
    raw = {"name": plan.run.name, **json.loads(json.dumps(plan.small.raw_spec))}
    variables = raw.get("launch", {}).get("env", {})
    for name in [name for name, value in variables.items() if is_secret(name, value)]:
        del variables[name]  # random weights and synthetic records need none, and others can read the file
    (folder / "spec.yaml").write_text(spec_as_yaml(raw, head), encoding="utf-8")


def rehearse_run(plan: RehearsalPlan, log: Log, *, allow_code: bool) -> RehearsalResult:
    """Run all stages and compare what they measured with the plan."""
    options = ["--allow-local-code"] if allow_code else []
    config = _synthetic_files_config(plan)
    rehearsal = run_rehearsal(plan.folder, plan.scripts, config, SAVE_STEPS, log, options)
    quantities = extrapolate(rehearsal.measurements, plan.small.plan, plan.whole)
    findings = sort_findings([*rehearsal.findings, *evaluate_rehearsal(quantities, plan.whole)])
    return RehearsalResult(tuple(rehearsal.stages), tuple(quantities), tuple(findings))


def remove_large_files(folder: Path) -> None:
    """Remove model, data, checkpoints and export; logs and figures stay."""
    for path in (folder / "model", folder / "nvme", folder / "export", folder / "data"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob("runs/*/checkpoints"):
        shutil.rmtree(path, ignore_errors=True)


def _shrink_run(run: ResolvedRun, local_host: LocalHost, folder: Path) -> SmallRun | Finding:
    config = find_configuration(run.spec.model.name_or_path, run.spec.model.config, Path.cwd(), run.spec.model.revision)
    if config is None:
        message = "the model's configuration is not available, so the run cannot be shrunk"
        fix = Fix("name a folder with a `config.json`, or a model of the catalogue such as `llama-3.1-70b`")
        return Finding("MM008", "error", message, "model.name_or_path", fix=fix)
    return shrink_run(run, config, _inspect_resources(local_host, folder), _synthetic_paths(folder))


def _inspect_resources(local_host: LocalHost, folder: Path) -> AvailableResources:
    accelerators = machine.accelerators()[: local_host.num_accelerators] if local_host.num_accelerators else ()
    gpu = next((device.name for a in accelerators if (device := find_device(a.name)) is not None), None)
    return AvailableResources(
        local_host.num_accelerators, gpu, machine.host_memory().available, machine.free_bytes(folder) or 0
    )


def _synthetic_paths(folder: Path) -> dict[str, str]:
    return {"model": str(folder / "model"), "data": str(folder / "data" / "*.jsonl"), "nvme": str(folder / "nvme")}


def _synthetic_files_config(plan: RehearsalPlan) -> dict[str, Any]:
    """The request for `synthetic_files_worker.py`: tokens for all steps, a third more for evaluation and padding."""
    spec, settings = plan.run.spec, plan.small.plan.settings
    data = spec.data
    tokens = (settings.tokens_per_step if settings else 1 << 14) * STEPS
    columns = {"text": data.text_column, "prompt": data.prompt_column, "completion": data.completion_column}
    columns |= {"messages": data.messages_column} if data.messages_column else {}
    return {
        "model": str(plan.folder / "model"),
        "config": plan.small.config,
        "dtype": "bfloat16" if spec.precision.bf16 else "float16" if spec.precision.fp16 else "float32",
        "data": str(plan.folder / "data" / "records.jsonl"),
        "format": data.format,
        "tokens": int(tokens * 1.34) + 4096,
        "columns": columns,
        "longest": settings.seq_length // 2 if settings else 128,
    }


def evaluate_rehearsal(quantities: Sequence[Quantity], whole: Plan) -> list[Finding]:
    """Findings for states that differ from the plan, and for memory that would not fit."""
    of_plan = [f for f in whole.findings if f.gate == "MM005"]
    return [*_check_states(quantities), *_check_capacity(quantities, whole), *of_plan]


def _check_states(quantities: Iterable[Quantity]) -> list[Finding]:
    inexact = [q for q in quantities if "." in q.name and q.unit == "bytes" and not q.exact and " " not in q.name]
    if not inexact:
        return []
    parts = [f"`{q.name}` {int(q.measured):,} bytes, planned {int(q.planned or 0):,}" for q in inexact]
    notes = ("of the largest rank, counted on its engine after the first step", *parts)
    message = f"{len(inexact)} kinds of model states differ from the plan"
    fix = Fix("use the larger figure for the whole run, and report this: the plan should be exact")
    return [Finding("MM010", "warning", message, "zero", notes=notes, fix=fix)]


def _check_capacity(quantities: Iterable[Quantity], whole: Plan) -> list[Finding]:
    host = None if whole.capacity.host is None else whole.capacity.host * (1 - HOST_RESERVE)
    limits = {"host memory": (host, "cluster.host_memory"), "device memory": (whole.capacity.gpu, "cluster.gpu")}
    findings = []
    for q in quantities:
        capacity, key = limits.get(q.name.partition(",")[0], (None, ""))
        if capacity is None or q.high is None or q.low is None or q.high <= capacity:
            continue
        severity = "error" if q.low > capacity else "warning"
        low, high, available = (format_bytes(n) for n in (q.low, q.high, capacity))
        message = f"{q.name}: the whole run would need {low} to {high}, and {available} are available"
        fix = Fix("choose a row of `harness plan` that needs less, or more memory")
        findings.append(Finding("MM011", severity, message, key, fix=fix))  # type: ignore[arg-type]
    return findings
