# SPDX-License-Identifier: Apache-2.0
"""Events and states of Kubernetes, as `kubectl describe`, `kubectl get` and operators of training jobs print them."""

from __future__ import annotations

_NODE_LOST = """
    title: a node became unreachable or not ready, and its pods were lost
    change: resume on other nodes from the last checkpoint; `kubectl describe node NODE` and its kubelet's log show
        why
"""

MESSAGES = rf"""
LG002 \bOOMKilled\b|\bOOMKilling\b|oomKilled
    title: Kubernetes reports that the container was OOM-killed: it reached its memory limit
    change: raise `resources.limits.memory` (and `requests`), or use less host memory: fewer data loader workers, no
        `pin_memory`, a smaller /dev/shm volume (`medium: Memory` counts as the container's memory)
LG246 [Tt]he node was low on resource: (?P<resource>ephemeral-storage)|exceeded its local ephemeral storage limit|ephemeral local storage usage exceeds|Usage of EmptyDir volume .* exceeds the limit
    title: the kubelet evicted the pod, because the pod or its node ran out of local disk
    change: write checkpoints, caches (`HF_HOME`, `TORCH_EXTENSIONS_DIR`, `TMPDIR`) and logs to a volume, or raise
        `ephemeral-storage` in `resources.limits` and the `sizeLimit` of the emptyDir
LG246 [Tt]he node was low on resource: (?P<resource>memory)
    title: the kubelet evicted the pod, because its node ran low on memory
    change: request the memory that the pod uses (`requests` equal to `limits`), so that it is evicted last, or use less
        host memory
LG246 [Tt]he node was low on resource: (?P<resource>[\w-]+)
LG068 \bPreempted by (?:pod )?\S+ on node|\bPreempted\b +by|Reason: +Preempting|\bPreemptionByScheduler\b
    title: the scheduler preempted the pod for one of higher priority
    change: resume from the last checkpoint; give the job a `priorityClassName` that is not preempted, or save more
        often
LG242 \bNodeNotReady\b|Node is not ready|node\.kubernetes\.io/(?:unreachable|not-ready)|TaintManagerEviction|DeletionByTaintManager|\bNodeLost\b|NodeStatusUnknown|Kubelet stopped posting node status{_NODE_LOST.rstrip()}
LG242 in response to imminent node shutdown|\bNodeShutdown\b|node is shutting down
    title: the node of a pod was shut down
    change: resume on other nodes from the last checkpoint; on spot nodes save on SIGTERM
LG243 * \bFailedScheduling\b.*Insufficient (?P<resource>[\w./-]+)|nodes are available: .*Insufficient (?P<what>[\w./-]+)
    title: no node has the free resources that the pod requests
    change: request at most what one node has free (`kubectl describe node`: Allocatable and Allocated), or wait; if
        `nvidia.com/gpu` is missing on nodes with GPUs, check the device plug-in
LG243 * \bFailedScheduling\b|\d+/\d+ nodes are available: |\bUnschedulable\b
LG244 * \b(?:ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull)\b|Failed to pull image "(?P<image>[^"]*)"
LG252 * \bFailedMount\b|\bFailedAttachVolume\b|MountVolume\.\w+ failed for volume|Unable to attach or mount volumes
LG003 * ^\s*Exit Code: +137\b|[Ee]xit code:? 137\b|exitCode: 137\b|Reason: +ContainerStatusUnknown
LG018 * ^\s*Exit Code: +139\b|exitCode: 139\b
LG069 * ^\s*Exit Code: +143\b|exitCode: 143\b
LG245 * \bCrashLoopBackOff\b|Back-off restarting failed container|BackoffLimitExceeded|has reached the specified backoff limit
LG245 * jobset failed due to|FailedJobs\b|(?:PyTorchJob|MPIJob|TFJob|TrainJob|RayJob) \S+ (?:is|has) failed|replica\(s\) failed
LG246 * ^\s*(?:Reason|Status): +Evicted|\bEvicted\b
LG068 * \bDeadlineExceeded\b
    title: the job ran longer than its deadline
    change: raise `activeDeadlineSeconds`, or resume from the last checkpoint
LG050 * disk pressure|\bDiskPressure\b +True|FreeDiskSpaceFailed|ImageGCFailed
    title: the disk of a node is full
"""
