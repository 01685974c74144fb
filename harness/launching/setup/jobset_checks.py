# SPDX-License-Identifier: Apache-2.0
"""Checks of a launch as a JobSet: names, image, volumes and secrets that a cluster would refuse or show to others.

Contacts no cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.check.check_file import CheckedFile, LoadedRun, check_loaded_run, load_run
from harness.check.machine_findings import with_findings, with_launch_findings
from harness.errors import ExitCode
from harness.facts.devices import find_device
from harness.facts.environment_variables import is_secret
from harness.findings import Finding, Fix
from harness.hostinfo.machine import is_cpu_forced
from harness.launching.setup.jobset import (
    JOB_NAME,
    JobSetOptions,
    Manifest,
    PodMemory,
    Pods,
    build_jobset,
    is_shared,
    nvme_folders,
    path_in_pod,
)
from harness.launching.setup.launch_checks import refuse_deepspeed_json
from harness.launching.setup.launch_request import LaunchLog, LaunchRejected, LaunchRequest
from harness.launching.setup.pod_patch import PodPatchError, apply_pod_patch, read_pod_patch
from harness.launching.setup.slurm import drop_options
from harness.plan.planner import make_plan
from harness.run.resolved_run import ResolvedRun
from harness.spec.host_selection import HostSelection
from harness.spec.run_spec import RunSpec

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SERVICE_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_MAX_LABEL, _MAX_SUBDOMAIN = 63, 253
_SYSTEM_FOLDERS = tuple(
    f"/{name}" for name in "bin boot dev etc lib lib32 lib64 proc run sbin sys usr var/lib/kubelet var/run".split()
)
"""Folders of the image, the kernel or the node, which nothing else may lie in (Filesystem Hierarchy Standard 3.0)."""
_POD_SUFFIX = "-abcde"
"""Kubernetes ends the name of a pod by a `-` and five characters."""


def to_jobset_name(run_name: str) -> str:
    """The name of a run as a name of a JobSet: lower case, and `-` for what a DNS name cannot have."""
    return re.sub(r"[^a-z0-9]+", "-", run_name.lower()).strip("-") or "run"


def check_jobset(
    run: ResolvedRun, options: JobSetOptions, pods: Pods, memory: PodMemory, overrides: Sequence[str]
) -> list[Finding]:
    """All errors of the JobSet. `overrides`: those of `--set`."""
    return [
        *_check_image(options),
        *_check_names(options, pods),
        *_check_volumes(run, options, memory),
        *_check_mounts(run, options),
        *_check_secrets(run, overrides),
    ]


def _check_image(options: JobSetOptions) -> Iterator[Finding]:
    if not options.image or re.search(r"\s", options.image):
        message = f"`--image {options.image[:80]}` has a space" if options.image else "`--image` is not given"
        fix = Fix("give `--image REGISTRY/NAME:TAG`, an image with the harness, its train extra and `harness` on PATH")
        yield Finding("EN090", "error", message, fix=fix)


def _check_names(options: JobSetOptions, pods: Pods) -> Iterator[Finding]:
    longest = f"{pods.jobset}-{JOB_NAME}-0-{pods.count - 1}{_POD_SUFFIX}"
    if not _SERVICE_LABEL.fullmatch(pods.jobset):
        message = f"`{pods.jobset[:80]}` cannot be the name of a JobSet, which is part of the pods' DNS names"
        fix = Fix("give `--run-id NAME` of lower-case letters, digits and `-`, with a letter first")
        yield Finding("HO090", "error", message, fix=fix)
    elif len(longest) > _MAX_LABEL:
        allowed = len(pods.jobset) - (len(longest) - _MAX_LABEL)
        message = f"`{pods.jobset}` is too long: `{longest}`, a pod, would have more than {_MAX_LABEL} characters"
        yield Finding("HO090", "error", message, fix=Fix(f"give `--run-id NAME` of at most {allowed} characters"))
    if options.namespace is not None and not _LABEL.fullmatch(options.namespace):
        yield _name_finding("--namespace", options.namespace)
    for option, names in (("--pvc", [v.claim for v in options.volumes]), ("--env-from", options.env_from)):
        for name in names:
            if len(name) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(name):
                yield _name_finding(option, name)
    if options.nvme_class is not None and not _SUBDOMAIN.fullmatch(options.nvme_class):
        yield _name_finding("--nvme-class", options.nvme_class)


def _name_finding(option: str, name: str) -> Finding:
    fix = Fix("use lower-case letters, digits and `-`, as `kubectl get` shows it")
    return Finding("HO090", "error", f"`{option}`: `{name[:80]}` cannot be the name of a Kubernetes object", fix=fix)


def _check_volumes(run: ResolvedRun, options: JobSetOptions, memory: PodMemory) -> Iterator[Finding]:
    output_dir = path_in_pod(options, run.spec.launch.output_dir)
    if not is_shared(output_dir, options.volumes):
        yield Finding(
            "EN091",
            "error",
            f"the run directory `{output_dir}` lies on no volume that all pods share",
            key="launch.output_dir",
            notes=("the pods exchange files in the run directory, and a restart resumes from its checkpoints",),
            fix=Fix("give `--pvc CLAIM:PATH` of a ReadWriteMany claim, and `launch.output_dir` at PATH or below"),
        )
    if options.nvme_class is not None and memory.nvme is None and nvme_folders(run.spec, options):
        message = "`--nvme-class` needs the size of the volume, which the plan does not know"
        fix = Fix("name a model that `harness plan` knows, or leave `--nvme-class` out: the folder of the node")
        yield Finding("EN092", "error", message, fix=fix)


def _check_mounts(run: ResolvedRun, options: JobSetOptions) -> Iterator[Finding]:
    """A mount hides what the image has at its path; without a class, `nvme_path` is the node's own folder, too."""
    claims = [(f"--pvc {volume.claim}", Path(volume.path)) for volume in options.volumes]
    mounts = [*claims, *(("nvme_path", folder) for folder in nvme_folders(run.spec, options))]
    for index, (name, path) in enumerate(mounts):
        hidden = next((s for s in _SYSTEM_FOLDERS if path.is_relative_to(s) or Path(s).is_relative_to(path)), None)
        if hidden is not None:
            message = f"`{name}` mounts a volume at `{path}`, in the place of the system's `{hidden}`"
            fix = Fix("choose a folder of its own, such as `/mnt/runs` or `/local_nvme`")
            yield Finding("EN093", "error", message, fix=fix)
        elif path in [other for _, other in mounts[:index]]:
            message = f"`{name}` mounts a second volume at `{path}`, which Kubernetes refuses"
            yield Finding("EN093", "error", message, fix=Fix("give each volume a path of its own"))


