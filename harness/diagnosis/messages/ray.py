# SPDX-License-Identifier: Apache-2.0
"""Messages of Ray's driver and raylet about workers, nodes and the object store that failed."""

from __future__ import annotations

MESSAGES = r"""
LG002 [Tt]ask was killed due to the node running low on memory|[Ww]orkers \(tasks / actors\) killed due to memory pressure|Memory on the node \(IP: (?P<host>[\w.:-]+),.* was .* exceeds the memory usage threshold
    title: Ray killed a worker, because its node ran low on memory
    change: use less host memory per node (fewer workers, more `num_cpus` per task, no copies of the dataset), or nodes
        with more memory; `RAY_memory_usage_threshold` sets the limit, `RAY_memory_monitor_refresh_ms=0` turns the
        monitor off
LG248 ObjectStoreFullError|[Oo]bject store (?:is|was) full|Failed to put object \w* ?in object store because it is full
LG050 ray\.exceptions\.OutOfDiskError|Local disk is full
LG242 \bNodeDiedError\b|[Nn]ode with node id: \w+.* has been marked dead|missed too many heartbeats|Raylet is terminated|The node .* died
    title: a node of the Ray cluster died or lost the head node
    change: look at that node (`raylet.out` in its `/tmp/ray/session_latest/logs`, `dmesg`), and resume without it
LG243 * The following resource request cannot be scheduled right now|Error: No available node types can fulfill resource request|\bis infeasible\b
    title: the Ray cluster lacks the resources of a task, actor or placement group
    change: `ray status` shows what is free: start more nodes, or request fewer GPUs and CPUs per worker
LG243 * GetTimeoutError.*placement group|PlacementGroupSchedulingStrategy.*timed out|Placement group creation timed out
    title: Ray could not reserve the placement group in time
    change: `ray status` shows what is free: request no more GPUs than the cluster has, and remove placement groups and
        processes of dead jobs
LG064 * RuntimeEnvSetupError|Failed to set up runtime environment
    title: Ray could not prepare the environment of a worker
    change: read the error below it: the node cannot install or reach a package or an archive of `runtime_env`
LG247 * ray\.exceptions\.(?:WorkerCrashedError|ActorDiedError|RayActorError|ActorUnavailableError)|worker died or was killed while executing a task|The actor (?:died unexpectedly|is dead because)
LG073 * ray\.exceptions\.(?:OwnerDiedError|ObjectLostError|ReferenceCountingAssertionError)|ray\.exceptions\.RaySystemError: System error: Broken pipe
    title: a worker lost the process that owned its data
"""
