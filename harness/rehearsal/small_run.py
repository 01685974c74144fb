# SPDX-License-Identifier: Apache-2.0
"""Shrinks a run spec to the machine at hand, and records the changed keys with the reasons.

With accelerators the width, the sequence length and the settings of a rank stay; layers and ranks are fewer. On a CPU
the width shrinks too. Plans each candidate size, and selects the largest that fits. Reads and writes no file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from harness.facts.layer_keys import LAYER_KEYS, PER_LAYER_KEYS, reduce_layers
from harness.facts.model_lookup import ModelFacts, facts_from_config
from harness.findings import Finding, Fix
from harness.plan.planner import Plan, make_plan
from harness.rehearsal import small_model_config
from harness.run.resolved_run import ResolvedRun, resolve_run
from harness.spec.run_spec import RunSpec
from harness.units import format_bytes

STEPS, SAVE_STEPS = 6, 2
HIDDEN_ON_CPU, LAYERS_ON_CPU, RANKS_ON_CPU, LENGTH_ON_CPU = 256, 4, 2, 64
DISK_BYTES_PER_PARAMETER = 2 + 3 * 14 + 2
"""Bytes on disk a parameter: the folder to load, three checkpoints (the killed run's, the resumed run's and the one
under way), the export.
"""
_DISK_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class AvailableResources:
    """Resources of the machine that rehearses: `num_devices` accelerators (0: it trains on the CPU) of a kind that
    `harness plan` knows, bytes of free host memory, bytes of free disk.
    """

    num_devices: int
    gpu: str | None
    host_memory: int
    disk_bytes: int


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key that differs from the spec."""

    key: str
    was: Any
    now: Any
    why: str


@dataclass(frozen=True, slots=True)
class SmallRun:
    """The run of the rehearsal: its spec as plain values, its model's configuration, its plan, and the changed keys."""

    raw_spec: dict[str, Any]
    config: dict[str, Any]
    plan: Plan
    changes: tuple[KeyChange, ...]


@dataclass(slots=True)
class _SpecDraft:
    raw: dict[str, Any]
    changes: list[KeyChange] = field(default_factory=list)

    def set_key(self, key: str, value: Any, reason: str) -> None:
        """Set a key; None removes it."""
        *path, last = key.split(".")
        section = self.raw
        for name in path:
            section = section.setdefault(name, {})
        old_value = section.get(last)
        if old_value == value:
            return
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
        self.changes.append(KeyChange(key, old_value, value, reason))


def shrink_run(
    run: ResolvedRun, config: Mapping[str, Any], resources: AvailableResources, files: Mapping[str, str]
) -> SmallRun | Finding:
    """The largest rehearsal that fits, or the finding that says why none fits. `files`: the rehearsal's paths of
    `model`, `data` and `nvme`. Needs a run whose ranks and micro-batch are known.
    """
    narrow = resources.num_devices == 0
    reason = small_model_config.unsupported_reason(config, narrow=narrow)
    if reason is not None:
        return _unsupported_finding(f"this model cannot be rehearsed: {reason}")
    world = run.parallel_dims.world_size
    if world is None or run.batch.micro_batch is None:
        return _unsupported_finding("the number of ranks or the micro-batch is not known")
    smallest: SmallRun | None = None
    for small_config, ranks in _iter_candidates(run, config, resources):
        small = _plan_small_run(run, small_config, config, ranks, resources, files)
        smallest = small
        if _fits(small, resources):
            return small
    return _too_large_finding(smallest, resources)


