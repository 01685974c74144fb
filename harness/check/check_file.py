# SPDX-License-Identifier: Apache-2.0
"""The way from a file to a checked run: load, find the hosts, resolve, ask every gate. Prints nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from harness.errors import ExitCode, UnreadableKeyError
from harness.facts.deepspeed_version import DeepSpeedTarget, resolve_target
from harness.file_io import read_regular
from harness.findings import Finding, Fix, LinesOf, Place, Report, sort_findings
from harness.hostinfo.path_probe import answer_in_time
from harness.run.resolved_run import ResolvedRun, resolve_parallel_dims, resolve_run
from harness.spec.hostfile import Cluster, read_hostfile
from harness.spec.named_paths import (
    HOSTFILE_KEY,
    LocatedPath,
    find_named_paths,
    locate_hostfile,
    locate_paths,
    with_located_paths,
)
from harness.spec.parse.source import MAX_BYTES, Source, join_key
from harness.spec.run_spec import Consumer, RunSpec
from harness.spec.spec_loader import LoadedSpec, load_spec

if TYPE_CHECKING:
    from harness.hostinfo.host_survey import Survey
    from harness.spec.host_selection import HostSelection

_T = TypeVar("_T")


class CheckedFile(NamedTuple):
    """A file, the run that it asks for if that much is clear, and all findings. `source` is its text; `paths` are the
    paths that it names, where they were looked up.
    """

    report: Report
    source: Source | None
    run: ResolvedRun | None
    code: ExitCode
    paths: tuple[LocatedPath, ...] = ()

    @property
    def lines_of(self) -> LinesOf | None:
        """The lines of the file and of those that it names, to quote from."""
        return self.source.lines if self.source is not None else None


class LoadedRun(NamedTuple):
    """A file as it was read, and the hosts that take part. No gate has checked it yet.

    `slot_findings`: the spec and the hosts differ in the number of ranks. `hostfile` is that of the command line.
    `overrides` has `launch.num_gpus` too where the command line sets it. `paths`: those of the spec, where they were
    looked up; its spec has them as the ranks open them.
    """

    loaded_spec: LoadedSpec
    deepspeed: DeepSpeedTarget
    cluster: Cluster | None = None
    host_findings: tuple[Finding, ...] = ()
    slot_findings: tuple[Finding, ...] = ()
    overrides: tuple[str, ...] = ()
    hostfile: str | None = None
    paths: tuple[LocatedPath, ...] = ()

    @property
    def spec(self) -> RunSpec | None:
        """The run spec; None where the file has errors."""
        return self.loaded_spec.spec

    @property
    def name(self) -> str:
        """The name of the run: that of the file, in characters that every file system and scheduler takes."""
        stem = Path(self.loaded_spec.file).stem
        plain = "".join(c if (c.isalnum() and c.isascii()) or c in "._-" else "-" for c in stem).strip("._-")
        return plain[:64] or "run"


def check_file(
    file: str,
    *,
    overrides: Sequence[str] | None = None,
    hostfile: str | None = None,
    world_size: int | None = None,
    default_world_size: int | None = None,
    deepspeed: DeepSpeedTarget | None = None,
    launching: bool = False,
    consumer: Consumer | None = None,
    text: str | None = None,
    selection: HostSelection | None = None,
    allow_code: bool = False,
    look_at_paths: bool = False,
) -> CheckedFile:
    """Load, resolve and ask every gate; all problems of one file in one pass. The arguments are those of `load_run` and
    `check_loaded_run`.
    """
    loaded = load_run(
        file,
        overrides=overrides,
        hostfile=hostfile,
        selection=selection,
        deepspeed=deepspeed,
        consumer=consumer,
        text=text,
        look_at_paths=look_at_paths,
    )
    return check_loaded_run(
        loaded,
        world_size=world_size,
        default_world_size=default_world_size,
        launching=launching,
        allow_code=allow_code,
    )


def load_run(
    file: str,
    *,
    overrides: Sequence[str] | None = None,
    hostfile: str | None = None,
    selection: HostSelection | None = None,
    deepspeed: DeepSpeedTarget | None = None,
    consumer: Consumer | None = None,
    text: str | None = None,
    local_num_gpus: int | None = None,
    look_at_paths: bool = False,
) -> LoadedRun:
    """Read the file and find out which hosts take part. Asks no gate.

    `consumer` is who reads a DeepSpeed JSON; `text` is the file's text where the caller has it. `selection` says more
    about hosts. `local_num_gpus` are the ranks of this machine where there are no hosts. `look_at_paths`: look up every
    path of the spec, also those that can only be in the current folder.
    """
    deepspeed = deepspeed or resolve_target()
    overrides = tuple(overrides or ())
    loaded_spec = load_spec(file, overrides, deepspeed, consumer=consumer, text=text)
    paths: tuple[LocatedPath, ...] = ()
    if loaded_spec.source is not None and loaded_spec.kind == "spec":
        paths = locate_paths(find_named_paths(loaded_spec.source), file, look=look_at_paths)
    readable = loaded_spec.readable
    if readable is None or loaded_spec.source is None:
        return LoadedRun(loaded_spec, deepspeed, overrides=overrides, hostfile=hostfile, paths=paths)
    named = _value_or_none(lambda: readable.launch.hostfile)
    named_by_spec = Path(file).parent / named if named is not None else None
    cluster, findings = _resolve_cluster(hostfile, named_by_spec, selection)
    if loaded_spec.format == "accelerate-yaml" and cluster is not None and hostfile is None:
        from harness.spec.accelerate_machines import with_slots

        cluster = with_slots(cluster, _value_or_none(lambda: readable.cluster.gpus_per_node))
    if named is not None and any(f.gate == "HO001" for f in findings) and hostfile is None:
        located = locate_hostfile(named, file, loaded_spec.source.place(HOSTFILE_KEY))
        findings, paths = [_place_in_spec(f, located) for f in findings], (*paths, located)
    if cluster is None and local_num_gpus is not None and not any(f.is_error for f in findings):
        overrides = (*overrides, f"launch.num_gpus={local_num_gpus}")
        loaded_spec = load_spec(file, overrides, deepspeed, consumer=consumer, text=text)
    if loaded_spec.spec is not None:
        loaded_spec = loaded_spec._replace(spec=with_located_paths(loaded_spec.spec, paths))
    spec, source = loaded_spec.readable, loaded_spec.source
    place = source.place("launch.num_gpus") if source is not None else None
    num_gpus = _value_or_none(lambda: spec.launch.num_gpus) if spec is not None else None
    slot_findings = _check_num_gpus(num_gpus, cluster, place)
    return LoadedRun(loaded_spec, deepspeed, cluster, tuple(findings), tuple(slot_findings), overrides, hostfile, paths)


def check_loaded_run(
    loaded: LoadedRun,
    *,
    world_size: int | None = None,
    default_world_size: int | None = None,
    launching: bool = False,
    allow_code: bool = False,
) -> CheckedFile:
    """Resolve the run and ask every gate.

    `world_size` overrides the spec and may contradict the hosts (HO005). `default_world_size` counts only where neither
    the hosts nor the spec have a number of ranks. `allow_code`: code that the spec chooses may run
    (`--allow-local-code`), or nothing of it does.
    """
    file, consumer = loaded.loaded_spec.file, loaded.loaded_spec.consumer
    findings = [*loaded.loaded_spec.findings, *_placeholder_findings(loaded.paths)]
    spec, source = loaded.loaded_spec.readable, loaded.loaded_spec.source
    if spec is None or source is None:
        report = Report(file, sort_findings(findings), consumer=consumer)
        return CheckedFile(report, source, None, loaded.loaded_spec.code, loaded.paths)
    host_findings = [*loaded.host_findings, *(_check_world_size(loaded.cluster, world_size) or loaded.slot_findings)]
    partial = loaded.loaded_spec.partial
    run = _resolve_readable(loaded, spec, world_size, default_world_size)
    if partial is None:
        run = run._replace(found_model=run.find_model(Path(file).parent if file != "-" else None))
    from harness.gates import check_run

    report = check_run(
        run,
        source,
        deepspeed=loaded.deepspeed,
        launching=launching,
        consumer=consumer,
        allow_code=allow_code,
        unreadable=partial.unreadable if partial is not None else frozenset(),
    )
    report = report._replace(findings=sort_findings([*findings, *host_findings, *report.findings]), consumer=consumer)
    unreadable = any(f.gate == "HO001" for f in host_findings) and loaded.hostfile is not None
    code = ExitCode.OK if report.ok else ExitCode.USAGE if unreadable else ExitCode.FINDINGS
    quoted = _read_quoted_files(host_findings, (source.file, *source.extra_lines))
    source = source._replace(extra_lines={**source.extra_lines, **quoted})
    return CheckedFile(report, source, run if partial is None else None, code, loaded.paths)


def _placeholder_findings(paths: Sequence[LocatedPath]) -> list[Finding]:
    """An error for each path that is a placeholder, whatever the machine and the command."""
    fix = Fix("write your own path or name")
    return [
        Finding("SP053", "error", f"`{path}` is a placeholder", join_key(named.key), named.place, fix=fix)
        for named, state, path, *_ in paths
        if state == "placeholder"
    ]


def _resolve_readable(
    loaded: LoadedRun, spec: RunSpec, world_size: int | None, default_world_size: int | None
) -> ResolvedRun:
    """The run; of a spec with mistakes, as much as can be derived from its readable keys."""
    name, kind = loaded.name, loaded.loaded_spec.kind
    if loaded.loaded_spec.partial is None:
        run = resolve_run(spec, name=name, cluster=loaded.cluster, world_size=world_size, kind=kind)
        if run.parallel_dims.world_size is None and default_world_size is not None:
            run = resolve_run(spec, name=name, world_size=default_world_size, kind=kind)
        return run
    unreadable: Any = _UnreadableNumbers()
    cluster = loaded.cluster
    try:
        return resolve_run(spec, name=name, cluster=cluster, world_size=world_size, kind=kind)
    except UnreadableKeyError:
        dims = _value_or_none(lambda: resolve_parallel_dims(spec, cluster=cluster, world_size=world_size))
        return ResolvedRun(spec, name, cluster, dims or unreadable, unreadable, kind)


class _UnreadableNumbers:
    """Numbers that follow from keys which cannot be read."""

    def __getattr__(self, name: str) -> Any:
        raise UnreadableKeyError(name)


def _value_or_none(read: Callable[[], _T]) -> _T | None:
    """The value; None where its key cannot be read."""
    try:
        return read()
    except UnreadableKeyError:
        return None


def check_survey(run: ResolvedRun, source: Source, survey: Survey) -> Report:
    """The findings of the gates that need the hosts' answers, and of no others."""
    from harness.gates import check_run
    from harness.gates.registry import all_gates

    gates = {gate.id for gate in all_gates() if "the hosts' answers" in gate.needs}
    accelerator = "cuda" if survey.has_accelerators else "cpu"
    report = check_run(run, source, launching=True, accelerator=accelerator, survey=survey)
    return Report(report.file, tuple(f for f in report.findings if f.gate in gates), len(gates))


