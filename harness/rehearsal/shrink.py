"""A run spec made small enough for the machine at hand: which keys change, from what to what, and why.

With accelerators: the same width, sequence length and settings a rank, with fewer layers and ranks. On a CPU the width
is scaled too. Plans each size that it considers, and takes the largest that fits. Reads and writes no file.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from harness.findings import Finding, Fix
from harness.plan.plan import Plan, make_plan
from harness.plan.run import Run, resolve
from harness.rehearsal import elements, sizes
from harness.spec.model import RunSpec
from harness.units import format_bytes

STEPS, SAVE = 6, 2
HIDDEN_ON_CPU, LAYERS_ON_CPU, RANKS_ON_CPU, LENGTH_ON_CPU = 256, 4, 2, 64
FILES_PER_PARAMETER = 2 + 3 * 14 + 2
"""Bytes on disk for each: the folder to load, three checkpoints (the killed run's, the resumed run's and the one that
it writes meanwhile), the export.
"""
_DISK_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Room:
    """What there is where the rehearsal runs: `devices` accelerators (0: it trains on the CPU) of a kind that `harness
    plan` knows, bytes of host memory that are free, bytes of disk that are free.
    """

    devices: int
    gpu: str | None
    host_memory: int
    disk: int


@dataclass(frozen=True, slots=True)
class Change:
    """One key that is not what the spec says."""

    key: str
    was: Any
    now: Any
    why: str


@dataclass(frozen=True, slots=True)
class Small:
    """The run to rehearse with: a spec as plain values, the model's configuration, its plan, and what was changed."""

    raw: dict[str, Any]
    config: dict[str, Any]
    plan: Plan
    changes: tuple[Change, ...]


@dataclass(slots=True)
class _Draft:
    raw: dict[str, Any]
    changes: list[Change] = field(default_factory=list)

    def set(self, key: str, now: Any, why: str) -> None:
        """Change a key; None takes it away."""
        *path, last = key.split(".")
        section = self.raw
        for name in path:
            section = section.setdefault(name, {})
        was = section.get(last)
        if was == now:
            return
        if now is None:
            section.pop(last, None)
        else:
            section[last] = now
        self.changes.append(Change(key, was, now, why))


def shrink(run: Run, config: Mapping[str, Any], room: Room, files: Mapping[str, str]) -> Small | Finding:
    """The largest rehearsal that fits, or the finding that says why there is none. `files`: where the rehearsal keeps
    `model`, `data` and `nvme`. Needs a run whose ranks and micro-batch are known.
    """
    narrow = room.devices == 0
    why = sizes.why_not(config, narrow=narrow)
    if why is not None:
        return _cannot(f"this model cannot be rehearsed: {why}")
    world = run.degrees.world
    if world is None or run.batch.per_device is None:
        return _cannot("the number of ranks or the micro-batch is not known")
    last: Small | None = None
    for made, ranks in _candidates(run, config, room):
        small = _small(run, made, config, ranks, room, files)
        last = small
        if _fits(small, room):
            return small
    return _too_large(last, room)


