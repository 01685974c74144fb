# SPDX-License-Identifier: Apache-2.0
"""Lines of batch schedulers: Slurm (slurmstepd, srun, sacct, scontrol), PBS, LSF."""

from __future__ import annotations

_TIME_LIMIT = """
    title: the job reached its time limit
    change: request more time (Slurm `--time`, PBS `-l walltime`, LSF `-W`), or save before the limit and resume:
        Slurm's `--signal=B:USR1@300` warns five minutes before, and `harness launch` saves on SIGUSR1 and SIGTERM
"""
_PREEMPTED = """
    title: the scheduler preempted the job for one of higher priority
    change: resume from the last checkpoint (Slurm's `--requeue` starts the job again); use a partition or QOS that is
        not preempted, or save more often
"""
_NODE_FAILED = """
    title: the scheduler reports that a node of the job failed
    change: resume on other nodes from the last checkpoint (`--requeue`, `--exclude=NODE`); `sinfo -R` and the node's
        log show what failed
"""
_MEMORY = """
    title: the job used more host memory than it requested from Slurm
    change: request more (`--mem`, `--mem-per-gpu`, or `--mem=0` for all memory of the node), or use less: fewer ranks
        and data loader workers per node, no `pin_memory`, the optimizer on NVMe; `sacct -j JOB --format=JobID,MaxRSS`
        shows the usage
"""

MESSAGES = rf"""
LG068 CANCELLED AT .*DUE TO (?P<why>TIME LIMIT){_TIME_LIMIT.rstrip()}
LG068 CANCELLED AT .*DUE TO (?P<why>PREEMPTION){_PREEMPTED.rstrip()}
LG242 CANCELLED AT .*DUE TO (?P<why>NODE FAILURE){_NODE_FAILED.rstrip()}
LG068 CANCELLED AT .*DUE TO (?P<why>JOB REQUEUE)
    title: the job was requeued
    change: read the log of the next attempt; `scontrol show job JOB` shows who requeued it
LG253 STEP \S+ ON (?P<host>\S+) CANCELLED AT \S+ \*\*\*
LG068 * JOB \d+ ON (?P<host>\S+) CANCELLED AT \S+ \*\*\*
    title: Slurm cancelled the job, because of a user (`scancel`), a dependency or a failure
    change: `sacct -j JOB --format=JobID,State,ExitCode,Comment` shows `CANCELLED by UID`; if nobody cancelled it,
        look for an error further up
LG242 (?:srun|slurmctld|slurmstepd|sbatch): error: (?:\*\*\* )?Node failure on (?P<host>\S+){_NODE_FAILED.rstrip()}
LG002 Detected \d+ oom[-_]kill events? in (?:StepId|step)|Some of (?:your processes may have been killed by the cgroup|the step tasks have been OOM Killed)|error: Exceeded (?:job|step) memory limit|memory limit exceeded, being killed|exceeded memory limit \(\d+ > \d+\)|OOM Killed{_MEMORY.rstrip()}
LG002 ^srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)(?:[\d,-]*): Out Of Memory{_MEMORY.rstrip()}
LG003 * ^srun: error: (?P<host>\S+): task (?P<rank>\d+): Killed
LG018 * ^srun: error: (?P<host>\S+): task (?P<rank>\d+): (?:Segmentation fault|Illegal instruction)
LG005 * ^srun: error: (?P<host>\S+): task (?P<rank>\d+): Bus error
LG069 * ^srun: error: (?P<host>\S+): tasks? [\d,-]+: (?:Terminated|Interrupt|Hangup)
LG074 * ^srun: error: (?P<host>\S+): task (?P<rank>\d+): (?:Exited with exit code (?P<exit>\d+)|Aborted)
LG074 * ^srun: error: (?P<host>\S+): tasks [\d,-]+: (?:Exited with exit code \d+|Killed|Aborted|Segmentation fault|Bus error)
LG253 * ^srun: (?:error: )?(?:Force Terminated|Job step aborted|Terminating|Timed out waiting for job step)
LG243 ^(?:sbatch|srun|salloc): error: (?:Batch job submission failed|Unable to allocate resources|Unable to create step for job \d+): (?P<why>.*)
    title: Slurm refused or could not place the job
    change: correct the partition, account, QOS or resources that the end of the line names, or wait for free nodes
LG062 ^srun: error: .*(?:Couldn't find the specified plugin name for mpi|Invalid MPI type)
    title: Slurm has no plug-in for the requested MPI
    change: use one that `srun --mpi=list` shows, such as `--mpi=pmix`
LG002 ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bOUT_OF_ME(?:MORY|\+)|\bJobState=OUT_OF_MEMORY{_MEMORY.rstrip()}
LG068 ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bTIMEOUT(?:\s+[\d:+.-]+)*\s*$|\bJobState=TIMEOUT|\bReason=TimeLimit{_TIME_LIMIT.rstrip()}
LG068 ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bPREEMPTED(?:\s+[\d:+.-]+)*\s*$|\bJobState=PREEMPTED{_PREEMPTED.rstrip()}
LG242 ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bNODE_FAIL\b|\bJobState=NODE_FAIL{_NODE_FAILED.rstrip()}
LG068 * ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bCANCELLED(?: by \d+|\+)|\bJobState=CANCELLED
    title: the job was cancelled
    change: `CANCELLED by UID` names the user; `CANCELLED by 0` is an administrator or the system
LG242 ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bBOOT_FAIL\b|\bJobState=BOOT_FAIL{_NODE_FAILED.rstrip()}
LG074 * ^\s*\d+(?:[_+]\d+)?(?:\.\w+)? .*\bFAILED +(?P<exit>\d+):\d+|\bJobState=FAILED
LG068 PBS: job killed: walltime \d+ exceeded limit|TERM_RUNLIMIT: job killed{_TIME_LIMIT.rstrip()}
LG002 PBS: job killed: (?:v?mem|pmem|pvmem) \S+ exceeded limit|TERM_MEMLIMIT: job killed
    title: the job used more memory than it requested
    change: request more (`-l mem=` of PBS, `-M` of LSF), or use less: fewer ranks and data loader workers per host
LG068 TERM_PREEMPT: job killed{_PREEMPTED.rstrip()}
LG069 * TERM_OWNER: job killed by owner|TERM_ADMIN: job killed|PBS: job killed: (?:ncpus|node \d+)
LG242 * TERM_(?:ZOMBIE|LOAD|UNKNOWN)\b.*|PBS: .*(?:node|Node) (?P<host>\S+) (?:is )?down{_NODE_FAILED.rstrip()}
"""
