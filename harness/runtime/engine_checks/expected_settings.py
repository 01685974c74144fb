# SPDX-License-Identifier: Apache-2.0
"""The settings that an engine should have, from a run spec or from a DeepSpeed JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.runtime.topology import Topology

if TYPE_CHECKING:
    from harness.run.resolved_run import ParallelDims
    from harness.spec.sections.training_spec import SchedulerSpec

TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "bfloat16": "bfloat16", "float16": "float16"}
"""DeepSpeed's names of number formats -> torch's."""


@dataclass(frozen=True, slots=True)
class ExpectedSettings:
    """The expected settings of one run, each as the spec writes it; None where the spec leaves it open."""

    zero_stage: Any
    offload_optimizer: str
    offload_param: str
    offload_ratio: float
    nvme_paths: tuple[str, ...]
    dtype: str
    """The dtype of weights in forward and backward, by its name in torch."""
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
    """The name in lower case."""
    optimizer_params: Mapping[str, Any]
    scheduler: SchedulerSpec | None
    """None where the section `deepspeed` has a scheduler of DeepSpeed's own."""
    ds_scheduler: Mapping[str, Any] | None
    parallel_dims: ParallelDims
    hpz_partition_size: int
    expert_parallel_size: int
    compile_enabled: bool
    is_random_init: bool
    """The weights are new, and `transformers` alone initialises them."""
    seed: int
    uses_accelerators: bool | None
    """Did the launch expect accelerators? None where it did not say."""

    def dims_of_rank(self, rank: int) -> Topology:
        """The place of a rank."""
        return Topology.from_dims(self.parallel_dims, self.parallel_dims.world_size or 1, rank)


def torch_dtype_name(text: Any) -> str | None:
    """The name in torch."""
    return None if text is None else TORCH_DTYPES.get(str(text).lower(), str(text))
