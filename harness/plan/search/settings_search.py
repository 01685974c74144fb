# SPDX-License-Identifier: Apache-2.0
"""All settings with the same global batch, ranked: fitting ones with headroom first, the fastest of them on top.

Each one is planned with the values that its own spec would have, tuned defaults included. The parallel sizes are those
that DeepSpeed trains with; the caller runs the gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from harness.facts.devices import Device
from harness.facts.model_lookup import ModelFacts
from harness.facts.pipeline_support import layer_class_names
from harness.plan.memory.memory_estimate import Capacity
from harness.plan.search.alternatives import (
    STAGES_AND_OFFLOADS,
    Alternative,
    evaluate_alternative,
    is_stage_supported,
    with_offload,
)
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.settings.checkpointed_layers import checkpointing_value, list_checkpointing, with_checkpointing
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.plan.time.rates import Rates
from harness.plan.tuned_defaults.rules import asked_kernel, tuned_defaults_for, with_trainer
from harness.plan.weights.tensor_shard import shard_model
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.run.tuned_default import TunedDefault
from harness.spec.run_spec import RunSpec
from harness.spec.sections.section import Section

HEADROOM = 0.05
EQUAL_SPEED = 0.01
"""Steps that differ by less than this share count as equally fast."""
_HEADROOM_STEP = 0.05
_ENOUGH_HEADROOM = 0.2
"""Between two of them: free memory counts in steps of 5 %, and more than a fifth is no reason to choose."""
_MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_PARALLEL_SIZES = (1, 2, 4, 8, 16)


class CandidateSettings:
    """Settings of specs that differ from a run's in stage, offload, parallel sizes, micro-batch and checkpointing."""

    def __init__(self, run: ResolvedRun, model: ModelFacts) -> None:
        self._run, self._model = run, model
        self._raw = run.spec.model_dump(mode="json", exclude_unset=True)
        self._sections: dict[tuple[str, str], Section] = {}
        self._alike: dict[tuple[object, ...], tuple[PlanSettings, tuple[TunedDefault, ...], PlanSettings]] = {}
        """Settings of one batch before and after its tuned defaults, and these."""

    def resolve(self, sketch: PlanSettings) -> PlanSettings | None:
        """The settings of the spec that `spec_changes_for` writes for a sketch; None where there is no such spec."""
        run = self._run
        raw = merge_changes(self._raw, spec_changes_for(sketch, self._model, self._raw))
        try:
            spec = RunSpec.model_validate({name: self._read_section(name, value) for name, value in raw.items()})
        except ValidationError:
            return None
        world = run.parallel_dims.world_size
        other = resolve_run(spec, name=run.name, cluster=run.cluster, world_size=world, kind=run.kind)
        if run.trainer:
            other = other._replace(loop_optimizer=run.loop_optimizer)
            return settings_of(with_trainer(other, run.trainer, self._model))
        return self._with_tuned_defaults(other, repr(raw.get("zero")))

    def _with_tuned_defaults(self, run: ResolvedRun, zero: str) -> PlanSettings | None:
        """The settings of a run with its tuned defaults. Runs that differ in the batch alone and get the same defaults
        have the same settings but for the batch. `zero`: the values of that section.
        """
        if run.batch.micro_batch is None:
            return None
        micro_batch, accumulation = run.batch.micro_batch * run.sequences_a_row, run.batch.accumulation or 1
        place = (zero, run.parallel_dims, repr(run.spec.train.gradient_checkpointing))
        before, known, after = self._alike.get(place, (None, (), None))
        if before is None:
            before = settings_of(run._replace(tuned_defaults=asked_kernel(run, self._model)))
        before = before and before.with_values(micro_batch=micro_batch, accumulation=accumulation)
        defaults = tuned_defaults_for(run, self._model, before)
        if after is not None and defaults == known:
            return after.with_values(micro_batch=micro_batch, accumulation=accumulation)
        after = settings_of(run._replace(tuned_defaults=defaults))
        if before is not None and after is not None:
            self._alike[place] = before, defaults, after
        return after

    def _read_section(self, name: str, value: Any) -> Any:
        """The section of these values, read once, the run's own where nothing changed. Raises ValidationError."""
        section = getattr(self._run.spec, name)
        if value is self._raw.get(name):
            return section
        key = name, repr(value)
        if key not in self._sections:
            self._sections[key] = type(section).model_validate(value)
        return self._sections[key]


def search_settings(
    run: ResolvedRun,
    model: ModelFacts,
    device: Device | None,
    capacity: Capacity,
    rates: Rates | None = None,
    *,
    vary_parallel_dims: bool = True,
    with_nvme: bool = True,
) -> tuple[Alternative, ...]:
    """Every alternative of a run that has its tuned defaults, best first: those that fit with headroom by seconds a
    step, then the others by the memory that they lack. Empty while the run's ranks or micro-batch are unknown.
    `with_nvme`: offload to disks too.
    """
    settings = settings_of(run)
    if settings is None:
        return ()
    candidates = CandidateSettings(run, model)
    alternatives: list[Alternative] = []
    for base in _stage_and_offload_settings(model, settings, vary_parallel_dims):
        if not with_nvme and "nvme" in (base.optimizer_device, base.param_device):
            continue
        for sketch in _batch_settings(base, settings):
            other = candidates.resolve(sketch)
            if other is not None:
                alternatives.append(evaluate_alternative(model, settings, other, device, capacity, rates))
    return rank_alternatives(alternatives)


