# SPDX-License-Identifier: Apache-2.0
"""Lines of the kernel (`dmesg`, the journal): killed processes, GPUs, disks, file systems, network cards.

The lines come from Linux, NVIDIA's driver (Xid and SXid as in its catalogue), mlx5, NFS and Lustre.
"""

from __future__ import annotations

_OOM_CONTAINER = """
    title: the kernel killed a process, because its container or job reached its memory limit
    change: raise the memory limit of the container or job (`resources.limits.memory`, `--mem`), or use less memory:
        fewer ranks and data loader workers per host, no `pin_memory`, ZeRO stage 3 before `from_pretrained`, the
        optimizer on NVMe
"""
_OOM_HOST = """
    title: the kernel killed a process, because the host's memory ran out
"""

MESSAGES = rf"""
LG002 Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?:python|pt_|torchrun|deepspeed|ray::|accelerate)\S*{_OOM_CONTAINER.rstrip()}
LG002 * [Mm]emory cgroup out of memory{_OOM_CONTAINER.rstrip()}
LG002 * oom-kill:constraint=CONSTRAINT_MEMCG\b.*\bpid=(?P<pid>\d+){_OOM_CONTAINER.rstrip()}
LG002 Out of memory: Kill(?:ed)? process (?P<pid>\d+) \((?:python|pt_|torchrun|deepspeed|ray::|accelerate)\S*{_OOM_HOST.rstrip()}
LG002 * Out of memory: Kill(?:ed)? process (?P<pid>\d+) \([^)]*\){_OOM_HOST.rstrip()}
LG002 * oom-kill:constraint=\w+.*\bpid=(?P<pid>\d+){_OOM_HOST.rstrip()}
LG002 * oom_reaper: reaped process (?P<pid>\d+)
LG006 * (?:systemd-oomd|earlyoom|oomd).*(?:[Kk]illed|sending SIG(?:KILL|TERM)|due to memory pressure)
    title: a daemon on the host killed processes, because memory ran low
    change: use less host memory, or exempt the job from that daemon (`ManagedOOMPreference=avoid`, earlyoom's
        `--avoid`)
LG017 * NVRM: Xid \((?P<device>[^)]*)\): 13\b
    title: a GPU kernel raised an exception (Xid 13), most often an out-of-bounds access
    change: run again with CUDA_LAUNCH_BLOCKING=1 (or `compute-sanitizer`) to find the operation; if it is always the
        same GPU, run `dcgmi diag -r 3` on it
LG017 * NVRM: Xid \((?P<device>[^)]*)\): 31\b
    title: a GPU kernel accessed an unmapped address (Xid 31, MMU fault)
    change: run again with CUDA_LAUNCH_BLOCKING=1 and without custom kernels or ops built for another torch; if it is
        always the same GPU, run `dcgmi diag -r 3` on it
LG250 * NVRM: Xid \((?P<device>[^)]*)\): (?:43|45)\b
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 48\b
    title: the GPU's memory had an error that ECC could not correct (Xid 48)
    change: resume without that host; reset the GPU (`nvidia-smi -r`) or reboot, look at `nvidia-smi -q -d
        ECC,ROW_REMAPPER`, and have the GPU replaced if a remapping failed or the errors come back
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 63\b
    title: the GPU retired a page or remapped a row of its memory (Xid 63)
    change: the new mapping needs a GPU reset: drain the host, run `nvidia-smi -r` or reboot, then use the GPU again;
        Xid 64, or many of these, means that the GPU must be replaced
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 64\b
    title: the GPU could not retire a page or remap a row of its memory (Xid 64)
    change: resume without that host and have the GPU replaced
LG249 * NVRM: Xid \((?P<device>[^)]*)\): 74\b
    title: an NVLink of the GPU failed (Xid 74)
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 79\b
    title: the GPU has fallen off the bus (Xid 79): power, heat, or a broken card or slot
    change: resume without that host; power-cycle it, check its temperature, power supply and PCIe errors (`lspci -vv`,
        the BMC's log), and have the GPU reseated or replaced if it comes back
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 9[24]\b
    title: the GPU had memory errors: an uncorrectable one that affected only its own process (Xid 94), or many
        corrected ones (Xid 92)
    change: resume the job, and reset the GPU when it is idle (`nvidia-smi -r`), which remaps the row
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 95\b
    title: the GPU had an uncorrectable memory error that it could not contain (Xid 95)
    change: resume without that host; reset its GPUs (`nvidia-smi -r`) or reboot it before they are used again
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 1(?:19|20)\b
    title: the GPU's system processor (GSP) did not answer or failed (Xid 119, 120)
    change: resume without that host; power-cycle it and update the driver; if the error comes back disable GSP where
        the driver allows it (`NVreg_EnableGpuFirmware=0`)
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 121\b
    title: the coherent link between CPU and GPU had an error (Xid 121)
    change: reset the GPU when it is idle (`nvidia-smi -r`); have the host checked if the error comes back
LG016 * NVRM: Xid \((?P<device>[^)]*)\): 140\b
    title: the GPU's memory had an ECC error that was not recovered (Xid 140)
    change: resume without that host; reset the GPU or reboot, and look at `nvidia-smi -q -d ECC`
LG249 * NVRM: Xid \((?P<device>[^)]*)\): (?:14[4-9]|150)\b
    title: an NVLink of the GPU failed (Xid 144 to 150)
LG016 * NVRM: (?:GPU at PCI:\S+: .*|GPU \S+: )?GPU has fallen off the bus
LG249 * nvidia-nvswitch\d+: SXid \(PCI:(?P<device>[^)]*)\): (?P<code>\d+), Fatal
    title: an NVSwitch reported a fatal error (SXid)
LG250 * nvidia-nvswitch\d+: SXid \(PCI:(?P<device>[^)]*)\): (?P<code>\d+), (?:Non-fatal|NonFatal)
    title: an NVSwitch reported an error that is not fatal (SXid)
    change: look first for what ended the job; watch the switch (`nvidia-smi nvlink -e`, the fabric manager's log)
LG052 * EXT4-fs error \(device (?P<device>\S+)\)|EXT4-fs \(\S+\): Remounting filesystem read-only|XFS \((?P<disk>\S+)\): .*(?:I/O error|[Cc]orruption|[Ss]hutting down)
    title: a local file system of the host is damaged, or its disk fails
    change: resume without that host; check the disk (`smartctl -a`, `nvme smart-log`) and repair the file system
LG052 * (?:blk_update_request: )?(?:critical )?(?:I/O|medium|target|space allocation) error, dev (?P<device>\w+), sector|Buffer I/O error on dev
    title: the kernel could not read or write a disk
    change: resume without that host; check the disk (`smartctl -a`, `nvme smart-log`) and its cable or slot
LG052 * nvme (?P<device>nvme\d+): (?:I/O .*timeout|controller is down|Device not ready|Removing after probe failure|Abort status)
    title: an NVMe disk did not answer
    change: check the disk (`nvme smart-log`, temperature, firmware); until it is checked, move swap files and caches to
        another disk
LG052 * nfs: server (?P<server>\S+) (?:not responding|OK)
    title: an NFS server did not answer, and processes waited for their files
    change: check the server and the network to it; keep data loading and checkpoints off a server that is overloaded
LG052 * LustreError: .*(?:timed out|Connection .*lost|evict|-110|-5\b)|Lustre: .*Connection to \S+ \(at \S+\) was lost|GPFS: .*(?:[Dd]isk failure|stale)
    title: the parallel file system lost a server or evicted this client
    change: check the file system's health with its administrator; resume from the last checkpoint
LG052 * INFO: task (?P<task>\S+) blocked for more than \d+ seconds
    title: a process was blocked in the kernel for minutes, most often on a disk or file system
    change: read the kernel stack below the line, and check the disk or network file system that it names
LG072 * mlx5_core \S+ (?P<device>\S+): Link down|mlx5_core .*(?:Port module event.*(?:error|unplugged)|health poll failed|device's health compromised|firmware internal error)|\b(?:ib\d+|bond\d+|en\w+|eth\d+): (?:NIC )?[Ll]ink (?:is )?[Dd]own
    title: a network card of a host lost its link or reported an error
    change: check the cable, the transceiver and the switch port (`ibstat`, `mlxlink -d DEVICE`, `ethtool DEVICE`),
        and the card's firmware; resume without that host until the link is stable
LG254 * EDAC MC\d+: \d+ UE |\[Hardware Error\]: .*(?:[Uu]ncorrected|[Ff]atal)|mce: .*[Hh]ardware [Ee]rror.*Machine [Cc]heck
LG242 Kernel panic - not syncing
    title: the kernel of a host panicked
LG242 * watchdog: BUG: soft lockup|rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stalls?
    title: a CPU of a host was stuck in the kernel
    change: read the stack below the line to find the driver or file system; update that driver or the kernel, and until
        then resume without that host
LG018 * \S+\[(?P<pid>\d+)\]: segfault at
    title: a process crashed in native code (the kernel logged a segmentation fault)
"""
