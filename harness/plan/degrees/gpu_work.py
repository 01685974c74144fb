# SPDX-License-Identifier: Apache-2.0
"""Work of one GPU in one optimizer step: matrix products, attention, bytes of collectives, bubble. No rates.

`GpuWork` is the only thing that `work_seconds` reads, so that a model of time can be exchanged without the arithmetic.
The GPU is one of the stage that computes most; every amount is a step's, over all its micro-batches, unless stated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["tensor", "context", "expert", "pipeline", "data", "expert data"]
CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ring", "send"]
Window = Literal["none", "layer", "backward", "step"]
"""The compute that collectives may hide under together, if the software does it: none; half of every layer (context
rings under attention, gathers under weight gradients); the backward pass of the last micro-batch (gradients, gathered
parameters); any pass of the step (messages of an interleaved schedule, DualPipe's all-to-alls, ZeRO-2's and 3's
collectives)."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """Equal matrix products (rows x inner) x (inner x outer) of the forward pass, executed `count` times a step.

    `rows`: tokens of a micro-batch on this GPU (an expert: its share of the routed ones). `backward`: products of the
    backward pass for each forward one, 2, or 3 where the forward is computed once more. `part`: `attention` (its
    projections), `mlp`, `experts`, `router` or `head`. `weights`: equal matrices in one launch, as the experts of a
    grouped product. FLOPs of the step: `flops`.
    """

    part: Literal["attention", "mlp", "experts", "router", "head"]
    rows: float
    inner: int
    outer: int
    count: int
    weights: int = 1
    backward: float = 2.0

    @property
    def flops(self) -> float:
        """Forward and backward, with recomputation."""
        return 2.0 * self.rows * self.inner * self.outer * self.weights * self.count * (1 + self.backward)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Causal attention of this GPU's heads: pairs of positions that are computed, half of the square.

    `seq_length` of whole sequences, `head_dim` the mean of query's and value's width, `heads` of this GPU. Forward is
    4 x heads x head size a pair, backward twice that (a flash kernel's fifth product, the recomputed scores, is not
    counted: it belongs to the kernel's efficiency). `recomputed`: forward passes repeated for checkpointing, 0 or 1.
    """

    seq_length: int
    heads: int
    head_dim: int
    pairs: float
    recomputed: float = 0.0

    @property
    def flops(self) -> float:
        """Forward and backward, with recomputation."""
        return 4.0 * self.heads * self.head_dim * self.pairs * (3 + self.recomputed)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of this GPU in a step for one purpose.

    `ranks`: GPUs of the group, of which `ranks_in_host` are in one host. `payload`: bytes of the tensors, once for each
    call, summed. `link_bytes`: what this GPU sends over the links of its host, `network_bytes` over its share of the
    host's network cards; a ring of a group in several hosts loads both (NCCL runs one ring for each card, so that a
    card carries the ring's bytes divided by the group's GPUs in the host), and its time is the larger one's.
    `calls`: collectives or messages, for their latency. `window`: see `Window`.
    """

    purpose: str
    group: GroupKind
    kind: CollectiveKind
    ranks: int
    ranks_in_host: int
    payload: float
    link_bytes: float
    network_bytes: float
    calls: int
    window: Window = "none"

    @property
    def within_host(self) -> bool:
        """Does the group fit in a host?"""
        return self.ranks_in_host >= self.ranks


@dataclass(frozen=True, slots=True)
class GpuWork:
    """The work of a step on the GPU that computes most.

    `precision` of the matrix products of layers (`fp8`: attention and head stay in bf16). `micro_batches`: passes of
    the pipeline. `layer_passes`: forward passes of a layer on this GPU, layers x micro-batches, for what each launch
    costs; `is_gated`, `is_moe` tell what a layer has. `bubble`: seconds that a stage waits for each second that it
    works (0.25: a fifth of the time is lost). `elementwise_bytes`: memory traffic of norms, activations and residuals.
    `optimizer_bytes`: memory traffic of the optimizer step. `tokens`: of the step over all GPUs; `world_size`: GPUs.
    """

    precision: Literal["bf16", "fp16", "fp32", "fp8"]
    products: tuple[MatrixProduct, ...]
    attention: AttentionWork
    traffic: tuple[Traffic, ...]
    micro_batches: int
    layer_passes: int
    bubble: float
    elementwise_bytes: float
    optimizer_bytes: float
    tokens: int
    world_size: int
    model_flops: float
    """FLOPs of the step over all GPUs as MFU counts them here: 6 a multiplied parameter and token, causal attention at
    half, nothing recomputed."""
    is_moe: bool = False
    gpus_per_host: int = 8

    @property
    def product_flops(self) -> float:
        """Of all matrix products."""
        return sum(product.flops for product in self.products)
