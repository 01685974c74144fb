# SPDX-License-Identifier: Apache-2.0
"""The work of one optimizer step on one rank: operations, bytes, launches. As DeepSpeed issues it; no time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.facts.kept_copies import count_overlapped
from harness.facts.model_facts import ModelFacts, once_a_model
from harness.plan.memory.activation_bytes import MicroBatchShape, all_layer_bytes
from harness.plan.memory.zero_partitions import (
    count_frozen_quantized,
    count_trainable,
    local_num_parameters,
    partition_model,
    rounds_pinned_weights,
    tensor_parallel_shard,
)
from harness.plan.settings.checkpointed_layers import recompute_shares
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.time import comm_volume
from harness.plan.time.pipeline_schedule import bubble_fraction
from harness.plan.weights.flops import FlopsInputs, GradientShares

_BACKWARD_PRODUCTS = 2.5
"""Products of a fused attention's backward pass by those of its forward pass: it computes the scores again."""


@dataclass(frozen=True, slots=True)
class ComputeWork:
    """Compute of one micro-batch on one rank.

    `matmul_flops`: products with weights, recomputed ones too; `attention_forward_flops`, `attention_backward_flops`:
    products of positions, half of a causal mask, or all of them with the mask of packed rows; `activation_bytes`: what
    the layers save for backward, written and read in passes; `logits`: elements of the logits. `width`: the narrowest
    side of the products, divided by tensor parallelism; `rows`: tokens of one product, an expert's share of them.
    `layer_passes`: layers times passes. `micro_batches`: of a step, `idle_share`: the share of a step that a pipeline
    stage waits. `dequantized_bytes`: 4-bit weights that are read, and written in the training format.
    """

    matmul_flops: float
    attention_forward_flops: float
    attention_backward_flops: float
    activation_bytes: float
    logits: float
    width: float
    rows: float
    layer_passes: float
    micro_batches: int
    idle_share: float = 0.0
    experts: bool = False
    dequantized_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class CollectiveWork:
    """Payload of the collectives of a step, bytes, and how many are issued one by one.

    `gather`: parameters, `hpz_gather`: those from ZeRO++'s second shard, `reduce`: gradients in ring units. `tensor`,
    `sequence` and `pipeline`: bytes a rank inside a model replica. `gathers`: modules gathered; `reductions`: parameter
    tensors whose gradients are reduced by hooks. `messages`: between pipeline stages. `prefetches`: stage 3 gathers
    ahead while a module computes; not where that module alone exceeds `stage3_max_live_parameters`
    (partitioned_param_coordinator.py, `fetch_sub_module`).
    """

    gather: float
    hpz_gather: float
    reduce: float
    tensor: float
    sequence: float
    pipeline: float
    gathers: float
    reductions: float
    messages: int
    prefetches: bool = True


