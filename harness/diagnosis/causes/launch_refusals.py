# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's launcher, pdsh, and DeepSpeed's communication before the first collective."""

from __future__ import annotations

from harness.diagnosis.diagnosis_types import FailureCause, FailureSignature

CAUSES = (
    FailureCause(
        "LG150",
        "launcher-option-conflict",
        "the launcher got options or environment variables that conflict",
        "leave out one of the two that the message names, or choose another back end with `--launcher`",
        (FailureSignature(r"launch(?:er)?: error: .*not allowed with argument"),),
    ),
    FailureCause(
        "LG151",
        "no-master-address",
        "the launcher found no address of the first host",
        "pass `--master_addr ADDRESS` with an address of the first host that all other hosts reach; the launcher "
        "runs `ssh HOST hostname -I` to find it, and some systems do not have that option",
        (FailureSignature(r"Unable to detect suitable master address via"),),
    ),
    FailureCause(
        "LG152",
        "pdsh-without-ssh",
        "pdsh did not use ssh to reach the hosts",
        "install pdsh's module for ssh (`pdsh -L` lists `rcmd/ssh`; a separate package in some distributions) and "
        "set `PDSH_RCMD_TYPE=ssh`, or use another back end: `--launcher openmpi`, `slurm`, or `--no_ssh --node_rank "
        "N` by hand on every host",
        (
            FailureSignature(r"No such rcmd module"),
            FailureSignature(r"^pdsh@\S+: Can't load .*"),
            FailureSignature(r"^pdsh@\S+: skipping insecure module"),
        ),
        page="DeepSpeed sets `PDSH_RCMD_TYPE=ssh` for the pdsh that it starts. pdsh refuses modules that another user "
        'owns or can write ("skipping insecure module"), and without the module for ssh it falls back to rsh ("rcmd: '
        'socket: Permission denied").',
    ),
    FailureCause(
        "LG153",
        "communication-not-initialized",
        "DeepSpeed's communication was used before it was set up, or after it was destroyed",
        "call `deepspeed.init_distributed()` (or `deepspeed.initialize`) before anything that communicates or asks for "
        "ranks, and `destroy_process_group` last; start the script with a launcher, not with plain `python`",
        (FailureSignature(r"DeepSpeed backend not set, please initialize it"),),
    ),
    FailureCause(
        "LG154",
        "launchers-disagree",
        "the environment names other ranks or sizes than the launcher that started the processes",
        "use one launcher: do not start `mpirun` or `srun` around `deepspeed` or `torchrun`, and unset variables "
        "that an outer job left (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `PMI_RANK`, `PMIX_RANK`)",
        (),
    ),
    FailureCause(
        "LG179",
        "several-hosts-wanted",
        "the command asks for several hosts",
        "pass DeepSpeed's launcher a hostfile, or start the command on every host with its own node rank",
        (
            FailureSignature(r"as it contains forbidden characters or missing values"),
            FailureSignature(r"num_machines['\"]?[=: ]+['\"]?(?P<hosts>[2-9]|[1-9]\d+)\b"),
            FailureSignature(r"num_nodes['\"]?[=: ]+['\"]?(?P<hosts>[2-9]|[1-9]\d+)\b"),
            FailureSignature(r"nnodes['\"]?[=: ]+['\"]?(?P<hosts>[2-9]|[1-9]\d+)\b"),
            FailureSignature(r"SLURM_NNODES['\"]?[=: ]+['\"]?(?P<hosts>[2-9]|[1-9]\d+)\b"),
            FailureSignature(r"SLURM_JOB_NUM_NODES['\"]?[=: ]+['\"]?(?P<hosts>[2-9]|[1-9]\d+)\b"),
        ),
        level="hint",
        page="accelerate writes the environment into `.deepspeed_env` only for several machines, and only then warns "
        "of variables that it leaves out there.",
    ),
)
