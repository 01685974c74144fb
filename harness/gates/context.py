# SPDX-License-Identifier: Apache-2.0
"""The input of a gate: the run, its file, and DeepSpeed's own keys wherever the user wrote them. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from harness.errors import UnreadableKeyError
from harness.facts.deepspeed_keys import block_keys, is_typed_block
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix, Label, Severity
from harness.run.resolved_run import ResolvedRun
from harness.spec.deepspeed_mapping import spec_field_of
from harness.spec.deepspeed_optimizer import deepspeed_optimizer
from harness.spec.parse.source import KeyPath, Source, join_key
from harness.spec.run_spec import Consumer, Section

if TYPE_CHECKING:
    from harness.facts.model_lookup import ModelFacts, ModelLookup
    from harness.hostinfo.host_survey import Survey
    from harness.plan.planner import Plan

_MISSING = object()
_FROM_GATE = cast("Severity", "")
"""The severity of a finding that names none, until `check_run` fills in that of its gate."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "switch": (bool,),
    "flag": (bool,),
    "int": (int,),
    "number": (int, float),
    "block": (dict,),
    "dict": (dict,),
    "str": (str,),
}


def _coerce_as_deepspeed(path: tuple[str, ...], value: Any, target: DeepSpeedTarget) -> Any:
    """The value as DeepSpeed reads it, or missing where it is null. Raises UnreadableKeyError for a value of a type
    that the key does not take.
    """
    parent = ".".join(path[:-1])
    keys = block_keys(parent)
    key = keys.get(path[-1]) if keys else None
    if key is None or key.type not in _TYPES:
        return value
    if isinstance(value, _TYPES[key.type]) and not (isinstance(value, bool) and key.type in ("int", "number")):
        return value
    from harness.facts.deepspeed_values import interpret_value

    reading = interpret_value(key, value, is_typed=is_typed_block(parent, target.version), version=target.version)
    if reading.outcome == "refused" and not reading.out_of_range and value is not None:
        raise UnreadableKeyError(join_key(path))
    return _MISSING if reading.outcome == "refused" else reading.value


def _value_below(value: Any, path: KeyPath) -> Any:
    """The value at a path of maps and sections, or missing."""
    for name in path:
        if isinstance(value, Section):
            value = getattr(value, str(name)) if value.is_written(str(name)) else _MISSING
        else:
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
    return value


class OptimizerConfig(NamedTuple):
    """The optimizer as DeepSpeed will read it. `type` is None when a DeepSpeed JSON leaves it to the script."""

    type: str | None
    params: Mapping[str, Any]
    key: str
    """The section of the spec that says it: `optimizer`, or `deepspeed.optimizer`."""

    @property
    def name(self) -> str:
        """`type` in lower case, which is how DeepSpeed compares its own names; empty if there is none."""
        return self.type.lower() if isinstance(self.type, str) else ""


