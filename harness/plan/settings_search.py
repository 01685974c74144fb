"""All settings with the same global batch, ranked: what fits with headroom, fastest first. Arithmetic only.

Degrees are those that DeepSpeed trains with; whether the gates let a choice through, the caller asks.
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
    """Every choice, best first: those that fit with headroom by seconds a step, then those that are known to be short
    by how much they are.
    """
    found: list[Alternative] = []
    for base in _stage_and_offload_settings(model, run, vary_parallel_dims):
        counted: dict[bool, MemoryEstimate] = {}
        for other in _batch_settings(base, run):
            accumulates = other.accumulation > 1  # some gradients are kept only then
            known = counted.get(accumulates)
            memory = (
                estimate_memory(model, other, device) if known is None else _with_other_micro_batch(known, model, other)
            )
            counted[accumulates] = memory
            found.append(evaluate_alternative(model, run, other, device, capacity, rates, memory))
    return tuple(sorted(found, key=_sort_key))


def filter_fitting(rungs: Iterable[Alternative]) -> Iterator[Alternative]:
    """Those that fit with headroom, as far as is known; nothing goes to disks that nobody said there are."""
    return (rung for rung in rungs if _fits(rung))


def _fits(rung: Alternative) -> bool:
    known = rung.fit.fits is True or (rung.fit.fits is None and not rung.nvme_bytes)
    return known and (rung.fit.headroom is None or rung.fit.headroom >= HEADROOM)


def _sort_key(rung: Alternative) -> tuple[bool, bool, float, int, int]:
    """Fitting before not, without offload to unknown disks before with; then time, or what is missing."""
    seconds = rung.time.seconds if rung.time else 0.0
    short = -(rung.fit.headroom or 0.0)
    fits = _fits(rung)
    return not fits, rung.fit.fits is None and fits, seconds if fits else short, rung.host_peak, rung.gpu_peak


def _with_other_micro_batch(memory: MemoryEstimate, model: ModelFacts, s: PlanSettings) -> MemoryEstimate:
    """The same states with the activations of another micro-batch."""
    return with_activations(memory, activation_items(model, s))


def _stage_and_offload_settings(model: ModelFacts, run: PlanSettings, degrees: bool) -> Iterator[PlanSettings]:
    """Every stage, place and degree, with the run's own batch."""
    for divided in _parallel_settings(model, run) if degrees else (run,):
        for stage, optimizer_at, parameters_at in STAGES_AND_OFFLOADS:
            if is_stage_supported(stage, divided):
                yield with_offload(divided, stage, optimizer_at, parameters_at)


def _parallel_settings(model: ModelFacts, run: PlanSettings) -> Iterator[PlanSettings]:
    yield run
    for tensor in _PARALLEL_SIZES:
        for pipeline in _PARALLEL_SIZES:
            for sequence in _PARALLEL_SIZES:
                together = tensor * pipeline * sequence
                if (tensor, pipeline, sequence) == (
                    run.tensor_parallel_size,
                    run.pipeline_parallel_size,
                    run.sequence_parallel_size,
                ):
                    continue
                if run.world_size % together or sum(degree > 1 for degree in (tensor, pipeline, sequence)) > 1:
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
                    data_parallel_size=run.world_size // together,
                    # As `settings_of` has it: with Ulysses gradients travel in fp32.
                    comm_bytes=4 if sequence > 1 else run.comm_bytes,
                )


def _batch_settings(base: PlanSettings, run: PlanSettings) -> Iterator[PlanSettings]:
    """Micro-batches that keep the global batch, with and without checkpointing."""
    sequences = run.micro_batch * run.accumulation * run.data_parallel_size
    if sequences % base.data_parallel_size:
        return
    for micro in sorted({*_MICRO_BATCHES, run.micro_batch}):
        share = sequences // base.data_parallel_size
        if share % micro:
            continue
        for checkpointing in (False, True):
            yield replace(base, micro_batch=micro, accumulation=share // micro, checkpointing=checkpointing)
