# SPDX-License-Identifier: Apache-2.0
"""Memory that ran out: on the device, on the host, in shared memory."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG001",
        "gpu-out-of-memory",
        "the GPU ran out of memory",
        "lower `train_micro_batch_size_per_gpu` and raise `gradient_accumulation_steps`, recompute activations, or "
        "use a higher ZeRO stage or offload; `harness plan` counts the savings of each",
        (
            FailureSignature(
                r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate (?P<wanted>[\d.]+ [KMGT]iB)"
                r"(?:.*?GPU (?P<device>\d+)(?: has a total capacity of|;) (?P<total>[\d.]+ [KMGT]iB))?"
                r"(?:.*?of which (?P<free>[\d.]+ [KMGT]iB) is free)?"
                r"(?:.*?(?:this process has|Process \d+ has) (?P<used>[\d.]+ [KMGT]iB) memory in use)?"
                r"(?:.*?(?P<allocated>[\d.]+ [KMGT]iB) is allocated by PyTorch, and (?P<reserved>[\d.]+ [KMGT]iB))?"
            ),
            FailureSignature(r"OutOfMemoryError: (?:CUDA|HIP|XPU|NPU|Allocation)"),
            FailureSignature(r"NCCL WARN.*Cuda failure.*out of memory"),
            FailureSignature(r"Error out of memory at line \d+ in file \S*csrc"),  # bitsandbytes
            FailureSignature(r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED", sure=False),
        ),
        page="Given a run directory, the harness compares the numbers in the message with the plan. Memory that is "
        "reserved but not allocated is fragmentation: set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
    ),
    FailureCause(
        "LG002",
        "host-out-of-memory",
        "the kernel killed a rank because the memory of the host, or of its control group, ran out",
        "give the job more host memory (a container or Slurm job has its own limit), or reduce the need: fewer "
        "ranks per host, no `pin_memory`, optimizer on NVMe, fewer data loader workers; `harness plan` counts the "
        "bytes per host",
        (
            FailureSignature(r"[Oo]ut of memory: Kill(?:ed)? process (?P<pid>\d+)"),
            FailureSignature(r"oom[-_]kill(?::constraint|er)|oom_reaper|[Mm]emory cgroup out of memory"),
            FailureSignature(
                r"Detected \d+ oom[-_]kill event|oom_kill event in|Some of the step tasks have been OOM Killed"
            ),
            FailureSignature(r"task (?P<rank>\d+): Out Of Memory"),
            FailureSignature(r"OOMKilled|Memory limit exceeded, kill"),
            FailureSignature(
                r"^failed on rank (?P<rank>\d+) .*: killed by SIGKILL of the kernel's out-of-memory killer"
            ),
        ),
        page="Linux ends the process that uses most memory with SIGKILL: no message and no traceback, exit code -9 "
        "or 137. `dmesg` on that host, or the scheduler's log, confirms it. `harness launch` compares the kernel's "
        "count of such kills (`oom_kill` in `/proc/vmstat`) before and after the rank ended. The count covers the "
        "whole host: where jobs share the host, a kill in another job in the same half minute counts too, and "
        "`dmesg` names the process.",
    ),
    FailureCause(
        "LG003",
        "killed",
        "a rank was killed from outside (SIGKILL), most often by the kernel because the host's memory ran out",
        "check `dmesg` on that host for `Killed process`; if it is there, reduce host memory (`harness plan` counts "
        "it), else find out who killed it: a limit of the scheduler, a user",
        (
            FailureSignature(r"exits with return code = (?:-9|137)\b", sure=False),
            FailureSignature(r"Signal 9 \(SIGKILL\) received by PID", sure=False),
            FailureSignature(r"rank (?P<rank>\d+) with PID \d+ on node \S+ exited on signal 9", sure=False),
            FailureSignature(r"task (?P<rank>\d+): Killed\s*$", sure=False),
            FailureSignature(r"^(?:.*: line \d+: +)?\d* ?Killed( +.*)?$", sure=False),
            FailureSignature(
                r"terminated by signal SIGKILL|EXIT CODE: 9\b|exited with exit code 137|exit status 137", sure=False
            ),
        ),
        level="end",
    ),
    FailureCause(
        "LG004",
        "host-allocation-refused",
        "the host refused a rank memory, a thread or a pinned buffer",
        "raise the limit (`ulimit -v`, `ulimit -l` for pinned memory, or the container's limit), or reduce the need: "
        "fewer ranks per host, no `pin_memory`, a smaller batch; `harness plan` counts the bytes per host",
        (
            FailureSignature(
                r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory).*?(?P<bytes>\d+) bytes"
            ),
            FailureSignature(r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory"),
            FailureSignature(r"std::bad_alloc"),
            FailureSignature(r"(?:^|[\s.])_?(?:Array)?MemoryError\b"),
            FailureSignature(r"cudaHostAlloc|CUDA error: out of memory.*pin", sure=False),
            FailureSignature(
                r"failed to (?:mlock|pin)|mlock.*failed|can't start new thread|pthread_create.*failed", sure=False
            ),
        ),
    ),
    FailureCause(
        "LG006",
        "killed-by-a-process",
        "a process killed a rank with SIGKILL; the kernel had not run out of memory",
        "find out which: the scheduler at a limit of time or memory, a daemon such as `earlyoom` or `systemd-oomd` "
        "(its journal names the process), an administrator, a script",
        (FailureSignature(r"^failed on rank (?P<rank>\d+) .*: killed by SIGKILL, which a process sent"),),
        page="`harness launch` compares the kernel's count of out-of-memory kills (`oom_kill` in `/proc/vmstat`) "
        "before and after the rank ended. Where the kernel has no such count, the cause is LG003. The kernel itself "
        "also sends SIGKILL at a hard limit of CPU time (`ulimit -Ht`).",
    ),
    FailureCause(
        "LG005",
        "shared-memory-full",
        "shared memory (/dev/shm) is too small or full",
        "make /dev/shm larger (`docker run --shm-size=16g` or `--ipc=host`; a `Memory` volume in Kubernetes), or "
        "remove files that dead runs left there",
        (
            FailureSignature(r"It is possible that dataloader's workers are out of shared memory"),
            FailureSignature(r"DataLoader worker.*(?:Bus error|shared memory)"),
            FailureSignature(r"unable to (?:allocate|open|resize|write).*shared memory"),
            FailureSignature(
                r"(?:Error while creating shared memory segment|shm_open|/dev/shm/\S).*(?:No space|size \d)"
            ),
            FailureSignature(r"exited on signal 7|Signal 7 \(SIGBUS\)", sure=False),
            FailureSignature(r"\bBus error\b", sure=False),
        ),
    ),
)
