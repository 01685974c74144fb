"""What the commands that take a spec share: the way from a file to a checked run. Knows no command line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import ExitCode, UserError
from harness.facts.deepspeed_version import VERIFIED_RANGE, DeepSpeedTarget, parse_version, resolve_target
from harness.file_io import read_regular
from harness.findings import Finding, Fix, Report, sort_findings
from harness.plan.resolved_run import ResolvedRun, resolve_run
from harness.spec.hostfile import Cluster, read_hostfile
from harness.spec.parse.source import MAX_BYTES, Source
from harness.spec.run_spec import Consumer, RunSpec
from harness.spec.spec_loader import LoadedSpec, load_spec

if TYPE_CHECKING:
    from harness.spec.host_selection import HostSelection


class CheckedFile(NamedTuple):
    """A file, the run that it asks for if that much is clear, and everything found. `source` is there to quote from."""

    report: Report
    source: Source | None
    run: ResolvedRun | None
    code: ExitCode


def check_file(
    file: str,
    *,
    overrides: Sequence[str] | None = None,
    hostfile: str | None = None,
    world_size: int | None = None,
    deepspeed: DeepSpeedTarget | None = None,
    launching: bool = False,
    consumer: Consumer | None = None,
    text: str | None = None,
    selection: HostSelection | None = None,
    allow_code: bool = False,
) -> CheckedFile:
    """Load, resolve and ask every gate; all problems of one file in one pass.

    `consumer` is who reads a DeepSpeed JSON; `text` is the file's, where it is in hand already. `selection` says
    more about hosts. `allow_code`: code that the spec chooses may run (`--allow-local-code`), or nothing of it does.
    """
    deepspeed = deepspeed or resolve_target()
    loaded = load_spec(file, overrides or (), deepspeed, consumer=consumer, text=text)
    if loaded.spec is None or loaded.source is None:
        report = Report(file, sort_findings(loaded.findings), consumer=loaded.consumer)
        return CheckedFile(report, loaded.source, None, loaded.code)
    cluster, found = _resolve_cluster(loaded.spec, file, hostfile, selection)
    found += _check_rank_counts(loaded.spec, cluster, loaded.source, world_size)
    run = resolve_run(loaded.spec, name=_run_name_of(file), cluster=cluster, world_size=world_size, kind=loaded.kind)
    from harness.gates import check_run

    judge = partial(check_run, deepspeed=deepspeed, launching=launching, allow_code=allow_code)
    return _run_gates(loaded, run, found, judge, hostfile)


def _run_gates(
    loaded: LoadedSpec, run: ResolvedRun, found: list[Finding], judge: Callable[..., Report], hostfile: str | None
) -> CheckedFile:
    source = loaded.source
    if source is None:
        raise UserError(loaded.findings, loaded.code)
    report = judge(run, source, consumer=loaded.consumer)
    everything = sort_findings([*loaded.findings, *found, *report.findings])
    report = report._replace(findings=everything, consumer=loaded.consumer)
    files = {f.place.file for f in found if f.place} - {source.file, *source.extra_lines}
    source = source._replace(extra_lines={**source.extra_lines, **{file: _read_lines(file) for file in files}})
    unreadable = any(f.gate == "HO001" for f in found) and hostfile is not None
    code = ExitCode.OK if report.ok else ExitCode.USAGE if unreadable else ExitCode.FINDINGS
    return CheckedFile(report, source, run, code)


def _resolve_cluster(
    spec: RunSpec, file: str, hostfile: str | None, chosen: HostSelection | None
) -> tuple[Cluster | None, list[Finding]]:
    """Who takes part: of the command line, else of the spec's hostfile; then what the command line leaves of them."""
    if chosen is not None and (chosen.slurm or chosen.hosts is not None):
        from harness.spec.host_selection import parse_hosts, slurm_hosts

        if hostfile is not None or (chosen.slurm and chosen.hosts is not None):
            message = "`--hostfile`, `--hosts` and `--slurm` all say which hosts there are"
            return None, [Finding("HO024", "error", message, fix=Fix("give one of them"))]
        cluster, found = parse_hosts(chosen.hosts) if chosen.hosts is not None else slurm_hosts(os.environ)
    elif hostfile is not None:
        cluster, found = read_hostfile(hostfile)
    elif spec.launch.hostfile is not None:
        cluster, found = read_hostfile(str(Path(file).parent / spec.launch.hostfile), named_by_spec=True)
    else:
        return None, _check_filters_without_hosts(chosen)
    if cluster is None or chosen is None or not chosen.has_filters:
        return cluster, found
    from harness.spec.host_selection import select_hosts

    cluster, more = select_hosts(cluster, chosen)
    return cluster, [*found, *more]


