# SPDX-License-Identifier: Apache-2.0
"""`telemetry` and `logging`: measurements of a run in addition to its loss, trackers, and how often lines come."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.spec.sections.section import Count, Positive, Section

Tracker = Literal["csv", "tensorboard", "wandb", "mlflow"]


def _check_step_range(text: str) -> str:
    """A range of steps. Raises ValueError where it ends before it starts."""
    first, _, last = text.partition("-")
    if last and int(last) < int(first):
        raise ValueError(f"`{text}` ends before it begins")
    return text


class TelemetrySpec(Section):
    """Measurements of a run, and its trackers."""

    gather_steps: Positive | None = 5
    """Compare all ranks every N steps, by one small gather, and report slow ones. `null`: never."""
    straggler_threshold: Annotated[float, Field(gt=0.0, le=10.0)] = 0.2
    """A rank is slow when its busy time exceeds that of its peers by this share."""
    synchronize: bool = False
    """Wait for the device after each step, so that its line is exact and immediate. Default: read the device's events
    one step later, without waiting."""
    peak_flops: Annotated[float, Field(gt=0.0)] | None = None
    """Peak FLOP/s of one device, for MFU and HFU. Default: its data sheet's; none for a CPU or an unknown kind."""
    trackers: Annotated[tuple[Tracker, ...], Field(strict=False)] = ()
    """Trackers that get the lines of metrics.jsonl. One that fails is disabled with a warning; training continues."""
    tracker_dir: str | None = None
    """Folder that `csv`, `tensorboard`, offline `wandb` and `mlflow` without a server write to. Default: `trackers/` in
    the run directory; runs that resume it go on there."""
    project: str | None = None
    """Project of `wandb`, experiment of `mlflow`. Default: the variable WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME, else
    the name of the run."""
    wandb_entity: str | None = None
    """Team or user. Default: that of the login."""
    wandb_mode: Literal["online", "offline"] | None = None
    """`offline` writes a folder that `wandb sync` uploads later. Default: the variable WANDB_MODE, else `online`."""
    mlflow_tracking_uri: str | None = None
    """Server or database of `mlflow`, without a password (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD).
    Default: the variable MLFLOW_TRACKING_URI, else the folder above."""
    profile_steps: (
        Annotated[str, Field(pattern=r"^[1-9][0-9]*(-[1-9][0-9]*)?$"), AfterValidator(_check_step_range)] | None
    ) = None
    """Steps that torch's profiler records, such as `10-12`, as in `harness launch --profile steps=10-12`."""
    profile_ranks: Annotated[tuple[Count, ...], Field(strict=False)] = (0,)
    """Ranks that are profiled."""
    flops_profiler: bool = False
    """Let DeepSpeed count FLOPs module by module in the first profiled step (else step 5), into `profile/flops.txt`."""
    comms_logger: bool = False
    """Let DeepSpeed log every collective, and its summary at the end. Slows the run down: it waits for the device."""
    debug_distributed: bool = False
    """Verify and log every collective (TORCH_DISTRIBUTED_DEBUG, NCCL_DEBUG). Slow."""


class LoggingSpec(Section):
    """Logs of a run."""

    logging_steps: Positive = 1
    """Write a line of metrics.jsonl every N steps."""
    deepspeed_level: Literal["debug", "info", "warning", "error"] = "warning"
    """Log level of DeepSpeed's own logger."""
