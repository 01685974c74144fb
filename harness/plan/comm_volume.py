"""Bytes that move in one optimizer step: collectives, PCIe, disks, host memory. As DeepSpeed issues them; no time.

Counted by hooking torch.distributed under DeepSpeed, or read; N: ranks that ZeRO divides over, g: accumulation steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.plan.plan_settings import PlanSettings
from harness.plan.rates import CPU_STEP_BYTES


@dataclass(frozen=True, slots=True)
class NvmeBytes:
    """Bytes of one host's disks a step: what the optimizer reads and writes, gradients, and parameters."""

    optimizer_read: float = 0.0
    optimizer_write: float = 0.0
    gradients_write: float = 0.0
    parameters_read: float = 0.0
    parameters_write: float = 0.0


def all_gather_bytes(size: float, s: PlanSettings, per_layer: float = 0.0) -> float:
    """Payload of parameter all-gathers of data parallelism, bytes a step.

    Stages 1, 2: once. Stage 3: forward and backward of every micro-batch, less what stays gathered over the turn
    (`stage3_max_reuse_distance` / 2 and the prefetch bucket); once more where checkpointing recomputes layers above
    half the reuse distance. `zero_quantized_weights` halves it.
    """
    if s.stage == 0:
        return 0.0
    if s.stage < 3:
        return s.param_bytes * size
    kept = min(size, s.max_reuse_distance // 2 + s.prefetch_bucket_size) / size
    again = 1.0 if s.checkpointing and 2 * per_layer > s.max_reuse_distance else 0.0
    payload = s.accumulation * (2 - kept + again) * s.param_bytes * size
    return payload / 2 if s.quantized_weights else payload


def gradient_reduction_bytes(size: float, s: PlanSettings) -> float:
    """Payload of gradient reductions in ring units (a reduce-scatter or a reduce is 1, an all-reduce 2), bytes a step.

    Stages 1 and 2 all-reduce by default (`use_multi_rank_bucket_allreduce`), stage 2 in every micro-step; stage 3
    reduce-scatters. `zero_quantized_gradients` sends a quarter.
    """
    g, ring = s.accumulation, 2.0 if s.multi_rank_bucket_allreduce else 1.0
    units = {0: 2.0, 1: ring, 2: ring * g, 3: float(g)}[s.stage]
    return units * s.comm_bytes * size * (0.25 if s.quantized_gradients else 1.0)


def tensor_parallel_bytes(m: ModelFacts, s: PlanSettings) -> float:
    """Wire bytes a rank: AutoTP all-reduces the hidden states 7 times a layer (2 forward, 5 backward) and gathers the
    logits once.
    """
    t = s.tensor_parallel_size
    if t == 1:
        return 0.0
    tokens = s.tokens_per_micro_batch * s.accumulation * s.param_bytes
    hidden = 2 * 7 * m.num_layers / s.pipeline_parallel_size * tokens * m.hidden
    return (hidden + tokens * m.vocab) * (t - 1) / t


def sequence_parallel_bytes(m: ModelFacts, s: PlanSettings) -> float:
    """Wire bytes a rank: Ulysses exchanges queries and outputs, keys and values, forward and backward."""
    u = s.sequence_parallel_size
    if u == 1:
        return 0.0
    width = 2 * (m.heads + m.kv_heads) * m.head_dim
    tokens = s.tokens_per_micro_batch * s.accumulation * s.param_bytes
    return 2 * m.num_layers * tokens * width * (u - 1) / u


def pipeline_bytes(m: ModelFacts, s: PlanSettings) -> float:
    """Bytes that a middle stage sends: hidden states forward, their gradients backward, each micro-batch."""
    if s.pipeline_parallel_size == 1:
        return 0.0
    return 2 * s.tokens_per_micro_batch * m.hidden * s.param_bytes * s.accumulation


def device_to_host_bytes(part: float, s: PlanSettings) -> tuple[float, float]:
    """Bytes a rank sends down to the host: during the backward passes, and at the boundary."""
    if s.optimizer_device == "none":
        return 0.0, 0.0
    e, g = s.param_bytes, s.accumulation
    during = e * g if s.stage == 3 else e * g if g > 1 else 0
    return during * part, 4.0 * part if s.stage < 3 or s.separate_offload_grads else 0.0


def host_to_device_bytes(part: float, s: PlanSettings) -> tuple[float, float]:
    """Bytes a rank fetches from the host: during the passes, and after the step."""
    e, g = s.param_bytes, s.accumulation
    during = after = 0.0
    if s.optimizer_device != "none":
        during += (e * g if s.stage == 3 else e * (g - 1)) * part
        after += e * part
    if s.param_device != "none":
        during, after = during + 2 * e * g * part, 0.0
    return during, after


def cpu_optimizer_bytes(node: float, s: PlanSettings) -> float:
    """Host memory traffic of the optimizer step for `node` parameters on one host; with gradients cast in it."""
    once = (
        s.stage == 3
        and not s.separate_offload_grads
        and (s.optimizer_device == "nvme" or s.grad_bytes != s.master_bytes)
    )
    cast = s.grad_bytes + s.master_bytes if once else 0
    return 0.0 if s.optimizer_device == "none" else (CPU_STEP_BYTES + cast) * node * s.offload_ratio


def nvme_bytes(node: float, s: PlanSettings) -> NvmeBytes:
    """Bytes of one host for `node` parameters: 12 read and 12 written a parameter by the optimizer (swap_tensor), 4
    more of both where gradients go to the disk; parameters read for each gather and written once.
    """
    optimizer = s.optimizer_device == "nvme"
    gradients = s.master_bytes * node if optimizer and s.separate_offload_grads else 0.0
    parameters = s.param_device == "nvme"
    width = s.master_bytes + s.state_bytes * s.num_states
    return NvmeBytes(
        optimizer_read=width * node + gradients if optimizer else 0.0,
        optimizer_write=width * node if optimizer else 0.0,
        gradients_write=gradients,
        parameters_read=2 * s.param_bytes * s.accumulation * node if parameters else 0.0,
        parameters_write=s.param_bytes * node if parameters else 0.0,
    )