def _check_secrets(run: ResolvedRun, overrides: Sequence[str]) -> Iterator[Finding]:
    """The manifest has `launch.env` and the overrides, and everybody who may list pods reads it."""
    pairs = list(run.spec.launch.env.items())
    for override in overrides:
        key, _, value = override.partition("=")
        pairs.append((key.strip().removeprefix("launch.env."), value.strip()))
    secrets = [name for name, value in pairs if is_secret(name.rpartition(".")[2], value)]
    for name in dict.fromkeys(secrets):
        variable = name.rpartition(".")[2][:60]
        yield Finding(
            "SE003",
            "error",
            f"`{name[:60]}` is a secret, and would be written into the manifest",
            key=name if "." in name else f"launch.env.{name}",
            notes=("everybody who may list pods reads it there",),
            fix=Fix(
                f"`kubectl create secret generic NAME --from-literal={variable}=...`, then `--env-from NAME`, and "
                "remove it from the spec"
            ),
        )


# From a run spec to the JobSet of its launch: hosts, gates, plan and checks.
#
# Writes nothing and contacts no cluster.

NO_MANIFEST = "No manifest was written"
_OWN_OPTIONS = (
    *("--kubernetes", "--image", "--namespace", "--pvc", "--workdir", "--env-from", "--nvme-class", "--pod-patch"),
    *("--output", "--run-id", "--dry-run", "--no-preflight"),
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
    jobset = build_jobset(run.spec, options, pods, memory, pod_arguments(request.arguments))
    if options.pod_patch is not None:
        (worker,) = jobset["spec"]["replicatedJobs"]
        try:
            apply_pod_patch(worker["template"]["spec"]["template"], read_pod_patch(options.pod_patch))
        except PodPatchError as error:
            return LaunchRejected((error.finding,), None, ExitCode.PREFLIGHT, NO_MANIFEST)
    return jobset


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
