# SPDX-License-Identifier: Apache-2.0
"""`launch`: where and how the ranks are started, stopped and restarted."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.spec.sections.section import Positive, Section, numbers_to_texts


class LaunchSpec(Section):
    """How the ranks are started."""

    output_dir: str = "runs"
    """Run directories are made below this folder; relative to where the command is given."""
    num_gpus: Positive | None = None
    """Ranks on this machine when there is no hostfile, as in `deepspeed --num_gpus`. Default: all accelerators."""
    hostfile: str | None = None
    """Hosts and slots, as in `deepspeed --hostfile`; relative to the spec."""
    launcher: Literal["pdsh", "openmpi", "slurm"] = "pdsh"
    """Which of DeepSpeed's launchers starts the ranks on several hosts; `slurm` is srun, inside a job of Slurm."""
    master_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port of the rendezvous. Default: a free one."""
    env: Annotated[dict[str, str], BeforeValidator(numbers_to_texts)] = Field(default_factory=dict)
    """Variables that every rank gets. Those that choose code, such as PYTHONPATH, need `--allow-local-code`."""
    bind_cores_to_rank: bool = False
    """Give each rank cores of its own, and memory of their NUMA node where they lie in one, as `deepspeed
    --bind_cores_to_rank` does through numactl. For hosts with several NUMA nodes, where the optimizer runs on the CPU.
    """
    bind_core_list: str | None = None
    """Which cores are dealt out, as `0-27,56-83`. Default: all physical cores, in the order of their numbers."""
    stop_grace_seconds: Annotated[float, Field(gt=0, le=3600)] = 8.0
    """After Ctrl-C or SIGTERM, how long ranks may take to finish the step and save before they are killed."""
    max_restarts: Annotated[int, Field(ge=0)] = 0
    """Start again from the last complete checkpoint so many times at most after a rank, a node or the launcher died, or
    after a hang; not after a refusal, nor when no progress is made."""
    restart_delay_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Wait before a restart; twice as long after each attempt that made no progress, five minutes at most."""
    min_hosts: Positive | None = None
    """After a host was lost, a restart may do without it as long as so many are left: the global batch is kept by more
    accumulation, and gates and plan are asked again. Default: a restart wants all hosts.
    """
    hang_timeout_seconds: Annotated[float, Field(gt=0)] | None = 1800.0
    """End a run, with the stacks of every rank in `logs/`, when no step and no evaluation batch ends for so long;
    start-up and saves get half an hour at least, the preparation of data any time. `null`: never.
    """
    engine_checks: Literal["stop", "warn", "off"] = "stop"
    """Ask the engine in the first 20 steps whether it has what this spec asks for, and compare replicas now and then:
    end the run where it has not (exit code 5), say so and go on, or do not ask.
    """
