# SPDX-License-Identifier: Apache-2.0
"""Check all files that a command line names, and fix them where that is requested, with the memory that a fix
changes. Prints nothing.

Every output format gets the same outcome, wrong usage included. `--select` and `--ignore` say which findings count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.check.check_file import CheckedFile, check_file
from harness.check.file_discovery import discover_files
from harness.check.machine_findings import count_local_ranks, with_findings, with_machine_findings
from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import DeepSpeedTarget, check_release_verified, parse_target
from harness.findings import CheckOutcome, Finding, Fix, Place, Report
from harness.gates.registry import all_gates
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.parse.source import decode, read_bytes
from harness.spec.sections.model_spec import ModelSpec
from harness.units import format_bytes

if TYPE_CHECKING:
    from harness.check.autofix import FixResult
    from harness.plan.memory.memory_estimate import MemoryEstimate
    from harness.plan.planner import Plan
    from harness.spec.run_spec import Consumer


class ValidateOptions(NamedTuple):
    """The options of `harness validate-config`."""

    files: tuple[str, ...]
    hostfile: str | None = None
    world_size: int | None = None
    overrides: tuple[str, ...] = ()
    deepspeed_version: str | None = None
    consumer: Consumer | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    strict: bool = False
    fix: bool = False
    diff: bool = False
    unsafe_fixes: bool = False
    stdin_filename: str | None = None
    format: str = "text"
    here: bool = False
    verbose: bool = False

    @property
    def prints_fixed_text(self) -> bool:
        """With `--fix` and standard input, the fixed text is what goes to standard output."""
        return self.fix and not self.diff and "-" in self.files


class FileResult(NamedTuple):
    """One file's findings; `fix_result` only where fixes were requested."""

    checked: CheckedFile
    fix_result: FixResult | None = None


_CheckText = Callable[[str | None], CheckedFile]


def check_files(options: ValidateOptions) -> tuple[CheckOutcome, list[FileResult]]:
    """The outcome of the whole call, with the worst exit code, and each file's result. Raises UserError for options
    that mean nothing.
    """
    _check_options(options)
    deepspeed = parse_target(options.deepspeed_version)
    selection = parse_rule_selection(options.select, options.ignore)
    files = discover_files(options.files)
    general = [*check_release_verified(deepspeed), *files.problems]
    general = [finding for finding in general if finding.is_error or selection.includes(finding.gate)]
    results = [_check_one_file(file, options, deepspeed, selection) for file in files.files]
    general += check_consumer_read(options.consumer, [result.checked for result in results])
    code = worst_exit_code([result.checked for result in results], general, strict=options.strict)
    reports = tuple(result.checked.report for result in results)
    return (
        CheckOutcome(reports, deepspeed.text, deepspeed.origin, tuple(general), files.passed_over, int(code)),
        results,
    )


def check_consumer_read(consumer: Consumer | None, files: Sequence[CheckedFile]) -> list[Finding]:
    """A note that `--consumer` has no effect where every file is a run spec, which the harness alone reads. No error: a
    pre-commit hook gives the option to whatever files have changed.
    """
    if consumer is None or not files or any(file.run is None or file.run.kind != "spec" for file in files):
        return []
    message = f"`--consumer {consumer}` has no effect: it says who reads a DeepSpeed JSON, and no file is one"
    return [Finding("SP011", "info", message, fix=Fix("leave it out"))]


def usage_outcome(refused: UserError) -> CheckOutcome:
    """The outcome of a call whose options mean nothing."""
    return CheckOutcome((), general=refused.findings, code=int(refused.code))


def worst_exit_code(files: Iterable[CheckedFile], general: Sequence[Finding], *, strict: bool) -> ExitCode:
    """The worst of all files; with `--strict`, a warning is as bad as an error."""
    files = list(files)
    codes = [file.code for file in files]
    codes += [ExitCode.USAGE for finding in general if finding.is_error]
    findings = [*general, *(f for file in files for f in file.report.findings)]
    if strict and any(f.severity == "warning" for f in findings):
        codes.append(ExitCode.FINDINGS)
    return max(codes, default=ExitCode.OK)


def read_stdin(name: str) -> str:
    """The text of standard input, which goes by this name. Raises UserError when it is no text."""
    return decode(read_bytes("-"), name)


def unreadable_file(name: str, refused: UserError) -> CheckedFile:
    """The result of a file that cannot be read."""
    return CheckedFile(Report(name, refused.findings), None, None, refused.code)