def _check_filters_without_hosts(chosen: HostSelection | None) -> list[Finding]:
    if chosen is None or not (chosen.include or chosen.exclude or chosen.num_nodes not in (None, 1)):
        return []
    message = "`--include`, `--exclude` and `--num-nodes` choose among hosts, and there is no hostfile"
    notes = ("on this machine alone, CUDA_VISIBLE_DEVICES chooses devices",)
    return [Finding("HO024", "error", message, notes=notes, fix=Fix("give `--hostfile` or `--hosts`"))]


def _check_rank_counts(spec: RunSpec, cluster: Cluster | None, source: Source, world_size: int | None) -> list[Finding]:
    """Two places that say how many ranks there are, and differ."""
    slots = cluster.num_slots if cluster else None
    asked = spec.launch.num_gpus
    if slots is not None and world_size not in (None, slots):
        message = f"`--world-size {world_size}` is not the {slots} slots of the hostfile"
        return [Finding("HO005", "error", message, fix=Fix("leave one of them out"))]
    if slots is not None and asked not in (None, slots):
        message = f"`launch.num_gpus` is {asked}, the hostfile has {slots} slots and wins"
        place = source.place("launch.num_gpus")
        return [Finding("HO005", "warning", message, "launch.num_gpus", place, fix=Fix("remove `launch.num_gpus`"))]
    return []


def _run_name_of(file: str) -> str:
    plain = "".join(c if (c.isalnum() and c.isascii()) or c in "._-" else "-" for c in Path(file).stem).strip("._-")
    return plain[:64] or "run"


def _read_lines(file: str) -> list[str]:
    try:
        return read_regular(Path(file), MAX_BYTES).decode("utf-8-sig").split("\n")
    except (OSError, ValueError):  # a NUL in the name is a ValueError, as is text that is not UTF-8
        return []


def parse_target(version: str | None) -> DeepSpeedTarget:
    """The DeepSpeed to check against. Raises Refused when `--deepspeed-version` is no version."""
    try:
        return resolve_target(version)
    except ValueError as error:
        raise UserError(
            [Finding("SP011", "error", f"--deepspeed-version: {error}", fix=Fix("write it as `0.19.8`"))],
            ExitCode.USAGE,
        ) from None


def check_release_verified(deepspeed: DeepSpeedTarget) -> list[Finding]:
    """That the gates were not looked up for this release, where that is so."""
    first, last = map(parse_version, VERIFIED_RANGE)
    if first <= deepspeed.version <= last:
        return []
    message = f"the gates were not verified for DeepSpeed {deepspeed.text} ({deepspeed.origin})"
    notes = (
        f"they were looked up from {VERIFIED_RANGE[0]} to {VERIFIED_RANGE[1]}; the nearest of these decides what is said",
    )
    return [Finding("EN020", "info", message, notes=notes, fix=Fix("read what is found with care"))]


def can_fix(finding: Finding, *, unsafe: bool) -> bool:
    """Does the finding bring a fix that `--fix` may apply?"""
    return finding.fix is not None and bool(finding.fix.sets) and (finding.fix.safe or unsafe)
