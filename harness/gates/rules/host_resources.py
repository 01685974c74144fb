# SPDX-License-Identifier: Apache-2.0
"""Memory, disks and limits of the hosts."""

from __future__ import annotations

from harness.gates.host_names import format_hosts, list_reachable_hosts
from harness.gates.registry import Context, Findings, Fix, hosts_gate
from harness.spec.pinned_memory import pins_natively
from harness.units import format_bytes

_HOSTFILE = "launch.hostfile"
_RUN_FOLDER = "launch.output_dir"


@hosts_gate("EN042 run-folder-not-shared")
def unshared_run_folder(ctx: Context) -> Findings:
    """A folder of run directories that is not shared.

    Every host sees a file that the launch creates where the run directory will be.

    Why: Ranks read their configuration from the run directory, and write their state, logs and checkpoint shards into
    it. On a host with another folder of that name they find no configuration, and no host can read a checkpoint of
    which each has a part.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {sees_run: false}
    """
    hosts = [host for host in list_reachable_hosts(ctx) if not host.sees_run]
    if hosts and ctx.run.spec.launch.shared_disk:
        folders = [host.folders.get(_RUN_FOLDER) for host in hosts]
        path = folders[0].path if folders[0] else "it"
        filesystems = sorted({folder.filesystem for folder in folders if folder})
        yield ctx.finding(
            f"{format_hosts(hosts)} does not see what is written to `{path}` here",
            _RUN_FOLDER,
            notes=[f"there it is on {' or '.join(filesystems) or 'another disk'}"],
            fix=Fix(
                "set `launch.output_dir` to a folder that all hosts share, such as one on NFS or Lustre, or "
                "`launch.shared_disk: false` where they share none"
            ),
        )


@hosts_gate("EN043 folder-not-writable", upstream="raises")
def read_only_folders(ctx: Context) -> Findings:
    """A folder of the run that a host cannot write.

    Every host may write the folders that its ranks write: the run directory and, with NVMe offload, `nvme_path`.

    Why: The ranks there fail at their first write: at the start, or minutes later, when the first parameters are
    swapped out.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {folders: {launch.output_dir: {path: /runs, writable: false}}}
    """
    hosts = list_reachable_hosts(ctx)
    for key in dict.fromkeys(key for host in hosts for key in host.folders):
        read_only_hosts = [host for host in hosts if key in host.folders and not host.folders[key].writable]
        if read_only_hosts:
            path = read_only_hosts[0].folders[key].path
            yield ctx.finding(
                f"{format_hosts(read_only_hosts)} cannot write to `{path}`",
                key,
                fix=Fix("give the user of the run write permission there"),
            )


@hosts_gate("EN044 disk-too-full", upstream="raises")
def full_disk(ctx: Context) -> Findings:
    """A disk without room for the checkpoints.

    The disk of the run directory has, seen from every host, room for two checkpoints (the one that is kept and the one
    being written), and at least 256 MiB.

    Why: Training continues until the first save, which fails; DeepSpeed leaves an incomplete checkpoint, which the
    harness removes before it ends the run.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {folders: {launch.output_dir: {path: /runs, free: 1000000}}}
    """
    checkpoint = ctx.plan.checkpoint_cost
    need = max(256 * 2**20, 2 * checkpoint.bytes if checkpoint else 0)
    folders = [(host, host.folders[_RUN_FOLDER]) for host in list_reachable_hosts(ctx) if _RUN_FOLDER in host.folders]
    full = [(host, folder) for host, folder in folders if folder.free is not None and folder.free < need]
    if full:
        fullest = min((folder for _, folder in full), key=lambda folder: folder.free or 0)
        hosts = [host for host, _ in full]
        yield ctx.finding(
            f"`{fullest.path}` has {format_bytes(fullest.free or 0)} free on {format_hosts(hosts)}, "
            f"two checkpoints take {format_bytes(need)}",
            _RUN_FOLDER,
            fix=Fix("make room there, or set `launch.output_dir` to a larger disk"),
        )


@hosts_gate("EN045 nvme-too-full", upstream="wrong")
def full_nvme(ctx: Context) -> Findings:
    """Less space on NVMe than the plan needs.

    The disk of each `nvme_path` has, on every host, the space that the plan counts for it.

    Why: DeepSpeed writes the states at start-up and does not report a full disk: the write fails in a C++ thread, and
    later reads return other data.

    Example:
        model.config: llama-70b
        zero.stage: 3
        zero.offload_optimizer: {device: nvme, nvme_path: /nvme}
    Probe:
        worker-1: {folders: {zero.offload_optimizer.nvme_path: {path: /nvme, free: 1000000000}}}
    """
    memory = ctx.plan.memory
    if memory is None:
        return
    need = memory.nvme_bytes
    for host in list_reachable_hosts(ctx):
        for key, folder in host.folders.items():
            if key.endswith("nvme_path") and folder.free is not None and folder.free < need:
                yield ctx.finding(
                    f"`{folder.path}` has {format_bytes(folder.free)} free on {format_hosts([host])}, "
                    f"the plan needs {format_bytes(need)} a host",
                    key,
                    fix=Fix("make room there, or spread the states over more hosts"),
                )
                return


