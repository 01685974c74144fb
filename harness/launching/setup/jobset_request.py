# SPDX-License-Identifier: Apache-2.0
"""From a run spec to the JobSet of its launch: hosts, gates, plan and checks.

Writes nothing and contacts no cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.check.check_file import CheckedFile, LoadedRun, check_loaded_run, load_run
from harness.check.machine_findings import with_findings, with_launch_findings
from harness.errors import ExitCode
from harness.facts.devices import find_device
from harness.findings import Finding, Fix
from harness.hostinfo.machine import is_cpu_forced
from harness.launching.setup.jobset import JobSetOptions, Manifest, PodMemory, Pods, build_jobset
from harness.launching.setup.jobset_checks import check_jobset, to_jobset_name
from harness.launching.setup.launch_checks import refuse_deepspeed_json
from harness.launching.setup.launch_request import LaunchLog, LaunchRejected, LaunchRequest
from harness.launching.setup.slurm import drop_options
from harness.plan.planner import make_plan
from harness.run.resolved_run import ResolvedRun
from harness.spec.host_selection import HostSelection
from harness.spec.run_spec import RunSpec

NO_MANIFEST = "No manifest was written"
_OWN_OPTIONS = (
    *("--kubernetes", "--image", "--namespace", "--pvc", "--workdir", "--env-from", "--nvme-class", "--output"),
    *("--run-id", "--dry-run", "--no-preflight"),
)
_HOST_OPTIONS = ("--hostfile", "--hosts", "--include", "--exclude", "--num-nodes", "--num-gpus")
_REPLACED_OPTIONS = ("--resume", "--max-restarts", "--no-ssh", "--node-rank", "--master-addr")


@dataclass(frozen=True, slots=True)
class JobSetRequest:
    """A launch to render as a JobSet: the launch itself, the options, and the arguments of the command line."""

    launch: LaunchRequest
    options: JobSetOptions
    arguments: tuple[str, ...]


def prepare_jobset(request: JobSetRequest, log: LaunchLog) -> Manifest | LaunchRejected:
    """The JobSet of a launch, or the rejection with its findings. `log` gets warnings and notes."""
    launch, options = request.launch, request.options
    counted = _load(launch, _selection_of_hosts(launch))
    pods, findings = _count_pods(counted, launch, options)
    loaded = counted if pods is None or findings else _load(launch, HostSelection(hosts=pods.hosts))
    checked = check_loaded_run(loaded, launching=True, allow_code=launch.allow_local_code)
    checked = with_launch_findings(checked, here=False)
    run, memory, spec_is_ok = checked.run, PodMemory(None, None), checked.report.ok
    if run is not None and run.kind != "spec":
        return _reject(with_findings(checked, [refuse_deepspeed_json(launch.spec)]))
    if run is None or pods is None:
        return _reject(checked)
    if spec_is_ok and not findings:
        memory = _plan_memory(run, pods)
    checked = _with_jobset_findings(checked, [*findings, *check_jobset(run, options, pods, memory, launch.overrides)])
    if not checked.report.ok:
        return _reject(checked._replace(code=ExitCode.PREFLIGHT) if spec_is_ok else checked)
    if checked.report.findings:
        log.on_findings(checked.report.findings, checked.lines_of)
    if memory.host is None:
        log.on_note("note: the plan does not know the host memory of a pod, so the pods request none")
    return build_jobset(run.spec, options, pods, memory, pod_arguments(request.arguments))


def pod_arguments(arguments: Sequence[str]) -> list[str]:
    """The command line without the options that are about the cluster, or that the pods get other values of."""
    return drop_options(arguments, {*_OWN_OPTIONS, *_HOST_OPTIONS, *_REPLACED_OPTIONS})


def _load(launch: LaunchRequest, selection: HostSelection | None) -> LoadedRun:
    has_pods = selection is not None and selection != launch.hosts
    hostfile = None if has_pods else launch.hostfile
    return load_run(launch.spec, overrides=launch.overrides, hostfile=hostfile, selection=selection, look_at_paths=True)


def _selection_of_hosts(launch: LaunchRequest) -> HostSelection | None:
    """The options about hosts; None where `--num-nodes` and `--num-gpus` are the numbers of pods, as there are no hosts
    to select from.
    """
    selection = launch.hosts
    if selection is None or launch.hostfile or selection.hosts or selection.include or selection.exclude:
        return selection
    loaded = load_run(launch.spec, overrides=launch.overrides)
    return selection if loaded.cluster is not None or loaded.host_findings else None


def _count_pods(loaded: LoadedRun, launch: LaunchRequest, options: JobSetOptions) -> tuple[Pods | None, list[Finding]]:
    """The number of pods and the ranks of each: those of the hosts, else `--num-nodes` and `--num-gpus`, else
    `cluster.num_nodes` and `cluster.gpus_per_node`. None for a spec that cannot be read. Where they are not known,
    there is a finding, and 1 in their place.
    """
    spec = loaded.spec
    if spec is None:
        return None, []
    jobset, accelerated = options.name or to_jobset_name(spec.name or loaded.name), _uses_gpus(spec)
    if loaded.cluster is not None:
        slots = sorted({host.slots for host in loaded.cluster.hosts})
        pods = Pods(jobset, len(loaded.cluster.hosts), slots[0], accelerated)
        if len(slots) == 1:
            return pods, []
        message = f"the hosts have {slots[0]} to {slots[-1]} slots, and all pods of a JobSet are the same"
        return pods, [Finding("HO091", "error", message, fix=Fix("give the same number with `--num-gpus N`"))]
    selection = launch.hosts or HostSelection()
    count = selection.num_nodes or spec.cluster.num_nodes or (1 if spec.launch.num_gpus else None)
    ranks = selection.num_gpus or spec.cluster.gpus_per_node or (spec.launch.num_gpus if count == 1 else None)
    pods = Pods(jobset, count or 1, ranks or 1, accelerated)
    if count is not None and ranks is not None:
        return pods, []
    missing = "the number of hosts" if count is None else "the number of GPUs of a host"
    fix = Fix("give `--num-nodes N --num-gpus N`, a hostfile, or `cluster.num_nodes` and `cluster.gpus_per_node`")
    return pods, [Finding("HO091", "error", f"{missing} is not known, and the pods need it", fix=fix)]


def _uses_gpus(spec: RunSpec) -> bool:
    device = find_device(spec.cluster.gpu) if spec.cluster.gpu else None
    return not is_cpu_forced(spec.launch.env) and not (device is not None and device.is_cpu)


def _plan_memory(run: ResolvedRun, pods: Pods) -> PodMemory:
    """Bytes of a host by the plan."""
    device = None if pods.accelerated else "cpu"
    memory = make_plan(run, Path.cwd(), device, with_alternatives=False, with_search=False).memory
    return PodMemory(memory.host_peak, memory.nvme_bytes) if memory is not None else PodMemory(None, None)


def _with_jobset_findings(checked: CheckedFile, findings: Sequence[Finding]) -> CheckedFile:
    """The same with these findings; an error about secrets replaces the warning of the gate."""
    if any(finding.gate == "SE003" for finding in findings):
        others = tuple(finding for finding in checked.report.findings if finding.gate != "SE003")
        checked = checked._replace(report=checked.report._replace(findings=others))
    return with_findings(checked, findings)


def _reject(checked: CheckedFile) -> LaunchRejected:
    return LaunchRejected(checked.report.findings, checked.lines_of, checked.code, NO_MANIFEST, checked.report)