@dataclass(frozen=True, slots=True)
class OptimizerWork:
    """The optimizer step: elements of this rank's shard that the GPU steps; bytes of a rank over PCIe during the
    passes, of gradients one after the other (`pcie`), of them fetched back, and of weights (`pcie_weights`); of
    gradients at the step (`pcie_step`) and of what was stepped (`upload`), of the latter those that are copied while
    the CPU steps the next sub-group (`pcie_hidden`); the host's `nvme` bytes and memory traffic. `early_share`: of the
    elements that may be stepped beside the last backward pass, which is `last_backward` of the passes.
    """

    gpu_elements: float
    host_bytes: float
    pcie: float
    pcie_fetched: float
    pcie_weights: float
    pcie_step: float
    upload: float
    pcie_hidden: float
    nvme: comm_volume.NvmeBytes
    early_share: float = 0.0
    last_backward: float = 0.0


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step, by what does it."""

    compute: ComputeWork
    collectives: CollectiveWork
    optimizer: OptimizerWork


@once_a_model
def count_step_work(model: ModelFacts, settings: PlanSettings) -> StepWork:
    """The work of one step of one rank: of a middle stage where a pipeline divides the layers."""
    size = float(local_num_parameters(model, settings))
    trainable, whole = count_trainable(model, settings)
    stepped = size * trainable / whole
    return StepWork(
        _count_compute(model, settings, trainable / whole),
        _count_collectives(model, settings, size, stepped),
        _count_optimizer(model, settings, stepped, size),
    )


def _count_compute(model: ModelFacts, settings: PlanSettings, trained_share: float) -> ComputeWork:
    ranks = settings.tensor_parallel_size * settings.pipeline_parallel_size * settings.sequence_parallel_size
    tokens = settings.micro_batch * settings.seq_length
    inputs, shares = FlopsInputs.from_model(model), GradientShares(weight_grads=min(1.0, trained_share))
    again = recompute_shares(settings, model.num_layers)
    recomputed = inputs.recomputed * again.layers + inputs.down * again.tiled_mlp
    matmul = 2 * tokens * (inputs.matmul * (1 + shares.input_grads + shares.weight_grads) + recomputed)
    attention = 2 * inputs.width * model.num_layers * tokens * settings.seq_length  # half of the pairs
    if settings.packing and settings.attention == "sdpa":  # a kernel with a mask computes them all
        attention *= 2
    local = settings.tokens_per_micro_batch
    narrowest = min(model.hidden, model.intermediate) if model.experts else model.hidden
    micro_batch = MicroBatchShape(local, settings.seq_length, settings.param_bytes, settings.attention)
    divided = settings.tensor_parallel_size * settings.pipeline_parallel_size
    saved = sum(all_layer_bytes(model, micro_batch, model.num_layers)) / divided
    return ComputeWork(
        matmul_flops=matmul / ranks * _repeated_work(model, settings),
        attention_forward_flops=attention * (1 + again.attention) / ranks,
        attention_backward_flops=attention * _BACKWARD_PRODUCTS / ranks,
        activation_bytes=saved * (1 + again.layers / 2),
        logits=tokens * model.vocab / ranks,
        width=narrowest / math.sqrt(settings.tensor_parallel_size),
        rows=local * (model.experts_per_token / model.experts if model.experts else 1.0),
        layer_passes=(2 + again.layers) * model.num_layers / settings.pipeline_parallel_size,
        micro_batches=settings.accumulation,
        idle_share=bubble_fraction("1f1b", settings.pipeline_parallel_size, settings.accumulation),
        experts=model.experts > 0,
        dequantized_bytes=(2 + again.layers) * _dequantized_bytes(model, settings),
    )


def _dequantized_bytes(model: ModelFacts, settings: PlanSettings) -> float:
    """Bytes that one pass through all layers moves to have its 4-bit weights in the training format."""
    if settings.quantization is None:
        return 0.0
    weights = count_frozen_quantized(model, settings)
    return weights.bytes + settings.param_bytes * weights.numel


def _repeated_work(model: ModelFacts, settings: PlanSettings) -> float:
    """Products of a tensor rank by its even share of them: every rank repeats those of weights that stay whole."""
    degree = settings.tensor_parallel_size
    if degree == 1 or settings.pipeline_parallel_size > 1:
        return 1.0
    shard = tensor_parallel_shard(model, settings)
    if not shard.is_known or shard.refusal:
        return 1.0
    return 1 + shard.repeated_share * (degree - 1)


def _count_collectives(model: ModelFacts, settings: PlanSettings, size: float, stepped: float) -> CollectiveWork:
    """Stages 1 and 2 gather what was stepped; stage 3 gathers everything, module by module."""
    gathered = size if settings.stage == 3 else stepped
    payload = comm_volume.all_gather_bytes(gathered, settings, model)
    is_hpz = settings.hpz_partition_size > 1
    stages = settings.pipeline_parallel_size
    layers = model.num_layers / stages
    steps = settings.accumulation if settings.stage == 2 else 1
    return CollectiveWork(
        gather=payload / 2 if is_hpz else payload,
        hpz_gather=payload / 2 if is_hpz else 0.0,
        reduce=comm_volume.gradient_reduction_bytes(stepped, settings),
        tensor=comm_volume.tensor_parallel_bytes(model, settings),
        sequence=comm_volume.sequence_parallel_bytes(model, settings),
        pipeline=comm_volume.pipeline_bytes(model, settings),
        gathers=_gathers_of_a_pass(model, settings, layers) * _passes(model, settings) if settings.stage == 3 else 0.0,
        reductions=len(model.largest_layer) * layers * steps if 0 < settings.stage < 3 else 0.0,
        messages=2 * (settings.accumulation + stages - 2) if stages > 1 else 0,
        prefetches=settings.stage < 3
        or (settings.prefetch_bucket_size > 0 and settings.max_live_parameters > model.largest_layer_module),
    )


def _passes(model: ModelFacts, settings: PlanSettings) -> float:
    return settings.accumulation * (2 + recompute_shares(settings, model.num_layers).layers)


def _gathers_of_a_pass(model: ModelFacts, settings: PlanSettings, layers: float) -> float:
    """Modules with a parameter above the persistence threshold; a layer's experts are one, and so is a leaf layer."""
    if settings.leaf_decoder_layers:
        return layers
    modules = {
        parameter.name.partition(".experts.")[0] if ".experts." in parameter.name else parameter.name.rpartition(".")[0]
        for parameter in model.largest_layer
        if parameter.numel > settings.param_persistence_threshold
    }
    return layers * len(modules)


