# SPDX-License-Identifier: Apache-2.0
"""A launch as one JobSet of Kubernetes: an indexed Job whose pods each run `harness launch --no-ssh`.

Builds plain values; `jobset_request` loads and checks the spec, and nothing here applies the result to a cluster.
Read for it: JobSet v0.11 (`api/jobset/v1alpha2`, `pkg/webhooks`) and the Job controller (`pod_failure_policy.go`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import ExitCode
from harness.launching.process.signals import MAX_STOP_GRACE_SECONDS
from harness.launching.setup.environment import RESERVED_VARIABLES
from harness.spec.pinned_memory import pins_natively
from harness.spec.run_spec import RunSpec
from harness.spec.sections.launch_spec import LaunchSpec

Manifest = dict[str, Any]
JOB_NAME, CONTAINER = "worker", "harness"
JOB_UID_VARIABLE = "HARNESS_JOB_UID"
"""The id of the Job object, one for each start of the JobSet: the same in all pods of one start."""
_JOB_UID_LABEL = "metadata.labels['batch.kubernetes.io/controller-uid']"
_FINAL_CODES = (ExitCode.USAGE, ExitCode.BUG, ExitCode.ENGINE_CHECK, ExitCode.NOT_UPLOADED, ExitCode.INTERRUPTED)
"""Exit codes of `harness launch` after which a restart would end the same way, or was not wanted."""
_PREEMPTED_CODES = (ExitCode.PREEMPTED, ExitCode.TERMINATED)
"""Exit codes after SIGUSR1 and SIGTERM: the ranks have saved."""
_EXIT_SECONDS = 30
"""For the processes to end and the verdict to be written, after the ranks have stopped."""
_SHM_PER_RANK = 128 * 2**20
"""Bytes of /dev/shm: twice what a rank needs at least (EN049)."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class SharedVolume:
    """A PersistentVolumeClaim that all pods mount at `path`."""

    claim: str
    path: str


