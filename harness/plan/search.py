"""All settings with the same global batch, ranked: what fits with headroom, fastest first. Arithmetic only.

Degrees are those that DeepSpeed trains with; whether the gates let a choice through, the caller asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from harness.facts.devices import Device
from harness.facts.models import ModelFacts
from harness.plan.activation_rows import activation_rows
from harness.plan.ladder import RUNGS, Rung, allowed, placed, rung
from harness.plan.memory import Capacity, Memory, memory_of, with_activations
from harness.plan.rates import Rates
from harness.plan.settings import Settings

HEADROOM = 0.05
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_DEGREES = (1, 2, 4, 8, 16)


def search(
    model: ModelFacts,
    run: Settings,
    device: Device | None,
    capacity: Capacity,
    rates: Rates | None = None,
    *,
    degrees: bool = True,
) -> tuple[Rung, ...]:
    """Every choice, best first: those that fit with headroom by seconds a step, then those that are known to be short
    by how much they are.
    """
    found: list[Rung] = []
    for base in _bases(model, run, degrees):
        counted: dict[bool, Memory] = {}
        for other in _batches(base, run):
            accumulates = other.accumulation > 1  # some gradients are kept only then
            known = counted.get(accumulates)
            memory = memory_of(model, other, device) if known is None else _again(known, model, other)
            counted[accumulates] = memory
            found.append(rung(model, run, other, device, capacity, rates, memory))
    return tuple(sorted(found, key=_rank))


def fitting(rungs: Iterable[Rung]) -> Iterator[Rung]:
    """Those that fit with headroom, as far as is known; nothing goes to disks that nobody said there are."""
    return (rung for rung in rungs if _fits(rung))


def _fits(rung: Rung) -> bool:
    known = rung.fit.fits is True or (rung.fit.fits is None and not rung.nvme)
    return known and (rung.fit.headroom is None or rung.fit.headroom >= HEADROOM)


def _rank(rung: Rung) -> tuple[bool, bool, float, int, int]:
    """Fitting before not, without offload to unknown disks before with; then time, or what is missing."""
    seconds = rung.time.seconds if rung.time else 0.0
    short = -(rung.fit.headroom or 0.0)
    fits = _fits(rung)
    return not fits, rung.fit.fits is None and fits, seconds if fits else short, rung.host, rung.gpu


def _again(memory: Memory, model: ModelFacts, s: Settings) -> Memory:
    """The same states with the activations of another micro-batch."""
    return with_activations(memory, activation_rows(model, s))


def _bases(model: ModelFacts, run: Settings, degrees: bool) -> Iterator[Settings]:
    """Every stage, place and degree, with the run's own batch."""
    for divided in _divisions(model, run) if degrees else (run,):
        for stage, optimizer_at, parameters_at in RUNGS:
            if allowed(stage, divided):
                yield placed(divided, stage, optimizer_at, parameters_at)


def _divisions(model: ModelFacts, run: Settings) -> Iterator[Settings]:
    yield run
    for tensor in _DEGREES:
        for pipeline in _DEGREES:
            for sequence in _DEGREES:
                together = tensor * pipeline * sequence
                if (tensor, pipeline, sequence) == (run.tensor, run.pipeline, run.sequence_parallel):
                    continue
                if run.world % together or sum(degree > 1 for degree in (tensor, pipeline, sequence)) > 1:
                    continue
                if tensor * sequence > run.ranks_per_host or pipeline > model.num_layers:
                    continue
                if model.heads % (tensor * sequence) or model.kv_heads % tensor:
                    continue
                yield replace(
                    run,
                    tensor=tensor,
                    pipeline=pipeline,
                    sequence_parallel=sequence,
                    data=run.world // together,
                    # As `settings_of` has it: with Ulysses gradients travel in fp32.
                    comm_bytes=4 if sequence > 1 else run.comm_bytes,
                )


def _batches(base: Settings, run: Settings) -> Iterator[Settings]:
    """Micro-batches that keep the global batch, with and without checkpointing."""
    sequences = run.micro_batch * run.accumulation * run.data
    if sequences % base.data:
        return
    for micro in sorted({*_MICRO_BATCHES, run.micro_batch}):
        share = sequences // base.data
        if share % micro:
            continue
        for checkpointing in (False, True):
            yield replace(base, micro_batch=micro, accumulation=share // micro, checkpointing=checkpointing)
