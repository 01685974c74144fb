# SPDX-License-Identifier: Apache-2.0
"""The effect of the batch and schedule keys of a spec: sequences a step, and the rates of the steps that are left.

Two specs may write the same batch in other keys, and one spec comes to another batch on other ranks; so a resume
compares what both come to. Pure functions of plain values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness.checkpoints.manifest import Manifest
from harness.run.batch_sizes import resolve_batch_sizes
from harness.run.schedule_steps import READ_FIELDS, count_steps, decay_steps, warmup_steps
from harness.spec.run_spec import SchedulerSpec

DS_SCHEDULES = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest")
Change = tuple[str, Any, Any, bool]
"""Key, saved value, value of this run, and whether the training that is left differs."""


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """The numbers of a run that resumes, where they are known: the launching side does not know an epoch's rows."""

    global_batch: int | None = None
    total_steps: int | None = None
    rows_per_epoch: int | None = None


def saved_global_batch(saved: Manifest) -> int | None:
    """Sequences a step of the run that saved a checkpoint; None where its spec does not tell."""
    recorded = (saved.get("geometry") or {}).get("global_batch")
    if isinstance(recorded, int):
        return recorded
    train = (saved.get("spec") or {}).get("train") or {}
    return resolve_batch_sizes(
        train.get("per_device_train_batch_size"),
        train.get("gradient_accumulation_steps"),
        train.get("global_batch_size"),
        _data_parallel_size(saved),
    ).global_batch


def _data_parallel_size(saved: Manifest) -> int:
    degrees = (saved.get("spec") or {}).get("parallel") or {}
    names = (f"{kind}_parallel_size" for kind in ("tensor", "pipeline", "sequence"))
    return saved.world_size // math.prod(int(degrees.get(name) or 1) for name in names)


def saved_order_rows(saved: Manifest) -> tuple[int, int] | None:
    """Rows of a micro-step and of a step by which the run that saved ordered its data; None where nothing tells."""
    geometry = saved.get("geometry") or {}
    micro_step, whole = geometry.get("order_micro_step"), geometry.get("order_step")
    if isinstance(micro_step, int) and isinstance(whole, int) and min(micro_step, whole) > 0:
        return micro_step, whole
    step = saved_global_batch(saved)
    train = (saved.get("spec") or {}).get("train") or {}
    accumulation = train.get("gradient_accumulation_steps")
    micro = train.get("per_device_train_batch_size")
    if step is None:
        return None
    if micro is None or (accumulation is not None and step % accumulation == 0):
        return step // (accumulation or 1), step
    return micro * _data_parallel_size(saved), step


def compare_effects(saved: Manifest, spec: Mapping[str, Any], numbers: RunNumbers) -> Iterator[Change]:
    """The changes of batch and schedule."""
    was, now = saved_global_batch(saved), numbers.global_batch
    if was is not None and now is not None and was != now:
        yield "train.global_batch_size", was, now, True
    is_known = saved.get("imported") is None or "scheduler" in (saved.get("spec") or {})
    if is_known:  # an import of a script does not know its schedule
        yield from _compare_schedules(saved, spec, numbers)


def _compare_schedules(saved: Manifest, spec: Mapping[str, Any], numbers: RunNumbers) -> Iterator[Change]:
    old_spec = saved.get("spec") or {}
    old_steps, steps, key = _total_steps(saved, spec, numbers)
    old, new = _scheduler_of(old_spec), _scheduler_of(spec)
    reads_steps = False
    if old is not None and new is not None:
        if old.type != new.type:
            yield "scheduler.type", old.type, new.type, True
        read = set(READ_FIELDS.get(old.type, ())) | set(READ_FIELDS.get(new.type, ()))
        reads_steps = "steps" in read
        warmups = [_length("warmup", one, count) for one, count in ((old, old_steps), (new, steps))]
        is_over = all(isinstance(n, int) and n <= saved.step for n in warmups)
        if warmups[0] != warmups[1] and not (is_over and old.type == new.type == "constant"):
            is_share = (old.warmup_steps, old.warmup_ratio) == (new.warmup_steps, new.warmup_ratio)
            reads_steps |= is_share
            if not is_share:
                name = "warmup_ratio" if new.warmup_steps is None else "warmup_steps"
                yield f"scheduler.{name}", warmups[0], warmups[1], True
        if "decay_steps" in read:
            decays = [_length("decay", one, count) for one, count in ((old, old_steps), (new, steps))]
            is_share = (old.decay_steps, old.decay_ratio) == (new.decay_steps, new.decay_ratio)
            if decays[0] != decays[1] and not is_share:
                name = "decay_ratio" if new.decay_steps is None else "decay_steps"
                yield f"scheduler.{name}", decays[0], decays[1], True
        for name in sorted(read - {"steps", "decay_steps"}):
            if getattr(old, name) != getattr(new, name):
                yield f"scheduler.{name}", getattr(old, name), getattr(new, name), True
    if old_steps is not None and steps is not None and old_steps != steps:
        yield key, old_steps, steps, reads_steps


def _total_steps(
    saved: Manifest, spec: Mapping[str, Any], numbers: RunNumbers
) -> tuple[int | str | None, int | str | None, str]:
    """Steps of both runs, as epochs where neither side knows more, and the key that gives this run's."""
    old, new = ((one.get("train") or {}) for one in (saved.get("spec") or {}, spec))
    key = "train.max_steps" if new.get("max_steps") is not None else "train.num_train_epochs"
    steps: int | None = new["max_steps"] if key == "train.max_steps" else numbers.total_steps
    old_steps: int | None = old.get("max_steps")
    if old_steps is None:
        recorded, batch = saved.get("total_steps"), saved_global_batch(saved)
        if isinstance(recorded, int):
            old_steps = recorded
        elif numbers.rows_per_epoch and batch:
            old_steps = count_steps(None, old.get("num_train_epochs"), numbers.rows_per_epoch // batch)
    if steps is None and old.get("max_steps") is None:
        if old_steps is not None and old.get("num_train_epochs") == new.get("num_train_epochs"):
            return old_steps, old_steps, key
        epochs = [one.get("num_train_epochs") or 1.0 for one in (old, new)]
        return f"{epochs[0]:g} epochs", f"{epochs[1]:g} epochs", key
    return old_steps, steps, key


def _scheduler_of(spec: Mapping[str, Any]) -> SchedulerSpec | None:
    """The harness's own schedule; None where DeepSpeed makes one from a `scheduler` block."""
    if schedule_kind(spec) != "harness":
        return None
    fields = {k: v for k, v in (spec.get("scheduler") or {}).items() if k in SchedulerSpec.model_fields}
    return SchedulerSpec.model_construct(**fields)


def schedule_kind(spec: Mapping[str, Any]) -> str:
    """The owner of the schedule of a run: `harness`, `deepspeed` or `torch`."""
    block = (spec.get("deepspeed") or {}).get("scheduler")
    if not isinstance(block, Mapping) or not block:
        return "harness"
    return "deepspeed" if block.get("type") in DS_SCHEDULES else "torch"


def _length(part: str, scheduler: SchedulerSpec, steps: int | str | None) -> int | str:
    """Steps of the warm-up or of the decay; a share where all steps are not known."""
    ratio, count = (warmup_steps, decay_steps)[part == "decay"], getattr(scheduler, f"{part}_steps")
    if isinstance(steps, int) or count is not None:
        return ratio(scheduler, steps if isinstance(steps, int) else 0)
    share = getattr(scheduler, f"{part}_ratio")
    return f"{share:g} of all steps" if share else 0
