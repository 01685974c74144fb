"""What spec and launch make a run expect of its engine. The DeepSpeed JSON is never read: it is what may be wrong.

The section `deepspeed` of a spec lies over what is rendered, so it lies over it here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.plan.run import Degrees, Run
from harness.runtime.models.configuration import is_new
from harness.runtime.topology import Topology
from harness.spec.optimizers import deepspeed_optimizer
from harness.spec.sections.training import SchedulerSpec

_FORMATS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One run's wishes, each as it was written; None where the spec leaves it open."""

    stage: Any
    offload_optimizer: str
    offload_param: str
    ratio: float
    nvme: tuple[str, ...]
    dtype: str
    """Of weights in forward and backward, as torch calls it."""
    master: str
    accumulation_dtype: str | None
    communication_dtype: str | None
    autocast: str | None
    """The dtype of `torch_autocast`, `any` where it is on without one, None where it is off."""
    clipping: Any
    micro: Any
    accumulation: Any
    total: Any
    optimizer: str
    """Lower case."""
    params: Mapping[str, Any]
    scheduler: SchedulerSpec | None
    """None: the section `deepspeed` brings DeepSpeed's own."""
    ds_scheduler: Mapping[str, Any] | None
    degrees: Degrees
    hpz: int
    experts: int
    compiled: bool
    fresh: bool
    """New weights, made by `transformers` alone."""
    seed: int
    accelerated: bool | None
    """Whether the launch counted on accelerators; None where it did not say."""

    def place(self, rank: int) -> Topology:
        """Where a rank is."""
        return Topology.of(self.degrees, self.degrees.world or 1, rank)


def asked_of(run: Run, world: int, accelerated: bool | None) -> Asked:
    """What this run asks for, on so many ranks, and whether its launch counted on accelerators."""
    spec, over = run.spec, run.spec.deepspeed

    def given(path: str, default: Any) -> Any:
        value: Any = over
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    zero, degrees = spec.zero, Degrees(world, run.degrees.tensor, run.degrees.pipeline, run.degrees.sequence)
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
    return Asked(
        stage=given("zero_optimization.stage", zero.stage),
        offload_optimizer=str(offloads["optimizer"].get("device") or "none"),
        offload_param=str(offloads["param"].get("device") or "none"),
        ratio=float(offloads["optimizer"].get("ratio") or 1.0),
        nvme=tuple(str(o["nvme_path"]) for o in offloads.values() if o.get("device") == "nvme" and o.get("nvme_path")),
        dtype=_FORMATS[half],
        master=_FORMATS[half] if low else "float32",
        accumulation_dtype=_format(given("data_types.grad_accum_dtype", None)),
        communication_dtype=_format(given("communication_data_type", None)),
        autocast=(_format(given("torch_autocast.dtype", None)) or "any") if autocast is True else None,
        clipping=given("gradient_clipping", spec.train.max_grad_norm),
        micro=given("train_micro_batch_size_per_gpu", run.batch.per_device),
        accumulation=given("gradient_accumulation_steps", run.batch.accumulation),
        total=run.batch.global_batch,
        optimizer=str(name).lower(),
        params=params,
        scheduler=None if scheduler else spec.scheduler,
        ds_scheduler=scheduler or None,
        degrees=degrees,
        hpz=given("zero_optimization.zero_hpz_partition_size", 1),
        experts=int(experts.get("autoep_size", experts.get("ep_size", 1))) if isinstance(experts, Mapping) else 1,
        compiled=spec.train.torch_compile or given("compile.deepcompile", False) is True,
        fresh=is_new(spec.model) and spec.plugins.file is None,
        seed=spec.train.seed,
        accelerated=accelerated,
    )


def _format(text: Any) -> str | None:
    """The name in torch."""
    return None if text is None else _FORMATS.get(str(text).lower(), str(text))