def _check_options(options: ValidateOptions) -> None:
    """Raises UserError for options that mean nothing together."""
    if options.unsafe_fixes and not (options.fix or options.diff):
        message, title = (
            "`--unsafe-fixes` fixes nothing by itself",
            "add `--diff` to see its changes, `--fix` to make them",
        )
    elif options.stdin_filename is not None and "-" not in options.files:
        message, title = "`--stdin-filename` names standard input, which is not read", "add `-`, or leave it out"
    else:
        return
    raise UserError([Finding("SP011", "error", message, fix=Fix(title))], ExitCode.USAGE)


def _check_one_file(
    file: str, options: ValidateOptions, deepspeed: DeepSpeedTarget, selection: RuleSelection
) -> FileResult:
    name, stdin_text = file, None
    if file == "-":
        name = options.stdin_filename or "-"
        try:
            stdin_text = read_stdin(name)
        except UserError as refused:
            return FileResult(unreadable_file(name, refused))

    def check(text: str | None) -> CheckedFile:
        checked = check_file(
            name,
            overrides=options.overrides,
            hostfile=options.hostfile,
            world_size=options.world_size,
            default_world_size=count_local_ranks() if options.here else None,
            deepspeed=deepspeed,
            consumer=options.consumer,
            text=text,
            launching=options.here,
            look_at_paths=True,
        )
        return _apply_selection(with_machine_findings(checked, here=options.here), selection)

    if not (options.fix or options.diff):
        return FileResult(check(stdin_text))
    return _fix_file(file, name, stdin_text, check, options)


def _apply_selection(checked: CheckedFile, selection: RuleSelection) -> CheckedFile:
    if not selection:
        return checked
    is_spec = checked.run is None or checked.run.kind == "spec"
    readable = checked.run is not None and checked.code is not ExitCode.USAGE
    report = selection.filter_report(checked.report, readable=readable, is_spec=is_spec)
    return checked._replace(report=report, code=ExitCode.OK if readable and report.ok else checked.code)


def _fix_file(file: str, name: str, stdin_text: str | None, check: _CheckText, options: ValidateOptions) -> FileResult:
    """Fix the text in memory; write it only for `--fix`, and note why a file was not written."""
    from harness.check import autofix

    original = autofix.read_if_possible(file)
    text = stdin_text if stdin_text is not None else original.text if original else None
    if text is None:
        return FileResult(check(None))
    before = check(text)
    result = autofix.apply_fixes(name, text, check, unsafe=options.unsafe_fixes)
    grown = find_memory_change(name, before, result.checked) if options.unsafe_fixes and result.changed else None
    if options.diff or not result.changed:
        return FileResult(with_findings(before, [grown]) if grown else before, result)
    reason = autofix.write_fixed(file, original, result.after) if original else None
    if reason is not None:
        return FileResult(before, result._replace(after=text, applied=(), gone=(), refused=(), unwritten=reason))
    fixed = result.checked._replace(report=result.checked.report._replace(fixed=result.fixed_findings))
    return FileResult(with_findings(fixed, [grown]) if grown else fixed, result)


_EXAMPLE_MODEL, _EXAMPLE_RANKS = "meta-llama/Llama-3.1-70B", 8
"""What is planned where a file names no model, as a DeepSpeed JSON, or no ranks."""
_TOLERANCE = 0.02


def find_memory_change(file: str, before: CheckedFile, after: CheckedFile) -> Finding | None:
    """The finding that fixes moved an offload, or made a run take more GPU memory, host memory or disk; None where
    nothing of it holds, or where no plan can be made.
    """
    if before.run is None or after.run is None:
        return None
    folder = Path(file).parent
    runs = [before.run, after.run]
    plans, example = [_plan(run, folder) for run in runs], ""
    if any(plan.memory is None for plan in plans):
        example = _describe_example(after.run)
        plans = [_plan(_as_example(run), folder) for run in runs]
    old, new = plans[0].memory, plans[1].memory
    changes = [] if old is None or new is None else _list_changes(old, new)
    has_moved = _list_devices(before.run) != _list_devices(after.run)
    if not changes or not (has_moved or any(now > was for _, was, now in changes)):
        return None
    text = ", ".join(f"{tier} {format_bytes(was)} -> {format_bytes(now)}" for tier, was, now in changes)
    needed = " and ".join(f"{format_bytes(now)} of the {tier}" for tier, was, now in changes if now > was)
    return Finding(
        "SP041",
        "warning",
        f"the fixes change the memory that the run needs: {text}",
        place=Place(file, 1, 1),
        notes=(f"planned for {example}, which the file leaves open",) if example else (),
        fix=Fix(f"keep the fixes where there is as much: {needed}") if needed else None,
    )


def _plan(run: ResolvedRun, folder: Path) -> Plan:
    from harness.plan.planner import make_plan

    return make_plan(run, folder, with_alternatives=False, with_search=False, build=False)


