# SPDX-License-Identifier: Apache-2.0
"""The settings that memory and time depend on, with DeepSpeed's defaults. Reads a ResolvedRun; no arithmetic.

Defaults: `deepspeed/runtime/zero/config.py` and `zero/offload_config.py` of 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.facts.devices import usual_gpus_per_host
from harness.patches.patch_registry import PatchFacts, is_planned
from harness.plan.settings.patch_facts import patch_facts
from harness.plan.weights.optimizer_states import BytesPerParameter, Optimizer
from harness.plan.weights.tensor_shard import DEFAULT_PLAN, TensorPlanChoice
from harness.plan.weights.trainable_split import TrainableChoice
from harness.run.resolved_run import ResolvedRun
from harness.spec.pinned_memory import pins_natively
from harness.spec.run_spec import RunSpec
from harness.spec.sections.model_spec import QuantizationSpec

OffloadDevice = Literal["none", "cpu", "nvme"]
_ACTIVATION_CHECKPOINTING = "activation_checkpointing"
_BF16_STATE_KEYS = ("bf16_master_weights_and_grads", "bf16_optimizer_states")


@dataclass(frozen=True)
class PlanSettings:
    """The settings of a plan. `*_bytes` are bytes an element; sizes of buckets and thresholds are in elements."""

    stage: int
    optimizer_device: OffloadDevice
    param_device: OffloadDevice
    mixed_precision: bool
    param_bytes: int
    grad_bytes: int
    comm_bytes: int
    master_bytes: int
    state_bytes: int
    num_states: int
    micro_batch: int
    accumulation: int
    seq_length: int
    checkpointing: bool
    attention: str
    data_parallel_size: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    sequence_parallel_size: int
    ranks_per_host: int
    decay_groups: bool
    overlap_comm: bool
    contiguous_gradients: bool
    pin_memory: bool
    reduce_bucket_size: int
    sub_group_size: int
    prefetch_bucket_size: int
    param_persistence_threshold: int
    max_live_parameters: int
    max_reuse_distance: int
    optimizer_buffers: int
    parameter_buffers: int
    parameter_buffer_size: int
    max_in_cpu: int
    hpz_partition_size: int = 1
    """Ranks that share ZeRO++'s second shard of the parameters (`zero_hpz_partition_size`); 1 for none."""
    activation_device: OffloadDevice = "none"
    """Where the inputs of checkpointed layers wait."""
    partition_activations: bool = False
    """Each tensor-parallel rank keeps its part of them."""
    quantized_weights: bool = False
    quantized_gradients: bool = False
    multi_rank_bucket_allreduce: bool = True
    pipeline_read: bool = False
    pipeline_write: bool = False
    offload_ratio: float = 1.0
    leaf_decoder_layers: bool = False
    """ZeRO-3 gathers a decoder layer as one (`leaf_module`)."""
    pins_natively: bool = False
    packing: bool = False
    """Rows hold several documents."""
    loss_chunk_size: int = 0
    """Tokens whose logits exist at once; 0 for all of a micro-batch."""
    tensor_plan: TensorPlanChoice = DEFAULT_PLAN
    """AutoTP's plan, as far as the run states it."""
    separate_offload_grads: bool = False
    """An offloaded optimizer has fp32 gradients of its own, as in DeepSpeed (`patches/cpu_offload_single_grad.py`)."""
    steps_in_one_pass: bool = False
    """CPU Adam walks through host memory once (`patches/one_pass_adam.py`)."""
    overlap_step_gib: float = 0.0
    """Copies of sub-groups that are stepped beside the backward pass (`patches/overlapped_step.py`)."""
    keeps_first_step_states: bool = False
    """The states of the first step stay in host memory, as in DeepSpeed alone (`patches/nvme_release.py`)."""
    trainable: TrainableChoice | None = None
    """Adapters and frozen parameters of the spec; None where all parameters are trained."""
    compiled: bool = False
    """`train.torch_compile`."""
    checkpoint_every: int = 1
    """With `checkpointing`, layers 0, K, 2K and so on recompute."""
    layers_per_segment: int = 1
    """With `checkpointing`, of so many layers only the first keeps its input."""
    keeps_attention: bool = False
    """With `checkpointing`, layers recompute all but their attention."""
    mlp_tile_size: int = 0
    """Tokens of an MLP at once; 0 for all."""
    binds_cores: bool = False
    """The launcher binds each rank to cores of its own."""
    pins_parameters: bool = True
    step_threads: int = 0  # of a rank's CPU optimizer; 0 where no launcher sets them
    keeps_first_states: bool = False  # of a first optimizer, of all parameters
    flattens_masters: bool = True
    """The master weights are one buffer."""
    step_temporaries: tuple[int, int] = (0, 0)  # of torch's Adam, as long as what is stepped: on GPU, on CPU
    autocast_bytes: int = 0
    """Bytes of a gradient that autocast communicates in a format and buckets of its own; 0 where there is one."""
    copies_for_save: bool = False
    """Saves run in the background, from a copy in host memory."""
    reentrant_checkpointing: bool = False
    """Every layer's input requires a gradient, frozen embeddings or not."""
    steps_matrices_by_muon: bool = False
    """With one momentum; `num_states` is for all else."""
    built_bytes: int = 4
    """Bytes of a weight of the model that is built; weights that are read have the training format, new ones fp32."""
    quantization: QuantizationSpec | None = None
    """Of the frozen weights; None for none."""
    rank: int | None = None
    """The rank whose memory is planned; None for the one with the most."""
    pipeline_partition_method: str = "parameters"
    keeps_logits: bool = False
    """The loop keeps the model's output, and its logits through the backward pass."""
    keeps_reference: bool = False
    """The loop holds the model before training beside the one that is trained."""
    sequences_a_row: int = 1
    """Of `micro_batch`, which counts sequences: two of a pair."""

    @property
    def rows(self) -> int:
        """Rows of a micro-batch: `train.per_device_train_batch_size`."""
        return self.micro_batch // self.sequences_a_row

    @property
    def bytes_per_parameter(self) -> BytesPerParameter:
        """Bytes a parameter. Without 16-bit weights there are no masters at stage 0, a second copy above it."""
        master = self.master_bytes if self.mixed_precision or self.stage else 0
        return BytesPerParameter(self.param_bytes, self.grad_bytes, master, self.state_bytes * self.num_states)

    def with_values(self, **values: Any) -> PlanSettings:
        """The same with other values; `dataclasses.replace` takes ten times as long, and a search makes thousands."""
        vars(other := object.__new__(type(self))).update(vars(self), **values)
        return other

    @property
    def swap_buffers_per_sub_group(self) -> int:
        """Swap buffers of one sub-group of the optimizer: its master weights, its states, its gradient."""
        return self.num_states + 2

    @property
    def momentum_bytes(self) -> int:
        """Bytes of Muon's momentum of an element: as gradients, but at stages 1 and 2 on the CPU as Adam's states."""
        return self.state_bytes if self.stage in (1, 2) and self.optimizer_device != "none" else self.comm_bytes

    @property
    def zero_world_size(self) -> int:
        """Ranks that ZeRO divides over: data-parallel ranks, and with Ulysses the sequence-parallel ones too."""
        return self.data_parallel_size * self.sequence_parallel_size

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.zero_world_size * self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_hosts(self) -> int:
        """The hosts of these ranks."""
        return -(-self.world_size // self.ranks_per_host)

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens that one rank holds activations for."""
        return self.micro_batch * -(-self.seq_length // self.sequence_parallel_size)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.micro_batch * self.accumulation * self.data_parallel_size * self.seq_length

    @property
    def uses_bf16_optimizer(self) -> bool:
        """Stage 1 with fp32 gradient accumulation under 16-bit weights is another class, with whole fp32 gradients."""
        return self.stage == 1 and self.mixed_precision and self.grad_bytes == 4 and self.optimizer_device == "none"


class _ZeroValues:
    """`zero.KEY` of the spec, else `deepspeed.zero_optimization.KEY`, else the tuned default, else DeepSpeed's."""

    def __init__(self, run: ResolvedRun) -> None:
        self._zero = run.spec.zero
        raw = run.spec.deepspeed.get("zero_optimization")
        self._raw: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
        self._tuned_defaults = {
            default.key.removeprefix("zero_optimization."): default.value for default in run.tuned_defaults or ()
        }

    def _value(self, key: str) -> Any:
        value = getattr(self._zero, key, None)
        return self._raw.get(key, self._tuned_defaults.get(key)) if value is None else value

    def get_int(self, key: str, default: int) -> int:
        value = self._value(key)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default

    def get_bool(self, key: str, default: bool) -> bool:
        value = self._value(key)
        return value if isinstance(value, bool) else default

    def get_offload_value(self, key: str, default: Any) -> Any:
        """`SECTION.KEY` of the spec, or its tuned default, which exists only where the spec leaves the key out."""
        section, name = key.split(".")
        offload = getattr(self._zero, section)
        return self._tuned_defaults.get(key, getattr(offload, name) if offload else default)


def settings_of(run: ResolvedRun) -> PlanSettings | None:
    """The settings of a run, or None while its ranks or its micro-batch are unknown."""
    spec, batch, data, world = run.spec, run.batch, run.parallel_dims.data, run.parallel_dims.world_size or 1
    if data is None or batch.micro_batch is None:
        return None
    zero, stage = _ZeroValues(run), spec.zero.stage
    optimizer, parameters = spec.zero.offload_optimizer, spec.zero.offload_param
    optimizer_device: OffloadDevice = optimizer.device if optimizer and stage else "none"
    if optimizer_device == "nvme" and stage < 3:
        optimizer_device = "cpu"  # stage_1_and_2.py: any offload device is the CPU
    width = 2 if spec.precision.bf16 or spec.precision.fp16 else 4
    # Without DeepSpeed ms-swift loads bf16 weights and steps these: no masters, and states in bf16.
    mixed = width == 2 and not (run.trainer == "swift" and stage == 0 and spec.precision.bf16)
    kind = Optimizer.of(spec.deepspeed.get("optimizer"), spec.optimizer.type, spec.optimizer.momentum)
    is_offloaded = optimizer_device != "none"
    master, state = _master_and_state_bytes(spec) if mixed else (width, width)
    layers = run.checkpointing
    checkpointing = layers is not None
    facts = patch_facts(run)
    return PlanSettings(
        stage=stage,
        optimizer_device=optimizer_device,
        param_device=parameters.device if parameters and stage == 3 else "none",
        mixed_precision=mixed,
        param_bytes=width,
        grad_bytes=dtype_bytes(block_value(spec.deepspeed, "data_types", "grad_accum_dtype"), width),
        comm_bytes=_comm_bytes(run, width),
        master_bytes=master,
        state_bytes=state,
        num_states=kind.num_states(stage=stage, is_offloaded=is_offloaded),
        micro_batch=batch.micro_batch * run.sequences_a_row,
        sequences_a_row=run.sequences_a_row,
        accumulation=batch.accumulation or 1,
        seq_length=spec.data.max_length,
        checkpointing=checkpointing,
        checkpoint_every=layers.recompute_every if layers else 1,
        layers_per_segment=layers.layers_per_segment if layers else 1,
        mlp_tile_size=spec.train.mlp_tile_size or 0,
        keeps_attention=bool(layers and layers.keep == "attention"),
        attention=run.attn_implementation or "sdpa",
        data_parallel_size=data,
        tensor_parallel_size=run.parallel_dims.tensor,
        pipeline_parallel_size=run.parallel_dims.pipeline,
        pipeline_partition_method=spec.parallel.pipeline_partition_method,
        sequence_parallel_size=run.parallel_dims.sequence,
        ranks_per_host=_ranks_per_host(run),
        decay_groups=has_decay(spec),
        overlap_comm=zero.get_bool("overlap_comm", stage == 3) and run.parallel_dims.pipeline == 1,  # off there
        contiguous_gradients=zero.get_bool("contiguous_gradients", True),
        pin_memory=optimizer.pin_memory if optimizer else True,
        pins_natively=pins_natively(spec.zero, spec.launch.env),
        reduce_bucket_size=zero.get_int("reduce_bucket_size", 500_000_000),
        sub_group_size=zero.get_int("sub_group_size", 1_000_000_000),
        prefetch_bucket_size=zero.get_int("stage3_prefetch_bucket_size", 50_000_000),
        param_persistence_threshold=zero.get_int("stage3_param_persistence_threshold", 100_000),
        max_live_parameters=zero.get_int("stage3_max_live_parameters", 1_000_000_000),
        max_reuse_distance=zero.get_int("stage3_max_reuse_distance", 1_000_000_000),
        optimizer_buffers=zero.get_offload_value("offload_optimizer.buffer_count", 4),
        parameter_buffers=zero.get_offload_value("offload_param.buffer_count", 5),
        parameter_buffer_size=zero.get_offload_value("offload_param.buffer_size", 100_000_000),
        max_in_cpu=parameters.max_in_cpu if parameters else 1_000_000_000,
        hpz_partition_size=min(zero.get_int("zero_hpz_partition_size", 1) if stage == 3 else 1, world),
        activation_device="cpu" if checkpointing and _offloads_activations(spec) else "none",
        partition_activations=checkpointing
        and block_value(spec.deepspeed, _ACTIVATION_CHECKPOINTING, "partition_activations") is True,
        quantized_weights=stage == 3 and zero.get_bool("zero_quantized_weights", False),
        quantized_gradients=stage == 3 and zero.get_bool("zero_quantized_gradients", False),
        multi_rank_bucket_allreduce=zero.get_bool("use_multi_rank_bucket_allreduce", True),
        pipeline_read=zero.get_offload_value("offload_optimizer.pipeline_read", False),
        pipeline_write=zero.get_offload_value("offload_optimizer.pipeline_write", False),
        offload_ratio=optimizer.ratio if optimizer and stage == 3 else 1.0,
        leaf_decoder_layers=any(one.key == "zero_optimization.leaf_module.classes" for one in run.tuned_defaults or ()),
        packing=spec.data.packing,
        loss_chunk_size=run.loss_chunk_size if _is_patched(run, facts, "chunked-loss") else 0,
        tensor_plan=TensorPlanChoice.from_block(spec.deepspeed.get("tensor_parallel")),
        separate_offload_grads=optimizer_device != "none"
        and not any(_is_patched(run, facts, name) for name in ("cpu-offload-single-grad", "nvme-offload-no-grad-swap")),
        steps_in_one_pass=(one_pass := _is_patched(run, facts, "one-pass-adam") and master == state == 4),
        overlap_step_gib=one_pass * _is_patched(run, facts, "overlapped-step") * spec.zero.overlap_step_gib,
        keeps_first_step_states=not _is_patched(run, facts, "nvme-release", stage=3, optimizer_device="nvme"),
        trainable=(trainable := TrainableChoice.from_spec(spec.model)),
        compiled=bool(spec.train.torch_compile),
        binds_cores=bool(spec.launch.bind_cores_to_rank),
        pins_parameters=not (parameters and trainable) or parameters.pin_memory,  # trained ones always: stage3.py
        step_threads=run.step_threads,
        keeps_first_states=kind.keeps_first_states(stage=stage, is_offloaded=is_offloaded, mixed_precision=mixed),
        flattens_masters=stage > 0 or kind.is_fused,
        step_temporaries=kind.step_temporaries(of_loop=run.loop_makes_unfused),
        reentrant_checkpointing=spec.train.gradient_checkpointing_use_reentrant or _offloads_activations(spec),
        steps_matrices_by_muon=kind.is_muon,
        keeps_logits=run.trainer == "accelerate",
        keeps_reference=bool(run.trainer) and spec.objective in ("dpo", "kto") and spec.model.lora is None,
        built_bytes=4 if spec.model.name_or_path is None or spec.model.random_init else width,
        quantization=spec.model.quantization,
        autocast_bytes=_autocast_bytes(run, width),
        copies_for_save=run.kind == "spec"
        and spec.checkpoint.async_save
        and spec.checkpoint.save_steps is not None
        and "nvme" not in (optimizer_device, parameters.device if parameters else "none"),
    )


def _is_patched(run: ResolvedRun, facts: PatchFacts, name: str, **alternative: Any) -> bool:
    """Will the harness change DeepSpeed so? Never for a JSON. `alternative`: facts of others, which pipeline."""
    if alternative:
        facts = facts._replace(is_swapping_pipelined=True, **alternative)
    return run.kind == "spec" and is_planned(name, facts, run.spec.launch.patches)


def _offloads_activations(spec: RunSpec) -> bool:
    """The spec's own key is rendered as DeepSpeed's, which a JSON may set too and which then decides."""
    raw = block_value(spec.deepspeed, _ACTIVATION_CHECKPOINTING, "cpu_checkpointing")
    return spec.train.offload_activations if raw is None else raw is True


def _master_and_state_bytes(spec: RunSpec) -> tuple[int, int]:
    """Bytes of a master weight and of one optimizer state, which bf16 may have in 16 bits."""
    return tuple(2 if is_switched_on(spec.deepspeed, "bf16", key) else 4 for key in _BF16_STATE_KEYS)  # type: ignore[return-value]


def _is_autocast(run: ResolvedRun) -> bool:
    return run.spec.zero.stage > 0 and is_switched_on(run.spec.deepspeed, "torch_autocast", "enabled")


def _autocast_bytes(run: ResolvedRun, width: int) -> int:
    """Of the gradients of linear layers under autocast, where others are wider (`runtime/torch_autocast.py`)."""
    dtype = block_value(run.spec.deepspeed, "torch_autocast", "dtype")
    bytes_of_linears = dtype_bytes(dtype, 2)
    return bytes_of_linears if _is_autocast(run) and bytes_of_linears != width else 0


def _comm_bytes(run: ResolvedRun, width: int) -> int:
    """Of gradients between ranks: with Ulysses alone fp32 without `communication_data_type`, which autocast ignores."""
    name = None if _is_autocast(run) else run.spec.deepspeed.get("communication_data_type")
    is_ulysses_group = run.parallel_dims.sequence > 1 and run.parallel_dims.autotp == 1
    return dtype_bytes(name, 4 if is_ulysses_group else width)


def _ranks_per_host(run: ResolvedRun) -> int:
    world = run.parallel_dims.world_size or 1
    if run.cluster is not None:
        return min(max(host.slots for host in run.cluster.hosts), world)
    if has_assumed_hosts(run):
        return usual_gpus_per_host(run.spec.cluster.gpu)
    return min(run.spec.cluster.gpus_per_node or -(-world // (run.spec.cluster.num_nodes or 1)), world)


def block_value(config: Mapping[str, Any], block: str, key: str) -> Any:
    """The value in a block of `config`, None where it is not written."""
    section = config.get(block)
    return section.get(key) if isinstance(section, Mapping) else None


def is_switched_on(config: Mapping[str, Any], block: str, key: str) -> bool:
    """Is the value `true`?"""
    return block_value(config, block, key) is True


def has_decay(spec: RunSpec) -> bool:
    """Does any matrix decay? The engine then has one group of parameters with decay and one without."""
    block = spec.deepspeed.get("optimizer")  # instead of the spec's own, not laid over it
    value = block_value(block, "params", "weight_decay") if isinstance(block, dict) else spec.optimizer.weight_decay
    return isinstance(value, (int, float)) and value > 0


def dtype_bytes(name: Any, default: int) -> int:
    """Bytes of an element of a format by its name, `default` for another name."""
    return {"fp32": 4, "float32": 4, "fp16": 2, "bf16": 2, "float16": 2, "bfloat16": 2}.get(str(name).lower(), default)


def has_assumed_hosts(run: ResolvedRun) -> bool:
    """Are there more ranks than one host usually has, by `--world-size` alone? A launch without hosts is on one."""
    cluster, world = run.spec.cluster, run.parallel_dims.world_size or 1
    is_named = cluster.num_nodes or cluster.gpus_per_node or run.spec.launch.num_gpus == world or cluster.gpu == "cpu"
    return run.cluster is None and not is_named and world > usual_gpus_per_host(cluster.gpu)
