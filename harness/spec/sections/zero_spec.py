# SPDX-License-Identifier: Apache-2.0
"""`zero`: sharding and offload, with DeepSpeed's names. `parallel`: ranks that share a layer, stages or a sequence."""

from typing import Annotated, Literal

from pydantic import Field

from harness.facts.pipeline_support import PARTITION_METHOD_PATTERN
from harness.spec.sections.section import Count, Fraction, Positive, Section, WholeNumber


class OffloadOptimizerSpec(Section):
    """Device of optimizer states, master weights and the optimizer step."""

    device: Literal["none", "cpu", "nvme"]
    """`nvme` needs stage 3."""
    nvme_path: str | None = None
    """A folder on a local disk, for `nvme`."""
    pin_memory: bool = True
    """Pinned host buffers: faster copies, but memory that cannot be swapped."""
    buffer_count: Positive = 4
    """NVMe swap buffers."""
    ratio: Fraction = 1.0
    """Stage 3: share of the parameters whose optimizer step runs on the CPU."""
    overlap_step_gib: Annotated[float, Field(ge=0)] = 0.0
    """Stage 3, `cpu`, Adam or AdamW: step sub-groups while the backward pass still runs, beside their old values, in so
    many GiB of host memory a rank. 0: after it.
    """
    pipeline_read: bool = False
    """NVMe: read the next sub-group while this one is computed."""
    pipeline_write: bool = False
    """NVMe: write the last sub-group while this one is computed."""
    fast_init: bool = False
    """NVMe: faster first write."""


class OffloadParamSpec(Section):
    """Device of ZeRO-3's parameter shards between uses."""

    device: Literal["none", "cpu", "nvme"]
    """Read by DeepSpeed at stage 3 only."""
    nvme_path: str | None = None
    """A folder on a local disk, for `nvme`."""
    pin_memory: bool = True
    """Pinned host buffers."""
    buffer_count: Positive = 5
    """NVMe swap buffers; each live or prefetched parameter holds one."""
    buffer_size: Positive = 100_000_000
    """Elements per swap buffer; must hold the largest parameter's shard."""
    max_in_cpu: Count = 1_000_000_000
    """Elements kept in host memory when parameters are on NVMe."""


class ZeroSpec(Section):
    """ZeRO, with DeepSpeed's names. Without this section: plain data parallelism (stage 0)."""

    stage: Annotated[WholeNumber, Field(ge=0, le=3)]
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
    """Elements reduced at once: the bucket takes 2 bytes each on a GPU, and its copy as much."""
    allgather_bucket_size: Count | None = None
    """Elements gathered at once at stages 1 and 2; stage 3 does not read it."""
    overlap_comm: bool | None = None
    """Reduce gradients during the backward pass."""
    round_robin_gradients: bool | None = None
    """Stages 1 and 2: spread gradient copies over the ranks. Never change it between save and resume."""
    sub_group_size: Count | None = None
    """Stage 3: elements the optimizer steps at once."""
    stage3_prefetch_bucket_size: Count | None = None
    """Stage 3: a gather has the parameters of one module, and of the next ones up to so many elements with them."""
    stage3_param_persistence_threshold: Count | None = None
    """Stage 3: each parameter of at most so many elements stays gathered on every GPU; they are not added up."""
    stage3_max_live_parameters: Count | None = None
    """Stage 3: gathered elements beyond which nothing is prefetched."""
    stage3_max_reuse_distance: Count | None = None
    """Stage 3: a parameter that is used again within N elements stays gathered."""
    stage3_gather_16bit_weights_on_model_save: bool | None = None
    """Stage 3: let `save_16bit_model` write consolidated weights. `harness export` does not need it."""
    pin_memory_backend: Literal["torch", "native"] = "torch"
    """Allocator of pinned host memory. torch's rounds each block up to a power of two; `native` locks the exact bytes,
    and needs DeepSpeed 0.19.6 and no limit on locked memory."""

    @property
    def overlap_step_gib(self) -> float:
        """That of `offload_optimizer`."""
        return self.offload_optimizer.overlap_step_gib if self.offload_optimizer else 0.0


class ParallelSpec(Section):
    """Degrees of parallelism; the data-parallel degree follows from the world size."""

    tensor_parallel_size: Positive = 1
    """Ranks that share each layer: DeepSpeed's AutoTP, or inside pipeline stages the harness's own layers."""
    pipeline_parallel_size: Positive = 1
    """DeepSpeed PipelineModule: stages."""
    pipeline_partition_method: Annotated[str, Field(pattern=PARTITION_METHOD_PATTERN)] = "parameters"
    """DeepSpeed's partition method of layers over stages: balanced by `parameters`, by their number (`uniform`), or by
    the number of layers whose class matches a pattern (`type:DecoderLayer`).
    """
    sequence_parallel_size: Positive = 1
    """Ulysses: ranks that share each sequence."""
