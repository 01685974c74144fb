# SPDX-License-Identifier: Apache-2.0
"""`telemetry`: what a run measures of itself beyond its loss, and where else that is told."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.spec.sections.section import Positive, Section

Tracker = Literal["csv", "tensorboard", "wandb", "mlflow"]


def _check_step_range(text: str) -> str:
    """Steps from one to another. Raises ValueError where it ends before it begins."""
    first, _, last = text.partition("-")
    if last and int(last) < int(first):
        raise ValueError(f"`{text}` ends before it begins")
    return text


class TelemetrySpec(Section):
    """What a run measures of itself, and which trackers are told."""

    gather_steps: Positive | None = 5
    """Compare all ranks every so many steps and name those that are slow, by one small message. `null`: never."""
    straggler_threshold: Annotated[float, Field(gt=0.0, le=10.0)] = 0.2
    """A rank is slow when it is busy for longer than its peers by this share."""
    synchronize: bool = False
    """Wait for the device after each step, so that its line is exact and at once. Default: read a step later what the
    device has noted on its way, and never wait."""
    peak_flops: Annotated[float, Field(gt=0.0)] | None = None
    """Peak FLOP/s of one device, for MFU and HFU. Default: its data sheet's; none for a CPU or an unknown kind."""
    trackers: Annotated[tuple[Tracker, ...], Field(strict=False)] = ()
    """Where the lines of metrics.jsonl go too. One that fails is given up; training goes on."""
    tracker_dir: str | None = None
    """Folder that `csv`, `tensorboard`, offline `wandb` and `mlflow` without a server write to. Default: `trackers/` in
    the run directory."""
    project: str | None = None
    """Project of `wandb`, experiment of `mlflow`. Default: the name of the run."""
    wandb_entity: str | None = None
    """Team or user. Default: that of the login."""
    wandb_mode: Literal["online", "offline"] = "online"
    """`offline` writes a folder that `wandb sync` uploads later."""
    mlflow_tracking_uri: str | None = None
    """Server or database of `mlflow`. Default: the variable MLFLOW_TRACKING_URI, else the folder above."""
    profile_steps: (
        Annotated[str, Field(pattern=r"^[1-9][0-9]*(-[1-9][0-9]*)?$"), AfterValidator(_check_step_range)] | None
    ) = None
    """Steps that torch's profiler records, such as `10-12`, as in `harness launch --profile steps=10-12`."""
    profile_ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = (0,)
    """Ranks that are profiled."""
    flops_profiler: bool = False
    """Let DeepSpeed count FLOPs module by module in the first profiled step (else step 5), into `profile/flops.txt`."""
    comms_logger: bool = False
    """Let DeepSpeed log every collective, and its summary at the end. Slows the run down: it waits for the device."""
    debug_distributed: bool = False
    """Have torch and NCCL check and tell each collective (TORCH_DISTRIBUTED_DEBUG, NCCL_DEBUG and so on). Slow."""