def _read_quoted_files(findings: Sequence[Finding], known: Collection[str]) -> dict[str, list[str]]:
    """The lines of other files that findings are about, such as a hostfile."""
    files = {finding.place.file for finding in findings if finding.place} - {*known}
    return {file: _read_lines(file) for file in files}


def _resolve_cluster(
    hostfile: str | None, named_by_spec: Path | None, selection: HostSelection | None
) -> tuple[Cluster | None, list[Finding]]:
    """The hosts of the command line, else of the spec's hostfile, and those of them that the command line selects."""
    if selection is not None and (selection.slurm or selection.hosts is not None):
        from harness.spec.host_selection import parse_hosts, slurm_hosts

        if hostfile is not None or (selection.slurm and selection.hosts is not None):
            message = "`--hostfile`, `--hosts` and `--slurm` exclude each other"
            return None, [Finding("HO024", "error", message, fix=Fix("give one of them"))]
        cluster, findings = parse_hosts(selection.hosts) if selection.hosts is not None else slurm_hosts(os.environ)
    elif hostfile is not None:
        cluster, findings = read_hostfile(hostfile)
    elif named_by_spec is not None:
        cluster, findings = read_hostfile(str(named_by_spec), named_by_spec=True)
    else:
        return None, _check_filters_without_hosts(selection)
    if cluster is None or selection is None or not selection.has_filters:
        return cluster, findings
    from harness.spec.host_selection import select_hosts

    cluster, more = select_hosts(cluster, selection)
    return cluster, [*findings, *more]


