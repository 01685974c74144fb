# SPDX-License-Identifier: Apache-2.0
"""Tuned defaults of the model: chunks of the loss, and the layers that are recomputed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.facts import model_table
from harness.facts.devices import Device, describe_device, find_device
from harness.facts.model_facts import ModelFacts
from harness.patches.patch_registry import PatchFacts, is_planned
from harness.plan.memory.memory_estimate import estimate_memory
from harness.plan.memory.zero_partitions import local_vocab_size
from harness.plan.settings.checkpointed_layers import checkpointing_value, recompute_shares, with_checkpointing
from harness.plan.settings.cluster_sizes import parse_size
from harness.plan.settings.plan_settings import PlanSettings
from harness.plan.tuned_defaults.default_inputs import DefaultInputs
from harness.plan.weights.flops import FlopsInputs, executed_flops
from harness.run.tuned_default import TunedDefault
from harness.units import parse_bytes

_CHUNK_KEY = "train.loss_chunk_size"
_CHUNK_LOGITS_BYTES = 1 << 28
"""Bytes of a chunk's logits in fp32."""
_CHUNK_MULTIPLE = 128


def choose_loss_chunk_size(inputs: DefaultInputs) -> TunedDefault | None:
    """Chunks of 256 MiB of logits are large enough for the products to run at full speed. fp16 scales the loss before
    gradients are rounded; compiled models and those of a pipeline have a head of their own, and some change their
    logits before the loss (`loss` of the table of models). Where AutoTP divides the head, a rank has its shard.
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
        or model_table.holds(model.family, "loss") is False
        or "torch_autocast" in spec.deepspeed
    ):
        return None
    vocab_size = local_vocab_size(model, settings)
    value = chunk_size_for(vocab_size)
    is_patched = is_planned("chunked-loss", PatchFacts(loss_chunk_size=value), spec.launch.patches)
    if settings.tokens_per_micro_batch <= value or not is_patched:
        return None
    reason = f"logits of {value} x {vocab_size:,} (tokens x vocab) exist at once"
    return TunedDefault("loss in chunks", _CHUNK_KEY, value, 0, reason, ours=True)


def chunk_size_for(vocab_size: int) -> int:
    """Tokens of a chunk for a vocabulary of this size."""
    return max(_CHUNK_MULTIPLE, _CHUNK_LOGITS_BYTES // (4 * vocab_size) // _CHUNK_MULTIPLE * _CHUNK_MULTIPLE)


_CHECKPOINTING_KEY = "train.gradient_checkpointing"
_EVERY = (8, 4, 3, 2, 1)
_HEADROOM = 0.05


def is_recomputation_asked(inputs: DefaultInputs) -> bool:
    """Does the spec leave the choice to the planner?"""
    return bool(inputs.run.spec.train.gradient_checkpointing == "auto")


def choose_recomputed_layers(inputs: DefaultInputs) -> TunedDefault | None:
    """The choice with the fewest operations that leaves a twentieth of the GPU free; every layer where none does, or
    where the GPU or the model is unknown. `inputs.settings` are those with all other tuned defaults.
    """
    if not is_recomputation_asked(inputs):
        return None
    model, settings = inputs.model, inputs.settings
    device = _find_gpu(inputs)
    if model is None or settings is None or device is None or not device.memory:
        unknown = (
            "model" if model is None else "ranks or the micro-batch" if settings is None else "GPU (`cluster.gpu`)"
        )
        return _recomputation_default(True, f"every layer: the {unknown} of the run is unknown")
    flops = FlopsInputs.from_model(model)
    pairs = model.num_layers * settings.seq_length / 2
    candidates = sorted(
        _list_candidates(settings, model),
        key=lambda each: executed_flops(flops, 1, pairs, recomputed=recompute_shares(each, model.num_layers)),
    )
    for candidate in candidates:
        peak = estimate_memory(model, candidate, device).gpu_peak
        if peak <= device.memory * (1 - _HEADROOM):
            share = f"{peak / device.memory:.0%} of the memory of a {device.name}"
            return _recomputation_default(checkpointing_value(candidate), f"fewest recomputed layers that fit: {share}")
    return _recomputation_default(True, f"every layer: with fewer the run does not fit a {device.name}")


def _find_gpu(inputs: DefaultInputs) -> Device | None:
    """The kind of GPU that the spec names, with its own figure of the memory."""
    cluster = inputs.run.spec.cluster
    memory, _ = parse_size("cluster.gpu_memory", cluster.gpu_memory, parse_bytes)
    name = cluster.gpu or ""
    return describe_device(name, memory, None, None, find_device(name) if name else None)


def _list_candidates(settings: PlanSettings, model: ModelFacts) -> Iterator[PlanSettings]:
    yield with_checkpointing(settings, checkpointing=False)
    every_layer = with_checkpointing(settings, checkpointing=True)
    keeps = (True, False) if _can_keep_attention(settings, model) else (False,)
    for every in _EVERY:
        for keep in keeps:
            yield replace(every_layer, checkpoint_every=every, keeps_attention=keep)


def _can_keep_attention(settings: PlanSettings, model: ModelFacts) -> bool:
    """As the gate MD040 has it, and as a rank refuses it (MD160)."""
    is_plain = not (settings.reentrant_checkpointing or settings.compiled or settings.pipeline_parallel_size > 1)
    return is_plain and settings.attention != "eager" and not model.attention_dropout


def _recomputation_default(value: object, reason: str) -> TunedDefault:
    return TunedDefault("recomputed layers", _CHECKPOINTING_KEY, value, True, reason, ours=True)