def rank_alternatives(alternatives: Iterable[Alternative]) -> tuple[Alternative, ...]:
    """Best first, those that certainly fit before others. Of those that are equally fast (within 1 % of the fastest of
    them), the one with more free memory, in steps of 5 % up to a fifth of it; then with fewer offloads; then by time.
    """
    ranked = sorted(alternatives, key=_sort_key)
    fitting = [alternative for alternative in ranked if fits_with_headroom(alternative)]
    return (*_rank_equally_fast(fitting), *ranked[len(fitting) :])


def _rank_equally_fast(fitting: Sequence[Alternative]) -> Iterator[Alternative]:
    start = 0
    while start < len(fitting):
        first, end = fitting[start], start + 1
        while end < len(fitting) and _is_equally_fast(first, fitting[end]):
            end += 1
        yield from sorted(fitting[start:end], key=_tie_key)
        start = end


def _is_equally_fast(first: Alternative, other: Alternative) -> bool:
    if _sort_key(first)[:2] != _sort_key(other)[:2]:
        return False
    return _seconds(other) <= _seconds(first) * (1 + EQUAL_SPEED)


def _seconds(alternative: Alternative) -> float:
    return alternative.time.seconds if alternative.time else 0.0


def _tie_key(alternative: Alternative) -> tuple[int, int, float, int, int]:
    """`sorted` keeps the order of what is equal here too."""
    settings = alternative.settings
    offloads = (settings.optimizer_device, settings.param_device, settings.activation_device)
    return (
        -int(min(alternative.fit.headroom or 0.0, _ENOUGH_HEADROOM) / _HEADROOM_STEP),
        sum({"none": 0, "cpu": 1, "nvme": 2}[device] for device in offloads),
        _seconds(alternative),
        alternative.gpu_peak,
        -settings.micro_batch,
    )


def filter_fitting(alternatives: Iterable[Alternative]) -> Iterator[Alternative]:
    """The ones that fit with headroom, as far as is known; none that needs disks of unknown size."""
    return (alternative for alternative in alternatives if fits_with_headroom(alternative))


def fits_with_headroom(alternative: Alternative) -> bool:
    """Does it fit with 5 % to spare, as far as is known, and without disks of unknown size?"""
    return may_fit(alternative) and (alternative.fit.headroom is None or alternative.fit.headroom >= HEADROOM)


def may_fit(alternative: Alternative) -> bool:
    """Does it fit, however tightly, as far as is known, and without disks of unknown size? A search goes by the middle
    of the estimate's range, since it has to end; `verdict` says of each result what is certain.
    """
    return alternative.fit.fits is not False and (not alternative.nvme_bytes or "NVMe" not in alternative.fit.unknown)


def _sort_key(alternative: Alternative) -> tuple[bool, tuple[bool, bool], float, int, int]:
    """Fitting ones first, those that are not certain and that need disks of unknown size after the others; then by
    time, or by the missing memory.
    """
    shortfall = -(alternative.fit.headroom or 0.0)
    fits = fits_with_headroom(alternative)
    return (
        not fits,
        (alternative.fit.fits is None and fits, alternative.fit.uncertain is not None and fits),
        _seconds(alternative) if fits else shortfall,
        alternative.host_peak,
        alternative.gpu_peak,
    )


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
    most_stages = model.num_layers if run.quantization is None and layer_class_names(model, 1) else 1
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
                if tensor * sequence > run.ranks_per_host or pipeline > most_stages:
                    continue
                if model.heads % (tensor * sequence) or model.kv_heads % tensor:
                    continue
                if tensor > 1 and not shard_model(model, tensor, run.tensor_plan).is_useful:
                    continue
                yield run.with_values(
                    tensor_parallel_size=tensor,
                    pipeline_parallel_size=pipeline,
                    sequence_parallel_size=sequence,
                    data_parallel_size=run.world_size // model_parallel_size,
                )


def _batch_settings(base: PlanSettings, run: PlanSettings) -> Iterator[PlanSettings]:
    """Micro-batches that keep the global batch, with and without checkpointing, and with that of the run."""
    sequences = run.micro_batch * run.accumulation * run.data_parallel_size
    if sequences % base.data_parallel_size:
        return
    for micro_batch in sorted({*(run.sequences_a_row * rows for rows in _MICRO_BATCHES), run.micro_batch}):
        rank_sequences = sequences // base.data_parallel_size
        if rank_sequences % micro_batch:
            continue
        yield from list_checkpointing(
            base.with_values(micro_batch=micro_batch, accumulation=rank_sequences // micro_batch)
        )


def list_alternatives(
    run: ResolvedRun, model: ModelFacts, device: Device | None, capacity: Capacity, rates: Rates | None = None
) -> tuple[Alternative, ...]:
    """The run among the same run at other stages and offloads, in rising order of them; none that the gates refuse as a
    rule (pipeline above stage 1). Empty while the run's ranks or micro-batch are unknown.
    """
    settings = settings_of(run)
    if settings is None:
        return ()
    candidates = CandidateSettings(run, model)
    others = (sketch if sketch == settings else candidates.resolve(sketch) for sketch in _ladder_settings(settings))
    return tuple(
        evaluate_alternative(model, settings, other, device, capacity, rates) for other in others if other is not None
    )


def _ladder_settings(run: PlanSettings) -> Iterator[PlanSettings]:
    current = (run.stage, run.optimizer_device, run.param_device)
    placements = [placement for placement in STAGES_AND_OFFLOADS if is_stage_supported(placement[0], run)]
    if current not in placements:
        placements = sorted(
            [*placements, current], key=lambda placement: (placement[0], placement[1] != "none", placement[2] != "none")
        )
    for stage, optimizer_device, param_device in placements:
        if (stage, optimizer_device, param_device) != current:
            yield with_offload(run, stage, optimizer_device, param_device)
            continue
        yield run
        if checkpointing_value(run) is not True:
            yield with_checkpointing(run, checkpointing=True)
