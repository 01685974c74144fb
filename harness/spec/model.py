"""The run spec, version 1: what a user may ask for, one field at a time.

Shapes and ranges only. Whether two fields go together is the business of `harness.gates`. Names are those that users of
the Hugging Face ecosystem already type; inside `zero` and `deepspeed` they are DeepSpeed's own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _whole(value: object) -> object:
    """`5e8` is the whole number that it means."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _texts(value: object) -> object:
    """Numbers in a map of texts are the texts they were written as."""
    if not isinstance(value, dict):
        return value
    return {k: str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for k, v in value.items()}


Positive = Annotated[int, BeforeValidator(_whole), Field(ge=1)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
InputKind = Literal["spec", "deepspeed-json"]
"""What a file is: our own YAML, or a DeepSpeed JSON that was adopted as one."""
Consumer = Literal["hf", "accelerate", "deepspeed"]
"""Who reads a DeepSpeed JSON: the Hugging Face Trainer, accelerate, or DeepSpeed itself."""
Strings = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """Common rules: unknown keys are refused, values are never coerced, nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )


class ModelSpec(Section):
    """Which causal language model is trained, and from which weights."""

    name_or_path: str | None = None
    """A folder or a Hub name with a Hugging Face model. Its weights are the start, unless `random_init` is set."""
    revision: str | None = None
    """Branch, tag or commit on the Hub."""
    config: dict[str, Any] | None = None
    """A `transformers` configuration written out (`model_type` and its fields), for a model that starts from random
    weights.
    """
    random_init: bool = False
    """Take only the architecture from `name_or_path` and initialise the weights anew."""
    tokenizer: str | None = None
    """A folder or Hub name, or `bytes` for the 256-byte tokenizer that needs no file. Default: `name_or_path`."""
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"] | None = None
    """The attention kernel, as `transformers` names it. Default: what `transformers` picks."""
    trust_remote_code: bool = False
    """Let `transformers` run code that a Hub repository brings."""


class DataSpec(Section):
    """What it is trained on, and what it is measured on."""

    train: str | Strings | None = None
    """Files or globs (.txt, .md, .rst, .jsonl, .json, .csv, .parquet), a Hub dataset, or `builtin:python-docs`."""
    eval: str | Strings | None = None
    """The same for evaluation. Default: training documents, drawn by `train.seed`, about `eval_fraction` of it."""
    eval_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Share of the training text that is held out when `eval` is not given."""
    text_column: str = "text"
    """The column that holds the text in .jsonl, .json, .csv, .parquet and Hub datasets."""
    max_length: Annotated[int, Field(ge=2)] = 1024
    """Tokens a sequence."""
    shuffle: bool = True
    """Draw the training sequences in a random order that depends on `train.seed` and the epoch alone."""


class TrainSpec(Section):
    """How long, how much at once, from which seed."""

    max_steps: Positive | None = None
    """Optimizer steps. Wins over `num_train_epochs`."""
    num_train_epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the training data, when `max_steps` is not given."""
    per_device_train_batch_size: Positive | None = None
    """Sequences a rank computes at once (the micro-batch)."""
    global_batch_size: Positive | None = None
    """Sequences an optimizer step, over all ranks."""
    gradient_accumulation_steps: Positive | None = None
    """Micro-batches an optimizer step. Derived when the other two and the ranks are known."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    max_grad_norm: Annotated[float, Field(ge=0.0)] = 1.0
    """Clip the global gradient norm here; 0 turns clipping off."""
    seed: Count = 42
    """Seeds initial weights, data order and dropout."""


class OptimizerSpec(Section):
    """The optimizer. DeepSpeed picks the implementation for the device: fused, or DeepSpeedCPUAdam when it is
    offloaded.
    """

    type: Literal["adamw", "adam", "sgd"] = "adamw"
    """`adamw` decays weights apart from the gradient, `adam` adds the decay to it, `sgd` has only a momentum."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 1e-5
    """Peak learning rate."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Decay of all parameters but norms and biases."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.999)
    """Adam's two decay rates."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Adam's epsilon."""
    momentum: Fraction = 0.0
    """Momentum of `sgd`."""