@hosts_gate("EN046 host-memory-below-plan", upstream="raises")
def small_host_memory(ctx: Context) -> Findings:
    """Less host memory than the plan needs.

    Every host has the memory that the plan counts for it.

    Why: The kernel kills a rank of that host once it has allocated the states, minutes after the start; the others wait
    for it.

    Example:
        model.config: llama-70b
        zero.stage: 3
        zero.offload_optimizer: {device: cpu}
    Probe:
        worker-1: {memory_total: 64000000000}
    """
    reachable_hosts = list_reachable_hosts(ctx)
    memory = ctx.plan.memory if reachable_hosts else None
    if memory is None:
        return
    need = memory.host_peak
    hosts = [host for host in reachable_hosts if host.memory_total < need]
    if hosts:
        least = min(host.memory_total for host in hosts)
        yield ctx.finding(
            f"{format_hosts(hosts)} has {format_bytes(least)} of memory, the plan needs {format_bytes(need)}",
            _HOSTFILE,
            notes=["`harness plan` lists what needs it"],
            fix=Fix("choose a row of `harness plan` that fits, take larger hosts, or more of them"),
        )


@hosts_gate("EN049 small-shared-memory", upstream="raises", severity="warning")
def small_shared_memory(ctx: Context) -> Findings:
    """Too little shared memory on a host.

    `/dev/shm` has room on every host: 66 MiB a rank that runs on the CPU, 64 MiB a rank otherwise.

    Why: Ranks of one host communicate through it, and so do data workers. When it is full they are killed by SIGBUS;
    containers have 64 MiB by default.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {shm: 67108864}
    """
    need_per_rank = 66 * 2**20
    hosts = [
        host for host in list_reachable_hosts(ctx) if host.shm is not None and host.shm < host.slots * need_per_rank
    ]
    if hosts:
        worst = min(hosts, key=lambda host: host.shm or 0)
        yield ctx.finding(
            f"`/dev/shm` of {format_hosts(hosts)} has {format_bytes(worst.shm or 0)} free for {worst.slots} ranks",
            _HOSTFILE,
            notes=["ranks that find it full are killed by SIGBUS"],
            fix=Fix("give the container more, such as docker run --shm-size=8g"),
        )


@hosts_gate(
    "EN050 little-lockable-memory",
    upstream="raises",
    severity=("warning", "error"),
    when=lambda ctx: ctx.is_nvme_used or pins_natively(ctx.run.spec.zero, ctx.run.spec.launch.env),
)
def little_lockable_memory(ctx: Context) -> Findings:
    """A limit on locked memory, with offload to NVMe or with DeepSpeed's own pinned memory.

    With offload to NVMe, the limit on locked memory (`ulimit -l`) is off or at least 1 GiB on every host; with
    `zero.pin_memory_backend: native` it is off.

    Why: DeepSpeed's aio locks its buffers, and its own allocator all others. Under a small limit `mlock` fails inside
    the library, and the process aborts; a shell that ssh starts often has another limit than your login shell.

    Example:
        model.config: llama-70b
        zero.stage: 3
        zero.offload_optimizer: {device: nvme, nvme_path: /nvme}
    Probe:
        worker-1: {memlock: 65536}
    """
    natively = pins_natively(ctx.run.spec.zero, ctx.run.spec.launch.env)
    limited = [host for host in list_reachable_hosts(ctx) if host.memlock is not None]
    hosts = [host for host in limited if natively or (host.memlock or 0) < 2**30]
    if hosts:
        least = min(host.memlock or 0 for host in hosts)
        what = "allocator locks all pinned buffers" if natively else "aio locks the buffers that it reads into"
        yield ctx.finding(
            f"a process on {format_hosts(hosts)} may lock {format_bytes(least)} of memory",
            _HOSTFILE,
            notes=[f"DeepSpeed's {what}"],
            severity="error" if natively else "warning",
            fix=Fix("set `memlock` to unlimited in /etc/security/limits.conf there"),
        )


@hosts_gate("EN051 few-open-files", upstream="raises", severity="warning")
def few_open_files(ctx: Context) -> Findings:
    """A low limit on open files.

    A process on every host may have 256 files open and 4 more for each rank of the run.

    Why: Every rank holds connections to the others, one or more for each group of ranks that it is in. When the limit
    is reached, the next connection fails: `Too many open files`.

    Example:
        zero.stage: 2
    Probe:
        worker-1: {nofile: 128}
    """
    need = 256 + 4 * (ctx.world_size or 0)
    hosts = [host for host in list_reachable_hosts(ctx) if host.nofile is not None and host.nofile < need]
    if hosts:
        least = min(host.nofile or 0 for host in hosts)
        yield ctx.finding(
            f"a process on {format_hosts(hosts)} may have {least} files open, {need} are needed",
            _HOSTFILE,
            notes=["every connection between ranks is one"],
            fix=Fix("raise `nofile` in /etc/security/limits.conf there"),
        )
