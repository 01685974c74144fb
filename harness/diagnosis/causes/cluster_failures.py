# SPDX-License-Identifier: Apache-2.0
"""Hosts, pods and workers that a cluster lost, refused or ended, and ranks that hang. Tables of messages lead here."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG240",
        "rank-missing-in-a-collective",
        "ranks wait in a collective that others never joined",
        "find out what the missing rank did after its last collective (`py-spy dump`, its host's `dmesg` and log): "
        "a branch that only some ranks take, a longer data or checkpoint step, or a dead host; the waiting ranks "
        "are not at fault",
        (FailureSignature(r"^flight recorder: .*(?:never joined|wrote no dump)", sure=False),),
        level="echo",
        page="Dumps of torch's flight recorder show it: `TORCH_FR_BUFFER_SIZE=2000` (`TORCH_NCCL_TRACE_BUFFER_SIZE` "
        "before torch 2.9) and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` write one file per rank, whose name begins with "
        "`TORCH_FR_DUMP_TEMP_FILE` (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE`). Give their folder to `--log`.",
    ),
    FailureCause(
        "LG241",
        "rank-outside-the-collective",
        "a process is outside the collective in which the others wait",
        "check the function named, for which the others wait: make all ranks call the same collectives, or keep "
        "that step shorter than the timeout",
        (FailureSignature(r"^stacks: .* other process", sure=False),),
        level="echo",
        page="Stacks of all processes show it, as `py-spy dump --pid PID` and faulthandler print them.",
    ),
    FailureCause(
        "LG242",
        "node-lost",
        "a node of the job went down, or its agent lost the control plane",
        "resume on other nodes from the last checkpoint; look at that node (`sinfo -R`, `kubectl describe node`, "
        "`last -x`, "
        "its `dmesg` and BMC log) before it is used again",
        (FailureSignature(r"DUE TO NODE FAILURE|\bNODE_FAIL\b|error: Node failure on (?P<host>\S+)"),),
    ),
    FailureCause(
        "LG243",
        "resources-not-granted",
        "the scheduler could not place the job: no node has the requested resources, or it refused the request",
        "request what one node has (GPUs, memory, CPUs), wait for free nodes, or correct the selector, the partition "
        "or the "
        "quota that the message names",
        (FailureSignature(r"(?:sbatch|srun|salloc): error: (?:Batch job submission|Unable to allocate)"),),
    ),
    FailureCause(
        "LG244",
        "image-not-pulled",
        "the container's image could not be pulled",
        "check the image's name and tag, the pull secret, and that the node reaches the registry; large images may "
        "need a "
        "longer deadline",
        (FailureSignature(r"\b(?:ErrImagePull|ImagePullBackOff|InvalidImageName)\b|Failed to pull image"),),
    ),
    FailureCause(
        "LG245",
        "pods-failed",
        "pods of the job ended with an error that is not in this log",
        "read the log of the container that failed first: `kubectl logs POD --previous`, and its `Last State` in "
        "`kubectl describe pod POD`",
        (),
        level="end",
    ),
    FailureCause(
        "LG246",
        "pod-evicted",
        "the kubelet evicted the pod, because the node or the pod ran out of a resource",
        "request what the pod uses (`resources.requests` and `limits` of memory and `ephemeral-storage`), and write "
        "checkpoints and caches to a volume instead of the container's own disk",
        (FailureSignature(r"exceeded its local ephemeral storage limit|Usage of EmptyDir volume .* exceeds"),),
    ),
    FailureCause(
        "LG247",
        "ray-worker-died",
        "a worker process of Ray died, and the driver does not see why",
        "check on its node whether the kernel killed it because the host ran out of memory, the most common reason "
        "(`dmesg`, the pod's state; a container's limit counts /dev/shm too), then look for a native crash in the "
        "worker's `.err` file in `/tmp/ray/session_latest/logs`",
        (FailureSignature(r"(?:WorkerCrashed|ActorDied|RayActor|ActorUnavailable)Error\b", sure=False),),
        level="end",
    ),
    FailureCause(
        "LG248",
        "ray-object-store-full",
        "Ray's object store is full",
        "start Ray with a larger `object_store_memory` and /dev/shm, drop references to objects (datasets, weights)"
        " that are no longer needed, or let Ray spill to a disk with space",
        (FailureSignature(r"ObjectStoreFullError|[Oo]bject store (?:is|was) full|put object .* in object store"),),
    ),
    FailureCause(
        "LG249",
        "nvlink-failed",
        "NVLink or an NVSwitch between GPUs reported errors",
        "take the host out of the job, reset its GPUs (`nvidia-smi -r`, the fabric manager's log on NVSwitch "
        "systems) and "
        "look at `nvidia-smi nvlink -e`; if the errors come back, have the GPU or baseboard replaced",
        (
            FailureSignature(r"SXid .*?: \d+|NVLink: fatal error detected", sure=False),
            FailureSignature(r"NVRM: Xid .*?: (?:74|14[4-9]|150)\b", sure=False),
        ),
    ),
    FailureCause(
        "LG250",
        "gpu-cleaned-up",
        "the driver cleaned up after a process that had ended or failed (Xid 43, 45)",
        "look for what ended that process first: its own log, an earlier Xid, the kernel's out-of-memory killer",
        (),
        level="echo",
    ),
    FailureCause(
        "LG252",
        "volume-not-mounted",
        "a volume of the pod or the job could not be mounted",
        "check that the claim, the secret or the export exists and that the node may attach it (`kubectl describe "
        "pvc`); a "
        "ReadWriteOnce volume serves one node only",
        (
            FailureSignature(r"MountVolume\.\w+ failed|Unable to attach or mount volumes|FailedAttachVolume"),
            FailureSignature(r"^mount(?:\.\w+)?: .*(?:access denied|failed|timed out)", sure=False),
        ),
    ),
    FailureCause(
        "LG253",
        "step-cancelled",
        "Slurm cancelled the step: one of its tasks had failed, or somebody cancelled it",
        "read the log of the task that failed first; if there is no such log, `sacct -j JOB "
        "--format=JobID,State,ExitCode,Reason` names the state, and `scontrol show job` the user",
        (FailureSignature(r"srun: (?:Force Terminated|Job step aborted|Terminating) ?", sure=False),),
        level="end",
    ),
    FailureCause(
        "LG254",
        "host-hardware-failed",
        "the kernel reported a hardware error of the host: memory, CPU or PCIe",
        "take the host out of the job and have it checked (`ras-mc-ctl --errors`, `mcelog`, the BMC's event log); "
        "resume from "
        "the last checkpoint",
        (
            FailureSignature(r"EDAC MC\d+: \d+ UE|\[Hardware Error\]: .*(?:[Uu]ncorrected|[Ff]atal)"),
            FailureSignature(r"mce: \[Hardware Error\]: Machine check events logged|AER: .*Fatal", sure=False),
        ),
    ),
)