def _as_example(run: ResolvedRun) -> ResolvedRun:
    """The run with the model, ranks and micro-batch of the example wherever it leaves them open."""
    spec, train = run.spec, run.spec.train
    if not _names_model(run):
        spec = spec.model_copy(update={"model": ModelSpec(name_or_path=_EXAMPLE_MODEL)})
    if run.batch.micro_batch is None:
        sizes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": None, "global_batch_size": None}
        spec = spec.model_copy(update={"train": train.model_copy(update=sizes)})
    ranks = run.parallel_dims.world_size or _EXAMPLE_RANKS
    return resolve_run(spec, name=run.name, cluster=run.cluster, world_size=ranks, kind=run.kind)


def _describe_example(run: ResolvedRun) -> str:
    parts = [] if _names_model(run) else [_EXAMPLE_MODEL.rpartition("/")[2]]
    parts += [] if run.parallel_dims.world_size else [f"{_EXAMPLE_RANKS} ranks"]
    parts += [] if run.batch.micro_batch else ["a micro-batch of 1"]
    return ", ".join(parts)


def _names_model(run: ResolvedRun) -> bool:
    return run.spec.model.name_or_path is not None or run.spec.model.config is not None


def _list_changes(old: MemoryEstimate, new: MemoryEstimate) -> list[tuple[str, int, int]]:
    """The kinds of memory that differ by more than 2 %, with the bytes before and after."""
    kinds = (
        ("GPU memory of a rank", old.gpu_peak, new.gpu_peak),
        ("memory of a host", old.host_peak, new.host_peak),
        ("NVMe of a host", old.nvme_bytes, new.nvme_bytes),
    )
    return [(kind, was, now) for kind, was, now in kinds if abs(now - was) > _TOLERANCE * was]


def _list_devices(run: ResolvedRun) -> list[str]:
    """Where the optimizer and the parameters are offloaded to."""
    sections = run.spec.zero.offload_optimizer, run.spec.zero.offload_param
    return [section.device if section else "none" for section in sections]


class RuleSelection(NamedTuple):
    """Ids and families that count (empty: all of them), and those that do not."""

    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.select or self.ignore)

    def includes(self, id_: str) -> bool:
        """Does the finding count? The more exact word wins: `--select ZR --ignore ZR001` leaves all of ZR but one."""
        if id_ in self.ignore:
            return False
        if id_ in self.select:
            return True
        return id_[:2] not in self.ignore and (not self.select or id_[:2] in self.select)

    def filter_report(self, report: Report, *, readable: bool, is_spec: bool) -> Report:
        """The report without what does not count.

        Errors in reading a file are kept where the gates did not see all of it: without them it would be called good.
        """
        if not self:
            return report
        gates = {gate.id for gate in all_gates()} if not readable else set()
        kept = [f for f in report.findings if f.is_error and not readable and f.gate not in gates]
        selected = tuple(f for f in report.findings if self.includes(f.gate) or f in kept)
        left_out = tuple(f for f in report.findings if f not in selected)
        skipped = tuple(s for s in report.skipped if self.includes(s.gate))
        checked = self._count_checked(report, is_spec=is_spec) if report.checked else 0
        return report._replace(findings=selected, left_out=left_out, skipped=skipped, checked=checked)

    def _count_checked(self, report: Report, *, is_spec: bool) -> int:
        skipped = {s.gate for s in report.skipped}
        gates = [g for g in all_gates() if g.id not in skipped and (is_spec or "a run spec" not in g.needs)]
        return sum(self.includes(gate.id) for gate in gates)


def parse_rule_selection(select: Sequence[str], ignore: Sequence[str]) -> RuleSelection:
    """From the words of the command line, separated by commas or given again. Raises UserError for unknown ones."""
    if not select and not ignore:
        return RuleSelection()
    return RuleSelection(frozenset(_resolve_ids("--select", select)), frozenset(_resolve_ids("--ignore", ignore)))


def _resolve_ids(option: str, words: Sequence[str]) -> list[str]:
    from harness.check.finding_index import find_nearest_id, list_rows

    names = {row.name.upper(): row.id for row in list_rows()}
    ids = set(names.values())
    families = {id_[:2] for id_ in ids}
    selected_ids, unknown = [], []
    for word in [part.strip() for text in words for part in text.split(",")]:
        plain = word.upper()
        if plain in ids or plain in families or plain in names:
            selected_ids.append(names.get(plain, plain))
        else:
            nearest = find_nearest_id(word) if word else None
            fix = (
                f"did you mean `{nearest}`?"
                if nearest
                else "`harness explain` lists ids; a family is their first two letters"
            )
            message = f"`{option} {word}` names no finding and no family of findings"
            unknown.append(Finding("SP011", "error", message, fix=Fix(fix)))
    if unknown:
        raise UserError(unknown, ExitCode.USAGE)
    return selected_ids
