# SPDX-License-Identifier: Apache-2.0
"""`harness plan --longest`: the longest sequence that fits, by settings that the gates accept, as the plan has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.check.check_file import CheckedFile, check_file
from harness.errors import ExitCode, UserError
from harness.facts.model_lookup import find_positions
from harness.findings import Finding, Fix
from harness.plan.counted_plan import CountedPlan
from harness.plan.memory.memory_estimate import MemoryEstimate, check_fit, estimate_memory
from harness.plan.plan_usage import usage_error
from harness.plan.planner import make_plan
from harness.plan.search import sequence_lengths as lengths
from harness.plan.search.pinned_keys import keep_pinned
from harness.plan.search.sequence_lengths import LongestSetting
from harness.plan.search.settings_search import CandidateSettings
from harness.plan.search.spec_changes import merge_changes, spec_changes_for
from harness.plan.settings.plan_settings import PlanSettings, settings_of
from harness.run.resolved_run import ResolvedRun
from harness.spec.parse.source import KeyPath
from harness.spec.yaml_text import spec_as_yaml

_MAX_CHECKED = 24
_MAX_EXACT = 4
_NEAR = 0.9
_PROBE_LENGTH = 1 << 16
_LENGTH_KEY = "data.max_length"


@dataclass(frozen=True)
class LongestSequence:
    """`length` in tokens, a multiple of `unit`; its plan and the keys that make it. `binding`: the memory that is full
    beyond it. `safe_length` leaves 5 % free. `positions`: those that the model was made for, None where not known;
    `is_limited`: the model takes no more, whatever fits. `others`: the longest of other settings, not checked by gates.
    """

    name: str
    length: int
    unit: int
    safe_length: int
    binding: str
    counted: CountedPlan
    spec: Mapping[str, Any]
    positions: int | None
    is_limited: bool
    others: tuple[LongestSetting, ...]
    beyond: MemoryEstimate
    """The memory of `unit` tokens more."""


def find_longest_sequence(
    run: ResolvedRun,
    raw: Mapping[str, Any],
    file: str,
    hostfile: str | None,
    gpu: str | None = None,
    pinned: Sequence[KeyPath] = (),
) -> LongestSequence | None:
    """None where nothing fits, however short. `gpu` is the device where the spec names none. Raises UserError where the
    model, the ranks, the batch or the memory of the GPU are not known, and where no setting has the `pinned` values.
    """
    probe = _at_length(run, raw, file, hostfile, _PROBE_LENGTH) or run
    plan = make_plan(probe, Path.cwd(), gpu, with_alternatives=False, by_name=True)
    base = CountedPlan.of(plan)
    if base is None:
        missing = [finding for finding in plan.findings if finding.gate in ("MM001", "MM002")]
        raise UserError([finding._replace(severity="error") for finding in missing], ExitCode.FINDINGS)
    if plan.capacity.gpu is None and plan.capacity.host is None:
        raise usage_error("`--longest` needs the memory of the GPU", "set `cluster.gpu`, such as `H100-80GB`")
    pad, spec_model = run.spec.data.pad_to_multiple_of, run.spec.model
    positions = find_positions(spec_model.name_or_path, spec_model.config)
    ranked, limit = [], lengths.MAX_LENGTH
    for _ in range(2):  # again where a gate names the positions that the model has
        variants = _activation_offload(run, raw, file, hostfile, base.settings)
        sketches = lengths.list_settings(base.model, base.settings, variants)
        settings = [found for found in map(_resolver(base, variants), sketches) if found is not None]
        settings = list(keep_pinned(settings, lambda each: each, base.model, raw, pinned))
        ranked = lengths.rank_settings(base.model, settings, pad, plan.device, plan.capacity, plan.rates, limit)
        found = _first_that_passes(run, raw, file, hostfile, gpu, ranked, base, pad)
        if not isinstance(found, int):
            break
        limit = positions = found
    if found is None or isinstance(found, int):
        return None
    is_limited = limit < lengths.MAX_LENGTH and found.length + found.unit > limit
    return replace(found, positions=found.positions or positions, is_limited=is_limited)


def _resolver(base: CountedPlan, variants: Sequence[PlanSettings]) -> Callable[[PlanSettings], PlanSettings | None]:
    """The settings of the spec that is written for a sketch; a variant keeps where its activations wait."""
    candidates = CandidateSettings(base.plan.run, base.model)

    def resolve(sketch: PlanSettings) -> PlanSettings | None:
        found = candidates.resolve(sketch)
        return replace(found, activation_device=sketch.activation_device) if found and variants else found

    return resolve


def _first_that_passes(
    run: ResolvedRun,
    raw: Mapping[str, Any],
    file: str,
    hostfile: str | None,
    gpu: str | None,
    ranked: Sequence[LongestSetting],
    base: CountedPlan,
    pad: int | None,
) -> LongestSequence | int | None:
    """The first that passes the gates, or the number of positions of a model that takes no more; None for neither."""
    model = base.model

    def check(settings: PlanSettings, length: int) -> tuple[dict[str, Any], CheckedFile]:
        changed = merge_changes(raw, spec_changes_for(settings, model, raw))
        changed = merge_changes(changed, {"data": {"max_length": length}, "train": _activation_keys(settings, base)})
        world = None if run.cluster is not None else run.parallel_dims.world_size
        text = spec_as_yaml(changed)
        return changed, check_file(
            file, text=text, hostfile=hostfile, world_size=world, launching=True, allow_code=True
        )

    def plan_at(settings: PlanSettings, length: int) -> CountedPlan | None:
        checked = check(settings, length)[1]
        if checked.run is None or not checked.report.ok:
            return None
        return CountedPlan.of(make_plan(checked.run, Path.cwd(), gpu, with_alternatives=False, by_name=True))

    best: tuple[int, int, LongestSetting, CountedPlan] | None = None
    exact: dict[LongestSetting, LongestSetting] = {}
    for each in ranked[:_MAX_CHECKED]:
        if len(exact) == _MAX_EXACT or (best is not None and each.length < _NEAR * best[0]):
            break
        errors = [finding for finding in check(each.settings, each.length)[1].report.findings if finding.is_error]
        limits = [_positions_in(finding) for finding in errors if _positions_in(finding)]
        if limits:
            return limits[0]
        if errors:
            continue
        unit = lengths.unit_of(each.settings, pad)
        length, counted = _exact_length(plan_at, each, unit)
        exact[each] = replace(each, length=length, time=counted.time if counted is not None else None)
        if counted is not None and (best is None or length > best[0]):
            best = (length, unit, each, counted)
    if best is None:
        return None
    length, unit, each, counted = best
    changed, checked = check(each.settings, length)
    device, capacity = counted.plan.device, counted.plan.capacity
    safe = lengths.find_longest(
        model, counted.settings, unit, device, capacity, headroom=lengths.HEADROOM, limit=length
    )
    beyond = estimate_memory(model, replace(counted.settings, seq_length=length + unit), device)
    name, named = run.spec.model.name_or_path or run.name, map(_positions_in, checked.report.findings)
    positions, others = next(filter(None, named), None), _others([exact.get(one, one) for one in ranked], exact[each])
    binding = check_fit(beyond, capacity).binding
    return LongestSequence(name, length, unit, safe, binding, counted, changed, positions, False, others, beyond)


def _exact_length(
    plan_at: Callable[[PlanSettings, int], CountedPlan | None], each: LongestSetting, unit: int
) -> tuple[int, CountedPlan | None]:
    """The longest that the plan itself says fits, near the length of the arithmetic, and that plan."""
    plans: dict[int, CountedPlan | None] = {}

    def holds(units: int) -> bool:
        counted = plans[units] = plan_at(each.settings, units * unit)
        return counted is not None and counted.plan.fit.fits is not False

    units = each.length // unit
    if holds(units):
        while (units + 1) * unit <= lengths.MAX_LENGTH and holds(units + 1):
            units += 1
    else:
        units = lengths.largest_number(holds, units - 1)
    return units * unit, plans.get(units) if units else None


def _at_length(
    run: ResolvedRun, raw: Mapping[str, Any], file: str, hostfile: str | None, length: int, **train: Any
) -> ResolvedRun | None:
    """The run with sequences of so many tokens and micro-batches of one, whatever the gates say."""
    batch = {"per_device_train_batch_size": 1, "gradient_checkpointing": True, **train}
    if run.batch.global_batch is not None:
        batch |= {"global_batch_size": run.batch.global_batch, "gradient_accumulation_steps": None}
    changed = merge_changes(raw, {"data": {"max_length": length}, "train": batch})
    world = None if run.cluster is not None else run.parallel_dims.world_size
    return check_file(file, text=spec_as_yaml(changed), hostfile=hostfile, world_size=world, allow_code=True).run


def _activation_offload(
    run: ResolvedRun, raw: Mapping[str, Any], file: str, hostfile: str | None, settings: PlanSettings
) -> list[PlanSettings]:
    """The settings with the inputs of recomputed layers in host memory, where the plan counts that key."""
    moved = _at_length(run, raw, file, hostfile, _PROBE_LENGTH, offload_activations=True)
    moved_settings = settings_of(moved) if moved is not None else None
    if moved_settings is None or moved_settings.activation_device == settings.activation_device:
        return []
    return [replace(settings, activation_device=moved_settings.activation_device)]


def _activation_keys(settings: PlanSettings, base: CountedPlan) -> dict[str, Any]:
    is_moved = settings.activation_device != base.settings.activation_device
    return {"offload_activations": True} if is_moved else {}


def _positions_in(finding: Finding) -> int | None:
    """The positions that a finding about `data.max_length` names in its fix."""
    sets = finding.fix.sets if finding.fix is not None else Fix("").sets
    value = sets.get(_LENGTH_KEY)
    return value if isinstance(value, int) else None


def _others(ranked: Sequence[LongestSetting], chosen: LongestSetting) -> tuple[LongestSetting, ...]:
    """The longest of each other place and Ulysses degree."""
    best: dict[tuple[object, ...], LongestSetting] = {}
    for each in sorted(ranked, key=lambda one: -one.length):
        one = each.settings
        key = (one.stage, one.optimizer_device, one.param_device, one.sequence_parallel_size, one.activation_device)
        best.setdefault(key, each)
    return tuple(each for each in best.values() if each is not chosen and each.length)
