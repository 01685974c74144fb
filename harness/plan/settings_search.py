# SPDX-License-Identifier: Apache-2.0
"""All settings with the same global batch, ranked: fitting ones with headroom first, the fastest of them on top.

Arithmetic only. The parallel sizes are those that DeepSpeed trains with; the caller runs the gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.plan.activation_items import activation_items
from harness.plan.alternatives import (
    STAGES_AND_OFFLOADS,
    Alternative,
    evaluate_alternative,
    is_stage_supported,
    with_offload,
)
from harness.plan.memory_estimate import Capacity, MemoryEstimate, estimate_memory, with_activations
from harness.plan.plan_settings import PlanSettings
from harness.plan.rates import Rates

HEADROOM = 0.05
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_PARALLEL_SIZES = (1, 2, 4, 8, 16)


def search_settings(
    model: ModelFacts,
    run: PlanSettings,
    device: Device | None,
    capacity: Capacity,
    rates: Rates | None = None,
    *,
    vary_parallel_dims: bool = True,
) -> tuple[Alternative, ...]:
    """Every alternative, best first: those that fit with headroom by seconds a step, then the others by the memory that
    they lack.
    """
    alternatives: list[Alternative] = []
    for base in _stage_and_offload_settings(model, run, vary_parallel_dims):
        estimates: dict[bool, MemoryEstimate] = {}
        for settings in _batch_settings(base, run):
            accumulates = settings.accumulation > 1  # some gradients stay between micro-batches only then
            estimate = estimates.get(accumulates)
            memory = (
                estimate_memory(model, settings, device)
                if estimate is None
                else _with_other_micro_batch(estimate, model, settings)
            )
            estimates[accumulates] = memory
            alternatives.append(evaluate_alternative(model, run, settings, device, capacity, rates, memory))
    return tuple(sorted(alternatives, key=_sort_key))


def filter_fitting(alternatives: Iterable[Alternative]) -> Iterator[Alternative]:
    """The ones that fit with headroom, as far as is known; none that needs disks of unknown size."""
    return (alternative for alternative in alternatives if _fits(alternative))


def _fits(alternative: Alternative) -> bool:
    may_fit = alternative.fit.fits is True or (alternative.fit.fits is None and not alternative.nvme_bytes)
    return may_fit and (alternative.fit.headroom is None or alternative.fit.headroom >= HEADROOM)


def _sort_key(alternative: Alternative) -> tuple[bool, bool, float, int, int]:
    """Fitting ones first, those that need disks of unknown size after the others; then by time, or by the missing
    memory.
    """
    seconds = alternative.time.seconds if alternative.time else 0.0
    shortfall = -(alternative.fit.headroom or 0.0)
    fits = _fits(alternative)
    return (
        not fits,
        alternative.fit.fits is None and fits,
        seconds if fits else shortfall,
        alternative.host_peak,
        alternative.gpu_peak,
    )


def _with_other_micro_batch(memory: MemoryEstimate, model: ModelFacts, settings: PlanSettings) -> MemoryEstimate:
    """The same states with the activations of another micro-batch."""
    return with_activations(memory, activation_items(model, settings))


def _stage_and_offload_settings(
    model: ModelFacts, run: PlanSettings, vary_parallel_dims: bool
) -> Iterator[PlanSettings]:
    """Every stage, offload and parallel size, with the run's own batch."""
    for divided in _parallel_settings(model, run) if vary_parallel_dims else (run,):
        for stage, optimizer_device, param_device in STAGES_AND_OFFLOADS:
            if is_stage_supported(stage, divided):
                yield with_offload(divided, stage, optimizer_device, param_device)


def _parallel_settings(model: ModelFacts, run: PlanSettings) -> Iterator[PlanSettings]:
    yield run
    for tensor in _PARALLEL_SIZES:
        for pipeline in _PARALLEL_SIZES:
            for sequence in _PARALLEL_SIZES:
                model_parallel_size = tensor * pipeline * sequence
                if (tensor, pipeline, sequence) == (
                    run.tensor_parallel_size,
                    run.pipeline_parallel_size,
                    run.sequence_parallel_size,
                ):
                    continue
                if (
                    run.world_size % model_parallel_size
                    or sum(degree > 1 for degree in (tensor, pipeline, sequence)) > 1
                ):
                    continue
                if tensor * sequence > run.ranks_per_host or pipeline > model.num_layers:
                    continue
                if model.heads % (tensor * sequence) or model.kv_heads % tensor:
                    continue
                yield replace(
                    run,
                    tensor_parallel_size=tensor,
                    pipeline_parallel_size=pipeline,
                    sequence_parallel_size=sequence,
                    data_parallel_size=run.world_size // model_parallel_size,
                    # As `settings_of` has it: with Ulysses gradients travel in fp32.
                    comm_bytes=4 if sequence > 1 else run.comm_bytes,
                )


def _batch_settings(base: PlanSettings, run: PlanSettings) -> Iterator[PlanSettings]:
    """Micro-batches that keep the global batch, with and without checkpointing."""
    sequences = run.micro_batch * run.accumulation * run.data_parallel_size
    if sequences % base.data_parallel_size:
        return
    for micro_batch in sorted({*_MICRO_BATCHES, run.micro_batch}):
        rank_sequences = sequences // base.data_parallel_size
        if rank_sequences % micro_batch:
            continue
        for checkpointing in (False, True):
            yield replace(
                base, micro_batch=micro_batch, accumulation=rank_sequences // micro_batch, checkpointing=checkpointing
            )