def _iter_candidates(
    run: ResolvedRun, config: Mapping[str, Any], resources: AvailableResources
) -> Iterator[tuple[dict[str, Any], int]]:
    """(configuration, ranks), the largest first."""
    layers = small_model_config.find_value(config, LAYER_KEYS) or 1
    min_layers = run.parallel_dims.pipeline
    if resources.num_devices == 0:
        degrees = shrink_degrees(run, resources)
        ranks = max(prod(degrees.values()), min(run.parallel_dims.world_size or 1, RANKS_ON_CPU))
        degree = max(degrees.values())
        hidden_size = 2 * HIDDEN_ON_CPU if _parameters_on_nvme(run) else HIDDEN_ON_CPU
        for hidden in (hidden_size, hidden_size // 2):
            narrow_config = small_model_config.reduce_width(config, hidden, degree)
            yield reduce_layers(narrow_config, max(min_layers, LAYERS_ON_CPU)), ranks
        return
    world_size, model_parallel_size = run.parallel_dims.world_size or 1, prod(shrink_degrees(run, resources).values())
    ranks = min(world_size, resources.num_devices) // model_parallel_size * model_parallel_size
    share = max(min_layers, round(layers * ranks / world_size))
    for num_layers in sorted({max(min_layers, share * part // 8) for part in range(1, 9)}, reverse=True):
        yield reduce_layers(config, max(1, num_layers)), ranks


def shrink_degrees(run: ResolvedRun, resources: AvailableResources) -> dict[str, int]:
    """Degrees of tensor, pipeline and sequence parallelism: those of the run, halved until the devices suffice; on the
    CPU 2 at most.
    """
    dims = run.parallel_dims
    degrees = {"tensor": dims.tensor, "pipeline": dims.pipeline, "sequence": dims.sequence}
    if resources.num_devices == 0:
        return {name: min(2, degree) for name, degree in degrees.items()}
    while prod(degrees.values()) > resources.num_devices:
        largest = max(degrees, key=lambda name: degrees[name])
        degrees[largest] //= 2
    return degrees


def _parameters_on_nvme(run: ResolvedRun) -> bool:
    offload = run.spec.zero.offload_param
    return offload is not None and offload.device == "nvme"


def _plan_small_run(
    run: ResolvedRun,
    small_config: dict[str, Any],
    config: Mapping[str, Any],
    ranks: int,
    resources: AvailableResources,
    files: Mapping[str, str],
) -> SmallRun:
    draft = _SpecDraft(copy.deepcopy(run.spec.model_dump(mode="json", exclude_unset=True)))
    narrow = resources.num_devices == 0
    for key in [*small_config, *(set(config) - set(small_config))]:
        if small_config.get(key) != config.get(key):
            reason = "fewer layers" if key in (*LAYER_KEYS, *PER_LAYER_KEYS) else "narrower for the CPU"
            draft.changes.append(KeyChange(f"model.{key}", config.get(key), small_config.get(key), reason))
    degrees = shrink_degrees(run, resources)
    _set_model_and_data(draft, run, files)
    _set_length(draft, run, degrees["sequence"], narrow=narrow)
    _set_batch(draft, run, narrow=narrow)
    for name, degree in degrees.items():
        if degree != getattr(run.parallel_dims, name):
            draft.set_key(f"parallel.{name}_parallel_size", degree, f"{ranks} ranks")
    _set_steps(draft)
    _set_nvme_paths(draft, run, files)
    _set_machine(draft, ranks, resources)
    if narrow and small_config != dict(config):
        for key, value, reason in scale_element_settings(run, config, small_config, ranks):
            draft.set_key(key, value, reason)
    planned_spec = copy.deepcopy(draft.raw)
    planned_spec["model"] = {
        **{k: v for k, v in draft.raw["model"].items() if k != "name_or_path"},
        "config": small_config,
    }
    planned = resolve_run(RunSpec.model_validate(planned_spec), name=run.name, world_size=ranks)
    plan = make_plan(planned, with_alternatives=False)
    return SmallRun(draft.raw, small_config, plan, tuple(draft.changes))


def _set_model_and_data(draft: _SpecDraft, run: ResolvedRun, files: Mapping[str, str]) -> None:
    draft.set_key("model.config", None, "read from the folder")
    draft.set_key("model.random_init", None, "loaded like real weights")
    draft.set_key("model.revision", None, "not needed for a local folder")
    draft.set_key("model.tokenizer", None, "the folder's own")
    draft.set_key("model.name_or_path", files["model"], "a synthetic sharded folder, random weights")
    draft.set_key("data.train", files["data"], "synthetic records in the same format")
    draft.set_key("data.eval", None, "held out of the synthetic records")
    if run.spec.data.eval_fraction != 0.1:
        draft.set_key("data.eval_fraction", None, "held out of the synthetic records")
    draft.set_key("data.cache_dir", None, "nothing is shared with real runs")


def _set_length(draft: _SpecDraft, run: ResolvedRun, sequence: int, *, narrow: bool) -> None:
    """Set the sequence length: as many tokens per rank as in the run; few on the CPU."""
    length = run.spec.data.max_length * sequence // run.parallel_dims.sequence
    if narrow:
        draft.set_key("data.max_length", min(length, LENGTH_ON_CPU * sequence), "shorter for the CPU")
    elif sequence != run.parallel_dims.sequence:
        draft.set_key("data.max_length", length, "as many tokens per rank")


def _set_batch(draft: _SpecDraft, run: ResolvedRun, *, narrow: bool) -> None:
    micro = min(run.batch.micro_batch or 1, 2) if narrow else run.batch.micro_batch
    accumulation = min(run.batch.accumulation or 1, 2)
    draft.set_key("train.per_device_train_batch_size", micro, "smaller for the CPU")
    draft.set_key("train.global_batch_size", None, "fewer ranks")
    draft.set_key("train.gradient_accumulation_steps", accumulation, "a short step")


def _set_steps(draft: _SpecDraft) -> None:
    draft.set_key("train.num_train_epochs", None, "a few steps")
    draft.set_key("train.max_steps", STEPS, "a few steps")
    for key in ("warmup_steps", "decay_steps"):
        if draft.raw.get("scheduler", {}).get(key) is not None:
            draft.set_key(f"scheduler.{key}", 1, "a few steps")
    draft.set_key("checkpoint.save_steps", SAVE_STEPS, "to kill a rank after one")
    draft.set_key("checkpoint.save_total_limit", 1, "a few steps")
    draft.set_key("checkpoint.keep_every_steps", None, "a few steps")
    draft.set_key("checkpoint.keep_best", None, "a few steps")
    draft.set_key("eval", None, "not rehearsed")
    draft.set_key("logging.logging_steps", None, "every step is timed")
    draft.set_key("export.at_end", None, "a phase of its own")
    draft.set_key("launch.max_restarts", None, "the kill ends the first run")
    draft.set_key("launch.output_dir", "runs", "in the rehearsal's own folder")
    draft.set_key("launch.hostfile", None, "on this machine")
    draft.set_key("launch.min_hosts", None, "on this machine")


def _set_nvme_paths(draft: _SpecDraft, run: ResolvedRun, files: Mapping[str, str]) -> None:
    for name in ("offload_optimizer", "offload_param"):
        section = getattr(run.spec.zero, name)
        if section is not None and section.device == "nvme":
            draft.set_key(f"zero.{name}.nvme_path", files["nvme"], "the local disk")


def _set_machine(draft: _SpecDraft, ranks: int, resources: AvailableResources) -> None:
    draft.set_key("launch.num_gpus", ranks, f"{resources.num_devices or 'no'} accelerators here")
    cluster = draft.raw.get("cluster", {})
    draft.raw["cluster"] = {key: value for key, value in cluster.items() if key.endswith("bandwidth")}
    draft.set_key("cluster.gpu", (resources.gpu or None) if resources.num_devices else "cpu", "this machine")
    draft.set_key("cluster.host_memory", resources.host_memory, "free memory of this machine")


def _fits(small: SmallRun, resources: AvailableResources) -> bool:
    facts = small.plan.model
    if facts is None or small.plan.memory is None:
        return False
    disk_bytes = DISK_BYTES_PER_PARAMETER * facts.num_parameters + small.plan.memory.nvme_bytes
    return small.plan.fit.fits is not False and disk_bytes < _DISK_SHARE * resources.disk_bytes


def _unsupported_finding(message: str) -> Finding:
    return Finding("MM008", "error", message, "model", fix=Fix("rehearse a model of a known family"))


def _too_large_finding(smallest: SmallRun | None, resources: AvailableResources) -> Finding:
    message = "not even the smallest version of this run fits this machine"
    notes = []
    if smallest is not None and smallest.plan.memory is not None and smallest.plan.model is not None:
        memory, count = smallest.plan.memory, smallest.plan.model.num_parameters
        disk = (DISK_BYTES_PER_PARAMETER * count + memory.nvme_bytes) / _DISK_SHARE
        needs = f"{format_bytes(memory.host_peak)} of host memory, {format_bytes(disk)} of disk"
        notes.append(
            f"the smallest has {count:,} parameters and needs {needs}, {format_bytes(memory.gpu_peak)} a device"
        )
    free = f"{format_bytes(resources.host_memory)} of host memory, {format_bytes(resources.disk_bytes)} of disk"
    notes.append(f"free here: {free}, {resources.num_devices} accelerators")
    fix = Fix("free memory or disk, or name a folder on another disk with `--folder`")
    return Finding("MM009", "error", message, "cluster", notes=tuple(notes), fix=fix)


# Settings in elements (buckets, sub-groups, thresholds), scaled with a narrower model to keep its code paths.
#
# A parameter that stays gathered in the whole model stays gathered in the small one. Several sub-groups stay several.
# A shard that is large enough to swap stays so where the size allows it.

_MIN_SWAP_ELEMENTS = 1 << 18
"""The fewest elements of fp32 that DeepSpeed swaps: 1 MiB."""
_BUCKET_KEYS = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_max_live_parameters",
)
_REUSE_KEYS = ("stage3_max_reuse_distance",)
_REASON = "scaled with the parameters"


def scale_element_settings(
    run: ResolvedRun, config: Mapping[str, Any], small_config: Mapping[str, Any], ranks: int
) -> Iterator[tuple[str, int, str]]:
    """(key, value, reason) of the keys that the spec sets, and of the two that select the path of a parameter."""
    whole, small = facts_from_config(config, build=True).facts, facts_from_config(small_config, build=True).facts
    if whole is None or small is None or run.spec.zero.stage == 0:
        return
    zero = run.spec.zero
    factor = small.num_parameters / whole.num_parameters
    for key in (*_BUCKET_KEYS, *_REUSE_KEYS):
        value = getattr(zero, key, None)
        if value:
            yield f"zero.{key}", max(1024, int(value * factor)), _REASON
    if zero.stage < 3:
        return
    if zero.sub_group_size is not None:
        groups = max(
            2, min(4, whole.num_parameters // ((run.parallel_dims.world_size or 1) * max(1, zero.sub_group_size)))
        )
        yield (
            "zero.sub_group_size",
            max(_MIN_SWAP_ELEMENTS, small.num_parameters // ranks // groups),
            "a few sub-groups",
        )
    limit = zero.stage3_param_persistence_threshold
    limit = 100_000 if limit is None else limit
    yield (
        "zero.stage3_param_persistence_threshold",
        _scale_persistence_threshold(whole, small, limit),
        "the same parameters stay gathered",
    )
    offload = zero.offload_param
    if offload is not None and offload.device == "nvme":
        share = -(-small.largest_parameter // ranks)
        yield (
            "zero.offload_param.buffer_size",
            max(_MIN_SWAP_ELEMENTS, -(-share * 107 // 100)),
            "holds the largest shard",
        )


def _scale_persistence_threshold(whole: ModelFacts, small: ModelFacts, limit: int) -> int:
    """Between the largest parameter that stays gathered in the whole model and the smallest that does not."""
    pairs = zip(
        (*whole.before, *whole.largest_layer, *whole.after),
        (*small.before, *small.largest_layer, *small.after),
        strict=True,
    )
    return max((small_shape.numel for whole_shape, small_shape in pairs if whole_shape.numel <= limit), default=0)