@dataclass(frozen=True)
class Context:
    """A run under check, for one DeepSpeed. `consumer` reads a DeepSpeed JSON; it is None for a run spec."""

    run: ResolvedRun
    source: Source
    target: DeepSpeedTarget
    consumer: Consumer | None = None
    accelerator: str | None = None
    """torch's name of the device, such as `cuda` or `cpu`, where it is known."""
    survey: Survey | None = None
    """The answers of the hosts, where there is a survey."""
    allow_code: bool = False
    """Does the user allow code that the spec chooses, or does nothing of the spec's run?"""
    unreadable: frozenset[KeyPath] = frozenset()
    """The paths of the spec whose values are wrong: to read one raises UnreadableKeyError."""

    # DeepSpeed's own keys

    def spec_key(self, key: str) -> str:
        """The spec's key for a key of DeepSpeed's JSON: a field of its own, or one below `deepspeed`."""
        path = tuple(key.split("."))
        return join_key(spec_field_of(path) or ("deepspeed", *path))

    def ds(self, key: str, default: Any = None) -> Any:
        """The value of a DeepSpeed key wherever the user wrote it; `default` where it is absent, null or `auto`.

        Raises UnreadableKeyError for a value of a type that the key does not take: the loader has a finding for it, and
        nobody knows what it should be.
        """
        path = tuple(key.split("."))
        field = spec_field_of(path)
        if field is None:
            value: Any = self.run.spec.deepspeed
            for depth, part in enumerate(path):
                if depth and not (isinstance(value, dict) or value in (_MISSING, None, "auto")):
                    value = _coerce_as_deepspeed(path[:depth], value, self.target)
                value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
            value = value if value is _MISSING or value == "auto" else _coerce_as_deepspeed(path, value, self.target)
        elif self.run.kind == "deepspeed-json" and not self.source.has_key(join_key(field)):
            value = _MISSING
        else:
            value = self.run.spec
            for name in field:
                value = getattr(value, str(name), None)
        return default if value is _MISSING or value is None or value == "auto" else value

    def has_key(self, key: str) -> bool:
        """Does the user's file have this DeepSpeed key at all, with whatever value? (`auto` counts.)"""
        return self._written_value(key) is not _MISSING

    def is_auto(self, key: str) -> bool:
        """Is this DeepSpeed key given as the text `auto`?"""
        return bool(self._written_value(key) == "auto")

    def is_enabled(self, block: str) -> bool:
        """Has this block `enabled: true`?"""
        return self.ds(f"{block}.enabled") is True

    def _written_value(self, key: str) -> Any:
        path: KeyPath = tuple(key.split("."))
        spec_path = spec_field_of(path) or ("deepspeed", *path)
        if self.unreadable:
            from harness.spec.partial_spec import require_readable

            require_readable(spec_path, self.unreadable)
        if self.run.kind != "deepspeed-json":
            return _value_below(self.source.data, spec_path)
        value = _value_below(self.source.data, path)
        is_override = spec_path in self.source.spots  # `--set` of a run spec's key
        if is_override or (value is _MISSING and self.source.has_key(join_key(spec_path))):  # or an old name
            value = _value_below(self.run.spec, spec_path)
            value = _MISSING if value is None else value
        return value

    # What most gates ask for

    @property
    def stage(self) -> int:
        """The ZeRO stage."""
        return self.run.spec.zero.stage

    @property
    def tensor_parallel_size(self) -> int:
        """Tensor-parallel degree."""
        return self.run.parallel_dims.tensor

    @property
    def autotp_size(self) -> int:
        """The degree of DeepSpeed's AutoTP. In a pipeline of a run spec the harness shards the layers itself."""
        dims = self.run.parallel_dims
        return dims.autotp if self.run.kind == "spec" else dims.tensor

    @property
    def pipeline_parallel_size(self) -> int:
        """Pipeline stages."""
        return self.run.parallel_dims.pipeline

    @property
    def sequence_parallel_size(self) -> int:
        """Sequence-parallel degree."""
        return self.run.parallel_dims.sequence

    @property
    def world_size(self) -> int | None:
        """Ranks."""
        return self.run.parallel_dims.world_size

    @property
    def data_parallel_size(self) -> int | None:
        """Data-parallel ranks; None where the world is unknown or does not divide."""
        return self.run.parallel_dims.data

    @property
    def accumulation(self) -> int | None:
        """Micro-batches a step; None where the reader of the file decides it, or unknown ranks."""
        batch = self.run.batch
        if self.is_auto("gradient_accumulation_steps"):
            return None
        if batch.accumulation is None and None in (batch.micro_batch, batch.global_batch):
            return 1  # the key is absent, and 1 is what DeepSpeed and accelerate take then
        return batch.accumulation

    @property
    def slots(self) -> tuple[int, ...] | None:
        """Ranks of each host, where a hostfile is known."""
        return tuple(host.slots for host in self.run.cluster.hosts) if self.run.cluster else None

    @property
    def has_stage(self) -> bool:
        """Does the file give the ZeRO stage, other than as `auto`?"""
        return self.has_key("zero_optimization.stage") and not self.is_auto("zero_optimization.stage")

    @property
    def is_optimizer_offloaded(self) -> bool:
        """Has `offload_optimizer` a device other than `none`, at whatever stage? (DeepSpeed picks its class by it.)"""
        return self.offload_device("offload_optimizer") != "none"

    @property
    def is_nvme_used(self) -> bool:
        """Is anything offloaded to NVMe?"""
        return "nvme" in (self.offload_device("offload_optimizer"), self.offload_device("offload_param"))

    def offload_device(self, section: str) -> str:
        """`none`, `cpu` or `nvme`, of `offload_optimizer` or `offload_param`."""
        block = getattr(self.run.spec.zero, section)
        return "none" if block is None else str(block.device)

    @property
    def gradient_clipping(self) -> float:
        """The maximum norm of the gradients, 0 for none: the user's, else DeepSpeed's default of this release
        (`runtime/constants.py`: 0.0 up to 0.19.2, then 1.0).
        """
        if self.run.kind == "spec" or self.source.has_key("train.max_grad_norm"):
            return self.run.spec.train.max_grad_norm
        return 1.0 if self.target.version >= (0, 19, 3) else 0.0

    @cached_property
    def optimizer(self) -> OptimizerConfig:
        """Type and parameters as DeepSpeed gets them."""
        block = self.run.spec.deepspeed.get("optimizer")
        if isinstance(block, dict):
            name, params = self.ds("optimizer.type"), self.ds("optimizer.params", {})
            is_open = self.is_auto("optimizer.type")
            return OptimizerConfig("auto" if is_open else name, params, "deepspeed.optimizer")
        if self.run.kind == "deepspeed-json" and not self.source.has_key("optimizer.type"):
            return OptimizerConfig(None, {}, "optimizer")
        name, params = deepspeed_optimizer(self.run.spec.optimizer)
        return OptimizerConfig(name, params, "optimizer")

    @cached_property
    def scheduler(self) -> Mapping[str, Any]:
        """DeepSpeed's own `scheduler` block, empty if there is none."""
        block = self.ds("scheduler")
        for key in ("scheduler.type", "scheduler.params"):
            self.ds(key)  # raises where it cannot be read
        return block if isinstance(block, dict) else {}

    @cached_property
    def _model_lookup(self) -> ModelLookup:
        return self.run.find_model(Path(self.source.file).parent if self.source.file != "-" else None)

    @property
    def model(self) -> ModelFacts | None:
        """Sizes of the model, where its configuration is at hand."""
        spec = self.run.spec.model
        return self._model_lookup.facts if spec.name_or_path or spec.config is not None else None

    @property
    def model_config(self) -> Mapping[str, Any]:
        """The model's `transformers` configuration, where it is at hand; empty elsewhere."""
        return self._model_lookup.config or {}

    @cached_property
    def plan(self) -> Plan:
        """The planned memory of this run; for gates that compare it with the hosts."""
        from harness.plan.planner import make_plan

        folder = Path(self.source.file).parent if self.source.file != "-" else None
        gpu = self.accelerator if self.accelerator == "cpu" else None
        return make_plan(self.run, folder, gpu, with_alternatives=False)

    # Findings

    def key(self, key: str) -> str:
        """A spec key in backticks, as the user writes it."""
        return f"`{self.source.user_key(key)}`"

    def fix_to_remove(self, key: str, more: str = "", *, safe: bool = False, effect: str = "") -> Fix:
        """Remove the spec key `key`; `more` follows in the title after a comma."""
        return Fix(", ".join(filter(None, (f"remove {self.key(key)}", more))), {key: None}, safe, effect)

    def fix_to_set(
        self, key: str, value: bool | float | str, more: str = "", *, safe: bool = False, effect: str = ""
    ) -> Fix:
        """Set the spec key `key` to a value; `more` follows in the title after a comma."""
        text = f"`{value}`" if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else value
        return Fix(", ".join(filter(None, (f"set {self.key(key)} to {text}", more))), {key: value}, safe, effect)

    def finding(
        self,
        message: str,
        key: str,
        *,
        label: str = "",
        related: Sequence[tuple[str, str]] = (),
        notes: Sequence[str] = (),
        fix: Fix | None = None,
        severity: Severity | None = None,
        of_key: bool = False,
    ) -> Finding:
        """A finding at the spec key `key`, at its value or (`of_key`) at its name; `related` are (key, text) pairs,
        shown at these keys. `check_run` fills in the gate's id, and its severity where none is given.
        """
        place = self.source.place(key, of_key=of_key)
        labels = tuple(Label(self.source.place(name), text) for name, text in related if self.source.has_key(name))
        return Finding(
            "", severity or _FROM_GATE, message, self.source.user_key(key), place, label, labels, tuple(notes), fix
        )

    def unread(self, message: str, key: str, *, fix: Fix | None = None, **details: Any) -> Finding:
        """A finding at the spec key `key`, which has no effect; `details` are those of `finding`. Without a fix the key
        is removed, which is safe.
        """
        fix = fix or self.fix_to_remove(key, safe=True)
        return self.finding(message, key, label="has no effect", fix=fix, **details)