def _place_in_spec(finding: Finding, located: LocatedPath) -> Finding:
    """A finding about a hostfile that cannot be read, at the key of the spec that names it."""
    key, fix = join_key(HOSTFILE_KEY), finding.fix
    if located.similar is not None:
        fix = Fix(f"did you mean `{located.similar}`?", {key: located.similar}, effect="starts ranks on its hosts")
    return finding._replace(key=key, place=located.named.place, fix=fix)


def _check_filters_without_hosts(selection: HostSelection | None) -> list[Finding]:
    if selection is None or not (selection.include or selection.exclude or selection.num_nodes not in (None, 1)):
        return []
    message = "`--include`, `--exclude` and `--num-nodes` select hosts, and there is no hostfile"
    notes = ("on this machine alone, CUDA_VISIBLE_DEVICES selects devices",)
    return [Finding("HO024", "error", message, notes=notes, fix=Fix("give `--hostfile` or `--hosts`"))]


def _check_world_size(cluster: Cluster | None, world_size: int | None) -> list[Finding]:
    slots = cluster.num_slots if cluster else None
    if slots is None or world_size in (None, slots):
        return []
    message = f"`--world-size {world_size}` is not the {slots} slots of the hosts"
    return [Finding("HO005", "error", message, fix=Fix("leave one of them out"))]


def _check_num_gpus(num_gpus: int | None, cluster: Cluster | None, place: Place | None) -> list[Finding]:
    slots = cluster.num_slots if cluster else None
    if slots is None or num_gpus in (None, slots):
        return []
    message = f"`launch.num_gpus` is {num_gpus}, the hosts have {slots} slots, which count"
    return [Finding("HO005", "warning", message, "launch.num_gpus", place, fix=Fix("remove `launch.num_gpus`"))]


def _read_lines(file: str) -> list[str]:
    try:
        return answer_in_time(file, lambda: read_regular(Path(file), MAX_BYTES)).decode("utf-8-sig").split("\n")
    except (OSError, ValueError):  # a NUL in the name is a ValueError, as is text that is not UTF-8
        return []