class SchedulerSpec(Section):
    """The learning rate over the steps, as `transformers` computes it."""

    type: Literal["constant", "linear", "cosine"] = "cosine"
    """What follows the warm-up: stay, fall in a line to 0, or fall along a cosine."""
    warmup_steps: Count | None = None
    """Steps of linear warm-up from 0. Wins over `warmup_ratio`."""
    warmup_ratio: Fraction = 0.0
    """The same as a share of all steps."""
    min_lr_ratio: Fraction = 0.0
    """Where a cosine ends, as a share of the peak rate."""


class PrecisionSpec(Section):
    """Number format of weights and activations in forward and backward; neither flag means fp32."""

    bf16: bool = False
    """bfloat16 with fp32 master weights."""
    fp16: bool = False
    """float16 with fp32 master weights and loss scaling."""
    loss_scale: Annotated[float, Field(ge=0.0)] = 0.0
    """fp16: fixed loss scale; 0 scales dynamically."""
    initial_scale_power: Count = 16
    """fp16: the dynamic scale starts at 2 to this power."""
    loss_scale_window: Count = 1000
    """fp16: steps without overflow before the scale doubles."""
    hysteresis: Count = 2
    """fp16: overflows that are tolerated before the scale halves."""
    min_loss_scale: Count = 1
    """fp16: the scale never falls below this."""


class OffloadOptimizerSpec(Section):
    """Where optimizer states, master weights and the optimizer step live."""

    device: Literal["none", "cpu", "nvme"]
    """`nvme` needs stage 3."""
    nvme_path: str | None = None
    """A folder on a local disk, for `nvme`."""
    pin_memory: bool = True
    """Page-locked host buffers: faster copies, memory that cannot be swapped."""
    buffer_count: Positive = 4
    """NVMe swap buffers."""
    ratio: Fraction = 1.0
    """Stage 3: share of the parameters whose optimizer step runs on the CPU."""
    pipeline_read: bool = False
    """NVMe: read the next sub-group while this one is computed."""
    pipeline_write: bool = False
    """NVMe: write the last sub-group while this one is computed."""
    fast_init: bool = False
    """NVMe: faster first write."""


class OffloadParamSpec(Section):
    """Where ZeRO-3's parameter shards live between uses."""

    device: Literal["none", "cpu", "nvme"]
    """Read by DeepSpeed at stage 3 only."""
    nvme_path: str | None = None
    """A folder on a local disk, for `nvme`."""
    pin_memory: bool = True
    """Page-locked host buffers."""
    buffer_count: Positive = 5
    """NVMe swap buffers; each live or prefetched parameter holds one."""
    buffer_size: Positive = 100_000_000
    """Elements a swap buffer; must hold the largest parameter's shard."""
    max_in_cpu: Count = 1_000_000_000
    """Elements kept in host memory when parameters are on NVMe."""


class ZeroSpec(Section):
    """ZeRO, in DeepSpeed's own words. Left out: plain data parallelism (stage 0)."""

    stage: Annotated[int, Field(ge=0, le=3)]
    """0 replicates everything, 1 shards optimizer states, 2 gradients too, 3 parameters too."""
    offload_optimizer: OffloadOptimizerSpec | None = None
    """Optimizer states and step on the CPU or on NVMe."""
    offload_param: OffloadParamSpec | None = None
    """Stage 3: parameter shards on the CPU or on NVMe."""
    contiguous_gradients: bool | None = None
    """Copy gradients into one buffer as they appear."""
    reduce_scatter: bool | None = None
    """Reduce-scatter gradients instead of all-reducing them."""
    reduce_bucket_size: Positive | None = None
    """Elements reduced at once."""
    allgather_bucket_size: Count | None = None
    """Elements gathered at once (stages 1 and 2)."""
    overlap_comm: bool | None = None
    """Reduce gradients while the backward pass goes on."""
    round_robin_gradients: bool | None = None
    """Stages 1 and 2: spread gradient copies over the ranks. Never change it between save and resume."""
    sub_group_size: Count | None = None
    """Stage 3: elements the optimizer steps at once."""
    stage3_prefetch_bucket_size: Count | None = None
    """Stage 3: elements gathered ahead."""
    stage3_param_persistence_threshold: Count | None = None
    """Stage 3: parameters smaller than this stay gathered."""
    stage3_max_live_parameters: Count | None = None
    """Stage 3: gathered elements beyond which nothing is prefetched."""
    stage3_max_reuse_distance: Count | None = None
    """Stage 3: a parameter that is used again within so many elements stays gathered."""
    stage3_gather_16bit_weights_on_model_save: bool | None = None
    """Stage 3: let `save_16bit_model` write whole weights. `harness export` does not need it."""


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
    env: Annotated[dict[str, str], BeforeValidator(_texts)] = Field(default_factory=dict)
    """Variables that every rank gets."""
    stop_grace_seconds: Annotated[float, Field(gt=0, le=3600)] = 8.0
    """After Ctrl-C or SIGTERM, how long ranks may take to finish the step and save before they are killed."""


