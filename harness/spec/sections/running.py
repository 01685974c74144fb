"""`parallel`, `checkpoint`, `eval`, `export`, `logging`, `launch`: ranks, and what a run leaves behind."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from harness.spec.sections.base import Positive, Section, texts


class ParallelSpec(Section):
    """Degrees other than data parallelism; the rest of the ranks is data-parallel."""

    tensor_parallel_size: Positive = 1
    """DeepSpeed AutoTP: ranks that share each layer."""
    pipeline_parallel_size: Positive = 1
    """DeepSpeed PipelineModule: stages."""
    sequence_parallel_size: Positive = 1
    """Ulysses: ranks that share each sequence."""


class CheckpointSpec(Section):
    """When the training state is saved, and how much of it is kept."""

    save_steps: Positive | None = None
    """Save every so many steps. Default: only at the end."""
    save_total_limit: Positive | None = None
    """Keep the newest so many."""
    save_at_end: bool = True
    """Save after the last step, and when the run is asked to stop."""


class EvalSpec(Section):
    """Loss on the held-out part."""

    eval_steps: Positive | None = None
    """Evaluate every so many steps. Default: only at the end."""
    per_device_eval_batch_size: Positive | None = None
    """Default: the training micro-batch."""
    max_batches: Positive | None = None
    """Batches a rank at most, for a quick look. Default: the whole held-out part."""


class ExportSpec(Section):
    """A Hugging Face folder when training has ended (the command `harness export` makes one at any time)."""

    at_end: bool = False
    """Export the last checkpoint after training."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of the exported weights. Default: the one trained in."""
    sample_prompt: str | None = None
    """Generate a sample from the export, starting from this."""
    sample_tokens: Positive = 128
    """Length of that sample."""


class LoggingSpec(Section):
    """What a run says while it runs."""

    logging_steps: Positive = 1
    """Write a line of metrics.jsonl every so many steps."""
    deepspeed_level: Literal["debug", "info", "warning", "error"] = "warning"
    """What DeepSpeed's own logger may print."""


class LaunchSpec(Section):
    """How the ranks are started."""

    output_dir: str = "runs"
    """Run directories are made below this folder; relative to where the command is given."""
    num_gpus: Positive | None = None
    """Ranks on this machine when there is no hostfile, as in `deepspeed --num_gpus`. Default: all accelerators."""
    hostfile: str | None = None
    """Hosts and slots, as in `deepspeed --hostfile`; relative to the spec."""
    master_port: Annotated[int, Field(ge=1024, le=65535)] | None = None
    """Port of the rendezvous. Default: a free one."""
    env: Annotated[dict[str, str], BeforeValidator(texts)] = Field(default_factory=dict)
    """Variables that every rank gets."""
    stop_grace_seconds: Annotated[float, Field(gt=0, le=3600)] = 8.0
    """After Ctrl-C or SIGTERM, how long ranks may take to finish the step and save before they are killed."""
