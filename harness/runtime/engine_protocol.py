# SPDX-License-Identifier: Apache-2.0
"""The members of DeepSpeed's engines and ZeRO optimizers that the harness uses, as types: DeepSpeed has no types.

`tests/training/runtime/test_engine_protocol.py` compares them with real engines, so that a release without one of them
is noticed. Private names of DeepSpeed are not here: patches, and functions that take an optimizer as `Any`, use those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.nn import Parameter


class ModelOutput(Protocol):
    """The output of a causal language model that was called with labels, as `transformers` has it."""

    loss: torch.Tensor
    logits: torch.Tensor


class EngineOptimizer(Protocol):
    """The engine's optimizer: torch's own at stage 0 in fp32, else one of DeepSpeed's wrappers around it."""

    param_groups: list[dict[str, Any]]


class LossScaledOptimizer(EngineOptimizer, Protocol):
    """The wrapper of any stage in fp16."""

    loss_scale: float
    """The factor of the loss in the current step."""


class BF16Optimizer(EngineOptimizer, Protocol):
    """DeepSpeed's `BF16_Optimizer`, of bf16 pipelines. Lists have one entry for each parameter group."""

    optimizer: torch.optim.Optimizer
    bf16_groups_flat: list[torch.Tensor]
    """The weights of the model, whole."""
    fp32_groups_flat_partition: list[torch.Tensor]
    """This rank's partition of the master weights."""
    fp32_groups_gradients_flat: list[torch.Tensor]


class ZeroStage12Optimizer(EngineOptimizer, Protocol):
    """ZeRO stages 1 and 2. Lists have one entry for each parameter group; tensors are flat."""

    optimizer: torch.optim.Optimizer
    cpu_offload: bool
    bit16_groups_flat: list[torch.Tensor]
    """The weights of the model, whole."""
    single_partition_of_fp32_groups: list[torch.Tensor]
    """This rank's partition of the master weights."""

    def update_lp_params(self) -> None:
        """Copy the master weights to the weights of the model. A collective."""


class ZeroStage3Optimizer(EngineOptimizer, Protocol):
    """ZeRO stage 3. Lists have one entry for each sub-group; tensors are flat."""

    optimizer: torch.optim.Optimizer
    offload_optimizer: bool
    offload_param: bool
    swap_optimizer: bool
    """Are the states of the optimizer on NVMe? Then there is an `optimizer_swapper`, too."""
    fp16_groups: list[list[Parameter]]
    fp16_partitioned_groups_flat: list[torch.Tensor | None]
    """This rank's partition of the weights; None where it is on NVMe."""
    fp32_partitioned_groups_flat: list[torch.Tensor]
    """This rank's partition of the master weights."""
    grad_partitions_flat_buffer: torch.Tensor
    sub_group_to_group_id: dict[int, int]
    """Number of a sub-group -> number of its parameter group."""
    persistent_parameters: list[Parameter]
    """Parameters that are too small to be partitioned between steps."""

    def load_hp_checkpoint_state(self, folder: str, key: str, param: Parameter) -> torch.Tensor:
        """This rank's slice of a parameter's state `key`, from a folder of the universal layout."""

    def checkpoint_event_prologue(self) -> None:
        """Partition all parameters, before a checkpoint is loaded."""

    def checkpoint_event_epilogue(self) -> None:
        """Gather the persistent parameters again, after a checkpoint was loaded. A collective."""


class EngineScheduler(Protocol):
    """The scheduler of the engine: torch's, or one of DeepSpeed's where the JSON has a `scheduler` block."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue a saved schedule."""


class Engine(Protocol):
    """`deepspeed.DeepSpeedEngine`."""

    module: torch.nn.Module
    optimizer: EngineOptimizer
    basic_optimizer: torch.optim.Optimizer
    """The optimizer that computes, below the wrapper."""
    lr_scheduler: EngineScheduler | None
    device: torch.device
    global_steps: int
    """Optimizer steps, with skipped ones."""
    global_samples: int
    micro_steps: int
    skipped_steps: int
    dp_world_size: int
    seq_dp_world_size: int
    """Data-parallel times sequence-parallel ranks."""
    communication_data_type: torch.dtype
    is_compiled: bool

    def __call__(self, *args: Any, **kwargs: Any) -> ModelOutput:
        """The forward of the model."""

    def backward(self, loss: torch.Tensor) -> object:
        """Backward of one micro-batch. `loss` is divided by the accumulation steps here."""

    def step(self) -> None:
        """An optimizer step, if this was the last micro-batch of one. A collective."""

    def train(self) -> object:
        """Put the model into training mode."""

    def eval(self) -> object:
        """Put the model into evaluation mode."""

    def compile(self, *, backend: str = ...) -> None:
        """Compile the model at its first forward, with DeepSpeed's choice of a backend if none is given."""

    def save_checkpoint(self, save_dir: str, tag: str, *, save_latest: bool) -> object:
        """Write this rank's shards. A collective."""

    def load_checkpoint(self, load_dir: str, tag: str) -> tuple[str | None, dict[str, Any] | None]:
        """Read this rank's shards: (the path, None when nothing was loaded; the client's state). A collective."""

    def get_lr(self) -> list[float]:
        """The learning rate of each parameter group."""

    def get_global_grad_norm(self) -> torch.Tensor | float | None:
        """The norm of the last step's gradients before clipping; None where it was not computed."""

    def zero_optimization_stage(self) -> int:
        """0 to 3."""

    def zero_offload_optimizer(self) -> Any:
        """The `offload_optimizer` block of the JSON, with defaults; None without one."""

    def zero_sub_group_size(self) -> int:
        """Elements of a sub-group, which stage 3 steps at once."""

    def zero_round_robin_gradients(self) -> bool:
        """Does stage 1 or 2 spread the gradients of each micro-batch over the ranks in turn?"""

    def train_batch_size(self) -> int:
        """Rows of an optimizer step, over all ranks."""

    def train_micro_batch_size_per_gpu(self) -> int:
        """Rows of a micro-batch on one rank."""

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of an optimizer step."""

    def gradient_clipping(self) -> float:
        """The largest norm of gradients; 0 for no limit."""

    def fp16_enabled(self) -> bool:
        """Is the model in fp16, with a scaled loss?"""

    def torch_autocast_enabled(self) -> bool:
        """Has the JSON a `torch_autocast` block that is on?"""

    def torch_autocast_dtype(self) -> torch.dtype | None:
        """The number format of autocast."""

    def is_deepcompile_enabled(self) -> bool:
        """Has the JSON `compile.deepcompile`?"""

    def autotp_size(self) -> int:
        """Tensor-parallel ranks of AutoTP; 0 or 1 without it."""

    def get_sequence_parallel_group(self) -> torch.distributed.ProcessGroup | None:
        """The ranks that share a row under sequence parallelism."""


class PipelineEngine(Engine, Protocol):
    """`deepspeed.runtime.pipe.engine.PipelineEngine`: it has no forward, backward and step of its own."""

    num_stages: int
    dynamic_shape: bool
    """May the micro-batches of one step differ in shape?"""

    def train_batch(self, data_iter: Iterator[object]) -> object:
        """An optimizer step on all micro-batches of an iterator. A collective."""

    def eval_batch(self, data_iter: Iterator[object], *, bcast_loss: bool, num_micro_batches: int) -> object:
        """A forward through all stages, without gradients. A collective."""

    def is_last_stage(self) -> bool:
        """Does this rank compute the loss?"""

    def reset_activation_shape(self) -> None:
        """Allocate the buffers between stages again, for micro-batches of another shape."""
