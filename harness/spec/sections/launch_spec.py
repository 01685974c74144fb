# SPDX-License-Identifier: Apache-2.0
"""`launch`: where and how the ranks are started, stopped and restarted."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.spec.sections.section import Count, Positive, Section, WholeNumber, numbers_to_texts, off_to_text


class LaunchSpec(Section):
    """The start of the ranks."""

    output_dir: str = "runs"
    """The folder of run directories; relative to the current folder."""
    shared_disk: bool = True
    """Several hosts: they share `output_dir`. false: each has only its own disk. Its ranks' files of a checkpoint stay
    there, and a resume moves what a host lacks over the network, or from `checkpoint.upload_to`.
    """
    num_gpus: Positive | None = None
    """Ranks on this machine when there is no hostfile, as in `deepspeed --num_gpus`. Default: all accelerators."""
    hostfile: str | None = None
    """Hosts and slots, as in `deepspeed --hostfile`; relative to the spec."""
    launcher: Literal["pdsh", "openmpi", "slurm"] = "pdsh"
    """DeepSpeed's launcher for several hosts; `slurm` is srun, inside a Slurm job."""
    master_port: Annotated[WholeNumber, Field(ge=1024, le=65535)] | None = None
    """Port of the rendezvous. Default: a free one."""
    env: Annotated[dict[str, str], BeforeValidator(numbers_to_texts)] = Field(
        default_factory=dict,
        json_schema_extra={"additionalProperties": {"anyOf": [{"type": "string"}, {"type": "number"}]}},
    )
    """Variables that every rank gets. Those that choose code, such as PYTHONPATH, need `--allow-local-code`."""
    bind_cores_to_rank: bool = False
    """Bind each rank to its own cores, and to the memory of their NUMA node if they are in one, as `deepspeed
    --bind_cores_to_rank` does through numactl. For hosts with several NUMA nodes and the optimizer on the CPU.
    """
    bind_core_list: str | None = None
    """The cores to bind to, as `0-27,56-83`. Default: all physical cores, in the order of their numbers."""
    stop_grace_seconds: Annotated[float, Field(gt=0, le=3600)] = 8.0
    """Seconds for ranks to finish their step and save after Ctrl-C or SIGTERM, before they are killed. Default: 8, or
    three measured steps and a save where these take longer, up to two minutes.
    """
    max_restarts: Count = 0
    """Restarts at most, each from the last complete checkpoint, after a rank, a node or the launcher died, or after a
    hang. There is no restart after a user error, after a cause that is certain to come again, nor without progress."""
    restart_delay_seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Seconds before a restart; doubled after each attempt without progress, up to five minutes."""
    min_hosts: Positive | None = None
    """After a host is lost, restart without it while at least N hosts are left, and take it back after a save once it
    answers again, unless it was lost three times. More accumulation keeps the global batch, and gates and plan run
    again. Default: a restart needs all hosts.
    """
    hang_timeout_seconds: Annotated[float, Field(gt=0)] | None = 1800.0
    """End a run, with the stacks of every rank in `logs/`, after N seconds without a step or an evaluation batch.
    Start-up and saves get at least half an hour; data preparation has no limit. `null`: never.
    """
    engine_checks: Annotated[Literal["stop", "warn", "off"], BeforeValidator(off_to_text)] = "stop"
    """Check in the first 20 steps that the engine matches this spec, and compare replicas later: end the run if it
    does not (exit code 5), warn, or skip the checks.
    """
    patches: Annotated[Literal["auto", "off"] | dict[str, Literal["off"]], BeforeValidator(off_to_text)] = "auto"
    """Changes that the harness makes inside DeepSpeed and its dependencies: those that a run needs (`auto`), none, or
    all but some, as `{zero3-leaf-params: off}`. `harness doctor` lists them.
    """