def _count_optimizer(model: ModelFacts, settings: PlanSettings, size: float, held: float) -> OptimizerWork:
    """`size`: elements of a model replica's stage that are stepped; `held`: all of them. Stage 3 fetches gradients back
    on the stream that sends them (stage3.py, `partition_grads`).
    """
    shard = size / settings.zero_world_size
    host_elements = shard * settings.ranks_per_host
    down, boundary = comm_volume.device_to_host_bytes(shard, settings)
    fetched = comm_volume.host_to_device_bytes(shard, replace(settings, param_device="none"))[0]
    weights = held * settings.param_bytes
    if settings.quantization is not None:
        frozen = count_frozen_quantized(model, settings)
        weights -= frozen.numel * settings.param_bytes - frozen.bytes
    up, after = comm_volume.host_to_device_bytes(shard, settings, weights / settings.zero_world_size)
    is_offloaded = settings.stage == 3 and settings.optimizer_device != "none"
    groups = partition_model(model, settings).sub_groups if is_offloaded else ()
    # A sub-group's copy, 2 bytes an element, runs while the next one is stepped, 28 bytes an element.
    beside = sum(min(copied, 14 * stepped) for copied, stepped in pairwise(groups))
    hidden = beside / sum(groups) if groups and settings.steps_in_one_pass else 0.0
    passes = 1 + _passes(model, settings) / settings.accumulation
    on_host = settings.offload_ratio if settings.optimizer_device != "none" else 0.0
    return OptimizerWork(
        gpu_elements=(shard if settings.stage else size) * (1 - on_host),
        host_bytes=comm_volume.cpu_optimizer_bytes(host_elements, settings),
        pcie=down + fetched if settings.stage == 3 else max(down, fetched),
        pcie_fetched=fetched,
        pcie_weights=up - fetched,
        pcie_step=boundary,
        upload=after,
        pcie_hidden=after * hidden,
        nvme=comm_volume.nvme_bytes(host_elements, settings, held / settings.zero_world_size * settings.ranks_per_host),
        early_share=_early_share(settings, groups),
        last_backward=(passes - 1) / passes / settings.accumulation,
    )


def _early_share(settings: PlanSettings, groups: Sequence[int]) -> float:
    """Of a rank's elements that the CPU steps, those in the last sub-groups whose copies fit; never all of them."""
    stepped = groups[int((1 - settings.offload_ratio) * len(groups)) :]
    if not settings.overlap_step_gib or not stepped:
        return 0.0
    is_rounded = rounds_pinned_weights(settings)
    early = count_overlapped(stepped[1:], settings.overlap_step_gib, is_rounded=is_rounded)
    return sum(stepped[len(stepped) - early :]) / sum(stepped)