class ClusterSpec(Section):
    """What the machines are like, where no hostfile or probe says so: used by the plan alone."""

    num_nodes: Positive | None = None
    """Hosts."""
    gpus_per_node: Positive | None = None
    """Accelerators a host."""
    gpu: str | None = None
    """A kind that `harness plan` knows, such as `H100-80GB`."""
    host_memory: str | int | None = None
    """Memory a host, such as `2TB`."""
    nvme: str | int | None = None
    """Local disks a host, such as `8x3.5TB`."""
    host_memory_bandwidth: str | int | None = None
    """Memory bandwidth a host, such as `400GB/s`. `harness doctor --measure` measures it."""
    nvme_read_bandwidth: str | int | None = None
    """What the disks of a host read together, such as `24GB/s`."""
    nvme_write_bandwidth: str | int | None = None
    """What the disks of a host write together."""
    checkpoint_write_bandwidth: str | int | None = None
    """What a host writes to the file system of its checkpoints."""
    link_bandwidth: str | int | None = None
    """One direction between two GPUs of a host, as measured."""
    network_bandwidth: str | int | None = None
    """One direction between hosts, a GPU, as measured."""
    pcie_bandwidth: str | int | None = None
    """One direction between a GPU and host memory, as measured."""
    compute_efficiency: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Share of the dense peak that forward and backward reach. Default of the plan: 0.45."""
    failure_hours_per_gpu: Annotated[float, Field(gt=0.0)] | None = None
    """Mean hours between failures, a GPU. Default of the plan: 50,700."""


class RunSpec(Section):
    """One training run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = None
    """Names the run directory. Default: the file's name."""
    model: ModelSpec = Field(default_factory=ModelSpec)
    data: DataSpec = Field(default_factory=DataSpec)
    train: TrainSpec = Field(default_factory=TrainSpec)
    optimizer: OptimizerSpec = Field(default_factory=OptimizerSpec)
    scheduler: SchedulerSpec = Field(default_factory=SchedulerSpec)
    precision: PrecisionSpec = Field(default_factory=PrecisionSpec)
    zero: ZeroSpec = Field(default_factory=lambda: ZeroSpec(stage=0))
    parallel: ParallelSpec = Field(default_factory=ParallelSpec)
    checkpoint: CheckpointSpec = Field(default_factory=CheckpointSpec)
    eval: EvalSpec = Field(default_factory=EvalSpec)
    export: ExportSpec = Field(default_factory=ExportSpec)
    logging: LoggingSpec = Field(default_factory=LoggingSpec)
    launch: LaunchSpec = Field(default_factory=LaunchSpec)
    cluster: ClusterSpec = Field(default_factory=ClusterSpec)
    ignore: dict[str, str] = Field(default_factory=dict)
    """Findings to put up with, by gate id, each with the reason."""
    allow_undocumented: Strings = ()
    """Gates whose combination works on this DeepSpeed although its documentation does not promise it."""
    deepspeed: dict[str, Any] = Field(default_factory=dict)
    """Any other documented DeepSpeed key, as in its JSON."""
