"""The settings that memory and time depend on, with DeepSpeed's defaults filled in. Reads a Run; counts nothing.

Defaults: `deepspeed/runtime/zero/config.py` and `zero/offload_config.py` of 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.plan.run import Run
from harness.spec.model import RunSpec

Place = Literal["none", "cpu", "nvme"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the planner looks at. `*_bytes` are bytes an element; sizes of buckets and thresholds are in elements."""

    stage: int
    optimizer_at: Place
    parameters_at: Place
    mixed: bool
    param_bytes: int
    grad_bytes: int
    comm_bytes: int
    master_bytes: int
    state_bytes: int
    num_states: int
    micro_batch: int
    accumulation: int
    sequence: int
    checkpointing: bool
    attention: str
    data: int
    tensor: int
    pipeline: int
    sequence_parallel: int
    ranks_per_host: int
    decay_groups: bool
    overlap: bool
    contiguous_gradients: bool
    pin_memory: bool
    reduce_bucket: int
    sub_group: int
    prefetch: int
    persistence: int
    max_live: int
    reuse: int
    optimizer_buffers: int
    parameter_buffers: int
    parameter_buffer_size: int
    max_in_cpu: int

    @property
    def shards(self) -> int:
        """Ranks that ZeRO divides over: data-parallel ranks, and with Ulysses the sequence-parallel ones too."""
        return self.data * self.sequence_parallel

    @property
    def world(self) -> int:
        """All ranks."""
        return self.shards * self.tensor * self.pipeline

    @property
    def hosts(self) -> int:
        """Hosts that they fill."""
        return -(-self.world // self.ranks_per_host)

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens that one rank holds activations for."""
        return self.micro_batch * -(-self.sequence // self.sequence_parallel)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.micro_batch * self.accumulation * self.data * self.sequence

    @property
    def bf16_optimizer(self) -> bool:
        """Stage 1 with fp32 gradient accumulation under 16-bit weights is another class, with whole fp32 gradients."""
        return self.stage == 1 and self.mixed and self.grad_bytes == 4 and self.optimizer_at == "none"


class _Zero:
    """`zero.KEY` of the spec, else `deepspeed.zero_optimization.KEY`, else DeepSpeed's default."""

    def __init__(self, spec: RunSpec) -> None:
        self._zero = spec.zero
        raw = spec.deepspeed.get("zero_optimization")
        self._raw: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}

    def _value(self, key: str) -> Any:
        value = getattr(self._zero, key, None)
        return self._raw.get(key) if value is None else value

    def count(self, key: str, default: int) -> int:
        value = self._value(key)
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key)
        return value if isinstance(value, bool) else default


def settings_of(run: Run) -> Settings | None:
    """The settings of a run, or None while its ranks or its micro-batch are not known."""
    spec, batch, data = run.spec, run.batch, run.degrees.data
    if data is None or batch.per_device is None:
        return None
    zero, stage = _Zero(spec), spec.zero.stage
    optimizer, parameters = spec.zero.offload_optimizer, spec.zero.offload_param
    optimizer_at: Place = optimizer.device if optimizer and stage else "none"
    if optimizer_at == "nvme" and stage < 3:
        optimizer_at = "cpu"  # stage_1_and_2.py: any offload device is the CPU
    mixed = spec.precision.bf16 or spec.precision.fp16
    width = 2 if mixed else 4
    lean = mixed and _raw_flag(spec, "bf16", "bf16_master_weights_and_grads")
    lean_states = mixed and _raw_flag(spec, "bf16", "bf16_optimizer_states")
    return Settings(
        stage=stage,
        optimizer_at=optimizer_at,
        parameters_at=parameters.device if parameters and stage == 3 else "none",
        mixed=mixed,
        param_bytes=width,
        grad_bytes=_dtype_bytes(_raw(spec, "data_types", "grad_accum_dtype"), width),
        comm_bytes=_dtype_bytes(spec.deepspeed.get("communication_data_type"), width),
        master_bytes=2 if lean else 4,
        state_bytes=2 if lean_states else 4,
        num_states=(1 if spec.optimizer.momentum else 0) if spec.optimizer.type == "sgd" else 2,
        micro_batch=batch.per_device,
        accumulation=batch.accumulation or 1,
        sequence=spec.data.max_length,
        checkpointing=spec.train.gradient_checkpointing,
        attention=spec.model.attn_implementation or "sdpa",
        data=data,
        tensor=run.degrees.tensor,
        pipeline=run.degrees.pipeline,
        sequence_parallel=run.degrees.sequence,
        ranks_per_host=_ranks_per_host(run),
        decay_groups=spec.optimizer.weight_decay > 0,
        overlap=zero.flag("overlap_comm", stage == 3),
        contiguous_gradients=zero.flag("contiguous_gradients", True),
        pin_memory=optimizer.pin_memory if optimizer else True,
        reduce_bucket=zero.count("reduce_bucket_size", 500_000_000),
        sub_group=zero.count("sub_group_size", 1_000_000_000),
        prefetch=zero.count("stage3_prefetch_bucket_size", 50_000_000),
        persistence=zero.count("stage3_param_persistence_threshold", 100_000),
        max_live=zero.count("stage3_max_live_parameters", 1_000_000_000),
        reuse=zero.count("stage3_max_reuse_distance", 1_000_000_000),
        optimizer_buffers=optimizer.buffer_count if optimizer else 4,
        parameter_buffers=parameters.buffer_count if parameters else 5,
        parameter_buffer_size=parameters.buffer_size if parameters else 100_000_000,
        max_in_cpu=parameters.max_in_cpu if parameters else 1_000_000_000,
    )


def _raw(spec: RunSpec, block: str, key: str) -> Any:
    section = spec.deepspeed.get(block)
    return section.get(key) if isinstance(section, Mapping) else None


def _raw_flag(spec: RunSpec, block: str, key: str) -> bool:
    return _raw(spec, block, key) is True


def _dtype_bytes(name: Any, default: int) -> int:
    return {"fp32": 4, "float32": 4, "fp16": 2, "bf16": 2, "float16": 2, "bfloat16": 2}.get(str(name).lower(), default)


def _ranks_per_host(run: Run) -> int:
    world = run.degrees.world or 1
    if run.cluster is not None:
        return min(max(host.slots for host in run.cluster.hosts), world)
    return min(run.spec.cluster.gpus_per_node or -(-world // (run.spec.cluster.num_nodes or 1)), world)
