"""`parallel`, `checkpoint`, `eval`, `export`, `logging`, `launch`: ranks, and what a run leaves behind."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.facts.pipeline_support import PARTITION_METHOD_PATTERN
from harness.spec.sections.section import Positive, Section, check_size, numbers_to_texts


class ParallelSpec(Section):
    """Degrees other than data parallelism; the rest of the ranks is data-parallel."""

    tensor_parallel_size: Positive = 1
    """DeepSpeed AutoTP: ranks that share each layer."""
    pipeline_parallel_size: Positive = 1
    """DeepSpeed PipelineModule: stages."""
    pipeline_partition_method: Annotated[str, Field(pattern=PARTITION_METHOD_PATTERN)] = "parameters"
    """How layers are spread over the stages, in DeepSpeed's words: alike in `parameters`, alike in number
    (`uniform`), or alike in layers whose class matches a pattern (`type:DecoderLayer`).
    """
    sequence_parallel_size: Positive = 1
    """Ulysses: ranks that share each sequence."""


class CheckpointSpec(Section):
    """When the training state is saved, and how much of it is kept."""

    save_steps: Positive | None = None
    """Save every so many steps. Default: only at the end."""
    save_total_limit: Positive | None = None
    """Keep the newest so many. Default: all."""
    keep_every_steps: Positive | None = None
    """Beyond the newest, keep those of every so many steps."""
    keep_best: bool = False
    """Beyond the newest, keep the one with the lowest held-out loss among those that were evaluated."""
    save_at_end: bool = True
    """Save after the last step, and when the run is asked to stop."""
    async_save: bool = False
    """Copy the state to host memory and write it while training goes on; needs that much host memory more. With states
    on NVMe, or too little memory, training waits for the write as without it."""
    on_save_error: Literal["stop", "continue"] = "stop"
    """What follows a save that failed (disk full, storage gone) before the last step: end the run, or train on. Earlier
    checkpoints are kept either way."""
    verify: Literal["full", "sizes"] = "full"
    """What a resume looks at before it loads: every byte against its sha256, or names and sizes alone."""


class EvalSpec(Section):
    """Loss on the held-out part."""

    eval_steps: Positive | None = None
    """Evaluate every so many steps. Default: only at the end."""
    per_device_eval_batch_size: Positive | None = None
    """Default: the training micro-batch."""
    max_batches: Positive | None = None
    """Batches a rank at most, for a quick look. Default: the whole held-out part."""
    eval_on_start: bool = False
    """Evaluate before the first step too."""
    early_stopping_patience: Positive | None = None
    """End the run after so many evaluations in a row that were not better than the best. Default: never."""
    early_stopping_threshold: Annotated[float, Field(ge=0.0)] = 0.0
    """How much lower than the best a loss must be to count as better."""


class ExportSpec(Section):
    """A Hugging Face folder when training has ended (the command `harness export` makes one at any time)."""

    at_end: bool = False
    """Export the last checkpoint after training."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Number format of the exported weights. Default: the one trained in."""
    max_shard_size: Annotated[str, AfterValidator(check_size)] | None = None
    """Size of a safetensors file at most, such as `5GB`. Default: 2 GiB."""
    lora: Literal["merge", "adapter"] = "merge"
    """LoRA adapters: added into the weights, or exported alone, as `peft` reads them."""
    verify: bool = False
    """Load the export with `transformers` and compare its logits with the checkpoint's: for models that fit in host
    memory twice.
    """
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
