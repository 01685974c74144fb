"""What spec and launch make a run expect of its engine. The DeepSpeed JSON is never read: it is what may be wrong.

The section `deepspeed` of a spec lies over what is rendered, so it lies over it here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.plan.resolved_run import ParallelDims, ResolvedRun
from harness.runtime.models.model_config import is_random_init
from harness.runtime.topology import Topology
from harness.spec.deepspeed_optimizer import deepspeed_optimizer
from harness.spec.sections.training_spec import SchedulerSpec

_TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True, slots=True)
class ExpectedSettings:
    """One run's wishes, each as it was written; None where the spec leaves it open."""

    zero_stage: Any
    offload_optimizer: str
    offload_param: str
    offload_ratio: float
    nvme_paths: tuple[str, ...]
    dtype: str
    """Of weights in forward and backward, as torch calls it."""
    master_dtype: str
    accumulation_dtype: str | None
    communication_dtype: str | None
    autocast_dtype: str | None
    """The dtype of `torch_autocast`, `any` where it is on without one, None where it is off."""
    gradient_clipping: Any
    micro_batch_size: Any
    gradient_accumulation_steps: Any
    global_batch_size: Any
    optimizer: str
    """Lower case."""
    optimizer_params: Mapping[str, Any]
    scheduler: SchedulerSpec | None
    """None: the section `deepspeed` brings DeepSpeed's own."""
    ds_scheduler: Mapping[str, Any] | None
    parallel_dims: ParallelDims
    hpz_partition_size: int
    expert_parallel_size: int
    compile_enabled: bool
    is_random_init: bool
    """New weights, made by `transformers` alone."""
    seed: int
    uses_accelerators: bool | None
    """Whether the launch counted on accelerators; None where it did not say."""

    def dims_of_rank(self, rank: int) -> Topology:
        """Where a rank is."""
        return Topology.from_dims(self.parallel_dims, self.parallel_dims.world_size or 1, rank)


def expected_settings_of(run: ResolvedRun, world: int, accelerated: bool | None) -> ExpectedSettings:
    """What this run asks for, on so many ranks, and whether its launch counted on accelerators."""
    spec, over = run.spec, run.spec.deepspeed

    def given(path: str, default: Any) -> Any:
        value: Any = over
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    zero, degrees = (
        spec.zero,
        ParallelDims(world, run.parallel_dims.tensor, run.parallel_dims.pipeline, run.parallel_dims.sequence),
    )
    name, params = deepspeed_optimizer(spec.optimizer)
    if isinstance(over.get("optimizer"), Mapping):  # instead of the spec's own, not laid over it
        name, params = over["optimizer"].get("type", ""), dict(over["optimizer"].get("params") or {})
    offloads = {}
    for what, section in (("optimizer", zero.offload_optimizer), ("param", zero.offload_param)):
        own = {} if section is None else section.model_dump()
        offloads[what] = own | dict(given(f"zero_optimization.offload_{what}", {}) or {})
    half = next((f for f, on in (("bf16", spec.precision.bf16), ("fp16", spec.precision.fp16)) if on), "fp32")
    for key in ("bf16", "fp16"):
        half = key if given(f"{key}.enabled", False) is True else half
    low = given(f"{half}.{half}_master_weights_and_grads", False)
    autocast = given("torch_autocast.enabled", False)
    scheduler = given("scheduler", None)
    experts = given("expert_parallel", None)
    return ExpectedSettings(
        zero_stage=given("zero_optimization.stage", zero.stage),
        offload_optimizer=str(offloads["optimizer"].get("device") or "none"),
        offload_param=str(offloads["param"].get("device") or "none"),
        offload_ratio=float(offloads["optimizer"].get("ratio") or 1.0),
        nvme_paths=tuple(
            str(o["nvme_path"]) for o in offloads.values() if o.get("device") == "nvme" and o.get("nvme_path")
        ),
        dtype=_TORCH_DTYPES[half],
        master_dtype=_TORCH_DTYPES[half] if low else "float32",
        accumulation_dtype=_torch_dtype_name(given("data_types.grad_accum_dtype", None)),
        communication_dtype=_torch_dtype_name(given("communication_data_type", None)),
        autocast_dtype=(_torch_dtype_name(given("torch_autocast.dtype", None)) or "any") if autocast is True else None,
        gradient_clipping=given("gradient_clipping", spec.train.max_grad_norm),
        micro_batch_size=given("train_micro_batch_size_per_gpu", run.batch.micro_batch),
        gradient_accumulation_steps=given("gradient_accumulation_steps", run.batch.accumulation),
        global_batch_size=run.batch.global_batch,
        optimizer=str(name).lower(),
        optimizer_params=params,
        scheduler=None if scheduler else spec.scheduler,
        ds_scheduler=scheduler or None,
        parallel_dims=degrees,
        hpz_partition_size=given("zero_optimization.zero_hpz_partition_size", 1),
        expert_parallel_size=int(experts.get("autoep_size", experts.get("ep_size", 1)))
        if isinstance(experts, Mapping)
        else 1,
        compile_enabled=spec.train.torch_compile or given("compile.deepcompile", False) is True,
        is_random_init=is_random_init(spec.model) and spec.plugins.file is None,
        seed=spec.train.seed,
        uses_accelerators=accelerated,
    )


def _torch_dtype_name(text: Any) -> str | None:
    """The name in torch."""
    return None if text is None else _TORCH_DTYPES.get(str(text).lower(), str(text))
