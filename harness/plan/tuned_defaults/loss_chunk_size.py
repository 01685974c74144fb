# SPDX-License-Identifier: Apache-2.0
"""Head and loss in chunks of tokens, so that logits of a whole micro-batch never exist."""

from __future__ import annotations

from dataclasses import replace

from harness.facts.devices import Device
from harness.facts.model_facts import ModelFacts
from harness.patches.patch_registry import PatchFacts, is_planned
from harness.plan.memory_estimate import estimate_memory
from harness.plan.plan_settings import PlanSettings
from harness.plan.tuned_default import TunedDefault
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.plan.zero_partitions import local_vocab_size, partition_model

KEY = "train.loss_chunk_size"
_CHUNK_LOGITS_BYTES = 1 << 28
"""Bytes of the logits of the smallest chunk in fp32."""
_CHUNK_MULTIPLE = 128
_TRAFFIC_SHARE = 1 / 8
"""Time that a chunk moves the head's gradient by that of its products, at the rates of the data sheet."""
_HEADROOM = 0.05
_UNSUPPORTED_FAMILIES = ("gemma2", "gemma3", "gemma3_text", "phi")
"""Families with a soft cap of their logits or a bias of their head, which stay with the plain loss."""


def choose_default(inputs: DefaultInputs) -> TunedDefault | None:
    """Chunks so large that moving the head's gradient costs little, where the GPU has room for their logits, else those
    of 256 MiB of logits. fp16 scales the loss before gradients are rounded; compiled models and those of a pipeline
    have a head of their own. Where AutoTP divides the head, a rank has the logits of its vocabulary shard.
    `inputs.settings` are those with all other tuned defaults.
    """
    spec, model, settings = inputs.run.spec, inputs.model, inputs.settings
    if (
        model is None
        or settings is None
        or settings.pipeline_parallel_size > 1
        or spec.train.loss_chunk_size is not None
    ):
        return None
    if (
        spec.precision.fp16
        or spec.train.torch_compile
        or model.family in _UNSUPPORTED_FAMILIES
        or "torch_autocast" in spec.deepspeed
    ):
        return None
    vocab_size = local_vocab_size(model, settings)
    smallest = chunk_size_for(vocab_size)
    is_patched = is_planned("chunked-loss", PatchFacts(loss_chunk_size=smallest), spec.launch.patches)
    if settings.tokens_per_micro_batch <= smallest or not is_patched:
        return None
    value, why = _choose_size(model, settings, inputs.gpu, smallest)
    reason = f"logits of {value:,} x {vocab_size:,} (tokens x vocab) exist at once: {why}"
    return TunedDefault("loss in chunks", KEY, value, 0, reason, ours=True)


def chunk_size_for(vocab_size: int) -> int:
    """Tokens of the smallest chunk for a vocabulary of this size."""
    return max(_CHUNK_MULTIPLE, _CHUNK_LOGITS_BYTES // (4 * vocab_size) // _CHUNK_MULTIPLE * _CHUNK_MULTIPLE)


def cheap_chunk_size(device: Device) -> int:
    """Tokens of a chunk whose traffic takes an eighth of the time of its products."""
    return _round_up(_traffic_share(device, 1) / _TRAFFIC_SHARE)


def _traffic_share(device: Device, tokens: int) -> float:
    """Of each weight of the head 12 bytes are moved a chunk, and 6 operations are done a token."""
    return 2 * device.flops_16 / device.bandwidth / tokens


def _round_up(tokens: float) -> int:
    return -(-int(tokens) // _CHUNK_MULTIPLE) * _CHUNK_MULTIPLE


def _choose_size(model: ModelFacts, settings: PlanSettings, device: Device | None, smallest: int) -> tuple[int, str]:
    """Tokens of a chunk, and why: equal chunks of at most the cheap size, twice as many until the plan leaves a
    twentieth of the GPU free, or is no larger than with the smallest chunk.
    """
    if device is None or device.is_cpu or not device.memory or not device.flops_16 or not device.bandwidth:
        return smallest, "256 MiB of them"
    tokens, partitions = settings.tokens_per_micro_batch, partition_model(model, settings)
    limit = device.memory * (1 - _HEADROOM)

    def peak(size: int) -> int:
        return estimate_memory(model, replace(settings, loss_chunk_size=size), device, partitions).gpu_peak

    least, num_chunks = peak(smallest), -(-tokens // cheap_chunk_size(device))
    while (size := _round_up(tokens / num_chunks)) > smallest:
        if peak(size) <= max(limit, least):
            if num_chunks == 1:
                return size, "all of a micro-batch, in one pass over the head"
            return size, f"moving the head takes {_traffic_share(device, size):.0%} of the time of its products"
        num_chunks *= 2
    return smallest, f"more do not fit a {device.name}"