@dataclass(frozen=True, slots=True)
class JobSetOptions:
    """The options of `harness launch --kubernetes`. `name`: of the JobSet, by default that of the run. `workdir`: the
    current folder in the pods. `env_from`: Secrets of the cluster whose keys are variables of the pods. `nvme_class`:
    the StorageClass of the disk to offload to; None: the folder of the node. `pod_patch`: a file that is merged into
    the pods (`pod_patch.py`).
    """

    image: str | None = None
    namespace: str | None = None
    name: str | None = None
    volumes: tuple[SharedVolume, ...] = ()
    workdir: Path | None = None
    env_from: tuple[str, ...] = ()
    nvme_class: str | None = None
    pod_patch: str | None = None


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a JobSet: its name, their number, the ranks of each, and whether ranks have GPUs."""

    jobset: str
    count: int
    ranks: int
    accelerated: bool = True

    @property
    def master(self) -> str:
        """The DNS name of pod 0 within its namespace."""
        return f"{self.jobset}-{JOB_NAME}-0-0.{self.jobset}"

    @property
    def hosts(self) -> str:
        """The value of `--hosts` in the pods: their DNS names by node rank, as a range, since Linux takes no word above
        128 KiB. A single pod launches as one machine.
        """
        names = f"{self.jobset}-{JOB_NAME}-0-[0-{self.count - 1}].{self.jobset}" if self.count > 1 else "localhost"
        return f"{names}:{self.ranks}"

    @property
    def shm_bytes(self) -> int:
        """The size of /dev/shm, in whole GiB."""
        return _whole_gib(self.ranks * _SHM_PER_RANK) * _GIB


@dataclass(frozen=True, slots=True)
class PodMemory:
    """Bytes of a pod by the plan; None where the plan does not know them."""

    host: int | None
    nvme: int | None


def pod_command(arguments: Sequence[str], pods: Pods) -> list[str]:
    """The command of every pod. `arguments`: the command line of the launch without the options of `--kubernetes` and
    those about hosts. Kubernetes replaces the two variables; in all other words `$` is escaped.
    """
    words = [*arguments, "--hosts", pods.hosts, "--resume", "auto", "--max-restarts", "0"]
    command = ["harness", *(_escape(word) for word in words)]
    if pods.count == 1:
        return command
    node = ["--node-rank", "$(JOB_COMPLETION_INDEX)", "--master-addr", pods.master]
    return [*command, "--no-ssh", "--run-id", f"$({JOB_UID_VARIABLE})", *node]


def build_jobset(
    spec: RunSpec, options: JobSetOptions, pods: Pods, memory: PodMemory, arguments: Sequence[str]
) -> Manifest:
    """The JobSet. `options` and `pods` have passed `check_jobset`."""
    metadata = {"name": pods.jobset, **({"namespace": options.namespace} if options.namespace else {})}
    job = {
        "completionMode": "Indexed",
        "completions": pods.count,
        "parallelism": pods.count,
        "backoffLimit": 0,  # ranks of one job start together: a pod is not replaced alone
        "podFailurePolicy": {"rules": _pod_failure_rules()},
        "template": {"spec": _build_pod(spec, options, pods, memory, arguments)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": pods.jobset},
            "failurePolicy": _failure_policy(spec.launch.max_restarts),
            "replicatedJobs": [{"name": JOB_NAME, "replicas": 1, "template": {"spec": job}}],
        },
    }


def nvme_folders(spec: RunSpec, options: JobSetOptions) -> list[Path]:
    """The folders that the run offloads to and that lie on no shared volume."""
    zero = spec.zero
    blocks = [b for b in (zero.offload_optimizer, zero.offload_param) if b is not None and b.device == "nvme"]
    folders = dict.fromkeys(path_in_pod(options, block.nvme_path) for block in blocks if block.nvme_path)
    return [folder for folder in folders if not is_shared(folder, options.volumes)]


def path_in_pod(options: JobSetOptions, path: str) -> Path:
    """A path of the spec as an absolute one in the pods, without `..`. A link in the image is not followed."""
    return Path("/" + os.path.normpath((options.workdir or Path.cwd()) / path).lstrip("/"))


def is_shared(folder: Path, volumes: Sequence[SharedVolume]) -> bool:
    """Does the folder lie on a volume that all pods mount?"""
    return any(folder.is_relative_to(volume.path) for volume in volumes)


def _build_pod(
    spec: RunSpec, options: JobSetOptions, pods: Pods, memory: PodMemory, arguments: Sequence[str]
) -> Manifest:
    volumes: list[Manifest] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{pods.shm_bytes // _GIB}Gi"}}
    ]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108  (the place that ranks use)
    for index, volume in enumerate(options.volumes):
        name = f"shared-{index}"
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": volume.claim}})
        mounts.append({"name": name, "mountPath": volume.path})
    for index, folder in enumerate(nvme_folders(spec, options)):
        name = f"nvme-{index}"
        volumes.append({"name": name, **_nvme_volume(folder, options.nvme_class, memory.nvme or 0)})
        mounts.append({"name": name, "mountPath": str(folder)})
    container: Manifest = {
        "name": CONTAINER,
        "image": options.image,
        "command": pod_command(arguments, pods),
        "workingDir": str(options.workdir or Path.cwd()),
        "env": _build_env(spec.launch),
        "resources": _build_resources(pods, memory),
        "volumeMounts": mounts,
    }
    if options.env_from:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.env_from]
    if pins_natively(spec.zero, spec.launch.env):  # DeepSpeed's own allocator calls mlock
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_period_seconds(spec.launch),
        "containers": [container],
        "volumes": volumes,
    }


def grace_period_seconds(launch: LaunchSpec) -> int:
    """Seconds from SIGTERM to SIGKILL of a pod: what a stop may give the ranks to finish their step and save, and the
    end of the processes.
    """
    is_set = "stop_grace_seconds" in launch.model_fields_set
    return math.ceil(launch.stop_grace_seconds if is_set else MAX_STOP_GRACE_SECONDS) + _EXIT_SECONDS


def _build_env(launch: LaunchSpec) -> list[Manifest]:
    """The id of the Job, and the variables of `launch.env`, which has no secrets (`check_jobset`)."""
    own = {"name": JOB_UID_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": _JOB_UID_LABEL}}}
    values = [(name, value) for name, value in launch.env.items() if name not in RESERVED_VARIABLES]
    return [own, *({"name": name, "value": _escape(value)} for name, value in values)]


def _build_resources(pods: Pods, memory: PodMemory) -> Manifest:
    """GPUs as a limit, which is their request too; memory as a request, for the scheduler: the plan's host memory and
    /dev/shm.
    """
    resources: Manifest = {}
    if pods.accelerated:
        resources["limits"] = {"nvidia.com/gpu": str(pods.ranks)}
    if memory.host is not None:
        resources["requests"] = {"memory": f"{_whole_gib(memory.host + pods.shm_bytes)}Gi"}
    return resources


def _nvme_volume(folder: Path, storage_class: str | None, size: int) -> Manifest:
    if storage_class is None:
        return {"hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": f"{_whole_gib(size)}Gi"}},
    }
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim}}}


def _pod_failure_rules() -> list[Manifest]:
    """Failures of a pod that the JobSet tells from others by the message of the failed Job. All others, such as a rank
    that was killed, exceed the Job's `backoffLimit`.
    """
    rules: list[Manifest] = [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": sorted(map(int, codes))},
        }
        for codes in (_FINAL_CODES, _PREEMPTED_CODES)
    ]
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    return [*rules, {"action": "FailJob", "onPodConditions": [disrupted]}]


def _failure_policy(max_restarts: int) -> Manifest:
    """A preemption restarts the JobSet without limit; a final exit code ends it; other failures restart it
    `max_restarts` times.
    """
    return {
        "maxRestarts": max_restarts,
        "rules": [
            {
                "name": "final",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
                "onJobFailureMessagePatterns": ["matching FailJob rule at index 0"],
            },
            {
                "name": "preempted",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            },
        ],
    }


def _whole_gib(count: int) -> int:
    return max(1, math.ceil(count / _GIB))


def _escape(word: str) -> str:
    """A word that Kubernetes leaves as it is: `$(NAME)` would be a variable, and `$$` is one `$`."""
    return word.replace("$", "$$")
