# SPDX-License-Identifier: Apache-2.0
"""Bytes that one optimizer step moves: collectives, PCIe, disks, host memory. As DeepSpeed issues them; no time.

Counted by hooks on torch.distributed under DeepSpeed, or read from its code. N: ranks that ZeRO divides over.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.plan.memory.zero_partitions import tensor_parallel_shard
from harness.plan.settings.checkpointed_layers import recompute_shares
from harness.plan.settings.plan_settings import PlanSettings

_TORCH_ADAM_TENSORS = 20
"""Tensors that torch's AdamW reads and writes on a CPU, operation by operation: torch 2.13, `_single_tensor_adam`."""


@dataclass(frozen=True, slots=True)
class NvmeBytes:
    """Bytes of one host's disks a step: what the optimizer reads and writes, gradients, and parameters."""

    optimizer_read: float = 0.0
    optimizer_write: float = 0.0
    gradients_write: float = 0.0
    parameters_read: float = 0.0
    parameters_write: float = 0.0


def all_gather_bytes(size: float, settings: PlanSettings, model: ModelFacts | None = None) -> float:
    """Payload of parameter all-gathers of data parallelism, bytes a step.

    Stages 1, 2: once. Stage 3: forward and backward of every micro-batch, less the parameters that stay gathered from
    forward to backward (`stage3_max_reuse_distance` / 2 and the prefetch bucket); once more where checkpointing
    recomputes layers above half the reuse distance, and for layers of a segment that runs again.
    `zero_quantized_weights` halves it.
    """
    if settings.stage == 0:
        return 0.0
    if settings.stage < 3:
        return settings.param_bytes * size
    share_kept = min(size, settings.max_reuse_distance // 2 + settings.prefetch_bucket_size) / size
    recompute_gathers = 0.0
    if model is not None:
        again = recompute_shares(settings, model.num_layers).layers
        is_gathered = 2 * model.largest_layer_parameters > settings.max_reuse_distance
        recompute_gathers = again if is_gathered else max(0, again - 1)
    payload = settings.accumulation * (2 - share_kept + recompute_gathers) * settings.param_bytes * size
    return payload / 2 if settings.quantized_weights else payload


def gradient_reduction_bytes(size: float, settings: PlanSettings) -> float:
    """Payload of gradient reductions in ring units (a reduce-scatter or a reduce is 1, an all-reduce 2), bytes a step.

    Stages 1 and 2 all-reduce by default (`use_multi_rank_bucket_allreduce`), stage 2 in every micro-step; stage 3
    reduce-scatters. `zero_quantized_gradients` sends a quarter.
    """
    accumulation, ring = settings.accumulation, 2.0 if settings.multi_rank_bucket_allreduce else 1.0
    units = {0: 2.0, 1: ring, 2: ring * accumulation, 3: float(accumulation)}[settings.stage]
    return units * settings.comm_bytes * size * (0.25 if settings.quantized_gradients else 1.0)


def tensor_parallel_bytes(model: ModelFacts, settings: PlanSettings) -> float:
    """Wire bytes a rank: the all-reduces of what AutoTP divides of this family (a Llama layer has 2 forward and 5
    backward), half of the forward ones again where layers are recomputed, since torch stops before the last; and the
    logits. In a pipeline the all-reduces of the harness's own layers, without logits.
    """
    ranks = settings.tensor_parallel_size
    if ranks == 1:
        return 0.0
    stages = settings.pipeline_parallel_size
    tokens = settings.tokens_per_micro_batch * settings.accumulation * settings.param_bytes
    shard = tensor_parallel_shard(model, settings)
    if stages > 1:  # two all-reduces a layer forward and two backward; the embedding's, and of the head's input
        width = (4 + 2 * recompute_shares(settings, model.num_layers).layers) * model.num_layers / stages + 1
        return 2 * width * model.hidden * tokens * (ranks - 1) / ranks
    if not shard.is_known or shard.refusal:
        width = 7.0 * model.num_layers * model.hidden
        return (2 * width + model.vocab) * tokens * (ranks - 1) / ranks
    forward, backward = shard.reduced_width
    again = recompute_shares(settings, model.num_layers).layers
    width = forward * (1 + min(again, 1) / 2 + max(0, again - 1)) + backward
    logits = model.vocab if shard.head == "gathered" and not settings.loss_chunk_size else 0
    return (2 * width + logits) * tokens * (ranks - 1) / ranks


def sequence_parallel_bytes(model: ModelFacts, settings: PlanSettings) -> float:
    """Wire bytes a rank: Ulysses exchanges queries, keys, values and outputs in each pass, recomputation too."""
    ranks = settings.sequence_parallel_size
    if ranks == 1:
        return 0.0
    width = 2 * (model.heads + model.kv_heads) * model.head_dim
    tokens = settings.tokens_per_micro_batch * settings.accumulation * settings.param_bytes
    passes = 2 + recompute_shares(settings, model.num_layers).attention
    return passes * model.num_layers * tokens * width * (ranks - 1) / ranks


def pipeline_bytes(model: ModelFacts, settings: PlanSettings) -> float:
    """Bytes that a middle stage sends: hidden states forward, their gradients backward, each micro-batch."""
    if settings.pipeline_parallel_size == 1:
        return 0.0
    return 2 * settings.tokens_per_micro_batch * model.hidden * settings.param_bytes * settings.accumulation


def device_to_host_bytes(partition: float, settings: PlanSettings) -> tuple[float, float]:
    """Bytes a rank sends down to the host of what it steps: during the backward passes, and at the boundary."""
    if settings.optimizer_device == "none":
        return 0.0, 0.0
    param_bytes, accumulation = settings.param_bytes, settings.accumulation
    during = (
        param_bytes * accumulation if settings.stage == 3 else param_bytes * accumulation if accumulation > 1 else 0
    )
    return during * partition, 4.0 * partition if settings.stage < 3 or settings.separate_offload_grads else 0.0


def host_to_device_bytes(partition: float, settings: PlanSettings, held: float | None = None) -> tuple[float, float]:
    """Bytes a rank fetches from the host of what it steps: during the passes, and after the step. `held`: bytes of its
    parameters there, where they are not all stepped in 16 bits.
    """
    param_bytes, accumulation = settings.param_bytes, settings.accumulation
    during = after = 0.0
    if settings.optimizer_device != "none":
        during += (param_bytes * accumulation if settings.stage == 3 else param_bytes * (accumulation - 1)) * partition
        after += param_bytes * partition
    if settings.param_device != "none":
        during, after = during + 2 * accumulation * (held or param_bytes * partition), 0.0
    return during, after


def cpu_optimizer_bytes(host_parameters: float, settings: PlanSettings) -> float:
    """Host memory traffic of the optimizer step for one host's parameters, with the cast of gradients in the step.
    Adam reads and writes master and states. In one pass only the gradient, as it is, and the 16-bit weights come to
    that; in DeepSpeed's order the gradient is scaled in place before, and the master is read again to be cast. What a
    cast of torch's writes is read before, as any line that the cache does not hold; our op streams it.
    """
    if settings.optimizer_device == "none":
        return 0.0
    master = settings.master_bytes
    fused = 2 * (master + settings.num_states * settings.state_bytes) + master
    adam = _TORCH_ADAM_TENSORS * master if settings.step_temporaries[1] else fused
    if settings.steps_in_one_pass:
        scaled = master if settings.stage < 3 or settings.separate_offload_grads else 0  # in place
        gradient = 2 * scaled or settings.grad_bytes
        return (adam - master + gradient + settings.param_bytes) * host_parameters * settings.offload_ratio
    casts_in_step = (
        settings.stage == 3
        and not settings.separate_offload_grads
        and (settings.optimizer_device == "nvme" or settings.grad_bytes != settings.master_bytes)
    )
    cast = settings.grad_bytes + 2 * master if casts_in_step else 0
    return (adam + 3 * master + 2 * settings.param_bytes + cast) * host_parameters * settings.offload_ratio


def nvme_bytes(host_parameters: float, settings: PlanSettings, held: float | None = None) -> NvmeBytes:
    """Bytes of one host a step: the optimizer reads and writes 12 a parameter (swap_tensor), 4 more of each where
    gradients go to the disk. Parameters, `held` of them if not all are stepped, are read for each gather; what is
    stepped is written once.
    """
    optimizer = settings.optimizer_device == "nvme"
    gradients = settings.master_bytes * host_parameters if optimizer and settings.separate_offload_grads else 0.0
    parameters = settings.param_device == "nvme"
    width = settings.master_bytes + settings.state_bytes * settings.num_states
    return NvmeBytes(
        optimizer_read=width * host_parameters + gradients if optimizer else 0.0,
        optimizer_write=width * host_parameters if optimizer else 0.0,
        gradients_write=gradients,
        parameters_read=2 * settings.param_bytes * settings.accumulation * (held or host_parameters) * parameters,
        parameters_write=settings.param_bytes * host_parameters if parameters else 0.0,
    )