def _candidates(run: Run, config: Mapping[str, Any], room: Room) -> Iterator[tuple[dict[str, Any], int]]:
    """(configuration, ranks), the largest first."""
    layers = sizes.value(config, sizes.LAYERS) or 1
    least = run.degrees.pipeline
    if room.devices == 0:
        degrees = small_degrees(run, room)
        ranks, degree = max(prod(degrees.values()), min(run.degrees.world or 1, RANKS_ON_CPU)), max(degrees.values())
        wide = 2 * HIDDEN_ON_CPU if _parameters_on_nvme(run) else HIDDEN_ON_CPU
        for hidden in (wide, wide // 2):
            yield sizes.with_layers(sizes.narrowed(config, hidden, degree), max(least, LAYERS_ON_CPU)), ranks
        return
    whole, fixed = run.degrees.world or 1, prod(small_degrees(run, room).values())
    ranks = min(whole, room.devices) // fixed * fixed
    share = max(least, round(layers * ranks / whole))
    for count in sorted({max(least, share * part // 8) for part in range(1, 9)}, reverse=True):
        yield sizes.with_layers(config, max(1, count)), ranks


def small_degrees(run: Run, room: Room) -> dict[str, int]:
    """Tensor, pipeline and sequence parallelism of the rehearsal: as in the run, or halved until there are devices
    enough; on the CPU 2 in place of more.
    """
    d = run.degrees
    found = {"tensor": d.tensor, "pipeline": d.pipeline, "sequence": d.sequence}
    if room.devices == 0:
        return {name: min(2, degree) for name, degree in found.items()}
    while prod(found.values()) > room.devices:
        largest = max(found, key=lambda name: found[name])
        found[largest] //= 2
    return found


def _parameters_on_nvme(run: Run) -> bool:
    offload = run.spec.zero.offload_param
    return offload is not None and offload.device == "nvme"


def _small(
    run: Run, made: dict[str, Any], config: Mapping[str, Any], ranks: int, room: Room, files: Mapping[str, str]
) -> Small:
    draft = _Draft(copy.deepcopy(run.spec.model_dump(mode="json", exclude_unset=True)))
    narrow = room.devices == 0
    for key in [*made, *(set(config) - set(made))]:
        if made.get(key) != config.get(key):
            why = "fewer layers" if key in (*sizes.LAYERS, "layer_types", "mlp_layer_types") else "narrower for the CPU"
            draft.changes.append(Change(f"model.{key}", config.get(key), made.get(key), why))
    degrees = small_degrees(run, room)
    _model_and_data(draft, run, files)
    _length(draft, run, degrees["sequence"], narrow=narrow)
    _batch(draft, run, narrow=narrow)
    for name, degree in degrees.items():
        if degree != getattr(run.degrees, name):
            draft.set(f"parallel.{name}_parallel_size", degree, f"{ranks} ranks")
    _steps(draft)
    _places(draft, run, files)
    _machine(draft, ranks, room)
    if narrow and made != dict(config):
        for key, now, why in elements.scaled(run, config, made, ranks):
            draft.set(key, now, why)
    planned = copy.deepcopy(draft.raw)
    planned["model"] = {**{k: v for k, v in draft.raw["model"].items() if k != "name_or_path"}, "config": made}
    plan = make_plan(resolve(RunSpec.model_validate(planned), name=run.name, world_size=ranks), gpu=None)
    return Small(draft.raw, made, plan, tuple(draft.changes))


def _model_and_data(draft: _Draft, run: Run, files: Mapping[str, str]) -> None:
    draft.set("model.config", None, "read from the folder")
    draft.set("model.random_init", None, "loaded like a real one")
    draft.set("model.revision", None, "a local folder has none")
    draft.set("model.tokenizer", None, "the folder's own")
    draft.set("model.name_or_path", files["model"], "a synthetic sharded folder, random weights")
    draft.set("data.train", files["data"], "synthetic records in the same format")
    draft.set("data.eval", None, "held out of the synthetic records")
    if run.spec.data.eval_fraction != 0.1:
        draft.set("data.eval_fraction", None, "held out of the synthetic records")
    draft.set("data.cache_dir", None, "nothing is shared with real runs")


def _length(draft: _Draft, run: Run, sequence: int, *, narrow: bool) -> None:
    """As many tokens a rank as in the run; on the CPU few."""
    length = run.spec.data.max_length * sequence // run.degrees.sequence
    if narrow:
        draft.set("data.max_length", min(length, LENGTH_ON_CPU * sequence), "shorter for the CPU")
    elif sequence != run.degrees.sequence:
        draft.set("data.max_length", length, "as many tokens a rank")


def _batch(draft: _Draft, run: Run, *, narrow: bool) -> None:
    micro = min(run.batch.per_device or 1, 2) if narrow else run.batch.per_device
    accumulation = min(run.batch.accumulation or 1, 2)
    draft.set("train.per_device_train_batch_size", micro, "smaller for the CPU")
    draft.set("train.global_batch_size", None, "fewer ranks")
    draft.set("train.gradient_accumulation_steps", accumulation, "a short step")


def _steps(draft: _Draft) -> None:
    draft.set("train.num_train_epochs", None, "a few steps")
    draft.set("train.max_steps", STEPS, "a few steps")
    for key in ("warmup_steps", "decay_steps"):
        if draft.raw.get("scheduler", {}).get(key) is not None:
            draft.set(f"scheduler.{key}", 1, "a few steps")
    draft.set("checkpoint.save_steps", SAVE, "to be killed after one")
    draft.set("checkpoint.save_total_limit", 1, "a few steps")
    draft.set("checkpoint.keep_every_steps", None, "a few steps")
    draft.set("checkpoint.keep_best", None, "a few steps")
    draft.set("eval", None, "not rehearsed")
    draft.set("logging.logging_steps", None, "every step is timed")
    draft.set("export.at_end", None, "rehearsed by itself")
    draft.set("launch.max_restarts", None, "the kill is the end of the first run")
    draft.set("launch.output_dir", "runs", "in the rehearsal's own folder")
    draft.set("launch.hostfile", None, "on this machine")
    draft.set("launch.min_hosts", None, "on this machine")


def _places(draft: _Draft, run: Run, files: Mapping[str, str]) -> None:
    for name in ("offload_optimizer", "offload_param"):
        section = getattr(run.spec.zero, name)
        if section is not None and section.device == "nvme":
            draft.set(f"zero.{name}.nvme_path", files["nvme"], "the disk at hand")


def _machine(draft: _Draft, ranks: int, room: Room) -> None:
    draft.set("launch.num_gpus", ranks, f"{room.devices or 'no'} accelerators here")
    keep = draft.raw.get("cluster", {})
    draft.raw["cluster"] = {key: value for key, value in keep.items() if key.endswith("bandwidth")}
    draft.set("cluster.gpu", (room.gpu or None) if room.devices else "cpu", "this machine")
    draft.set("cluster.host_memory", room.host_memory, "this machine, what is free")


def _fits(small: Small, room: Room) -> bool:
    facts = small.plan.model
    if facts is None or small.plan.memory is None:
        return False
    written = FILES_PER_PARAMETER * facts.num_parameters + small.plan.memory.nvme
    return small.plan.fit.fits is not False and written < _DISK_SHARE * room.disk


def _cannot(message: str) -> Finding:
    return Finding("MM008", "error", message, "model", fix=Fix("rehearse a model of a known family"))


def _too_large(last: Small | None, room: Room) -> Finding:
    message = "no size of this run fits here, not even the smallest"
    notes = []
    if last is not None and last.plan.memory is not None and last.plan.model is not None:
        memory, count = last.plan.memory, last.plan.model.num_parameters
        disk = (FILES_PER_PARAMETER * count + memory.nvme) / _DISK_SHARE
        need = f"{format_bytes(memory.host_peak)} of host memory, {format_bytes(disk)} of disk"
        notes.append(
            f"the smallest has {count:,} parameters and needs {need}, {format_bytes(memory.gpu_peak)} a device"
        )
    free = f"{format_bytes(room.host_memory)} of host memory, {format_bytes(room.disk)} of disk"
    notes.append(f"free here: {free}, {room.devices} accelerators")
    fix = Fix("free memory or disk, or name a folder on another disk with `--folder`")
    return Finding("MM009", "error", message, "cluster", notes=tuple(notes), fix=fix)
