# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed JSON as a run spec, key by key, so that one set of gates serves both.

Values with a field of their own move there, old names to their new ones; everything else stays in `deepspeed`. Each
spec key remembers its place in the JSON. `auto` counts as absent: `auto_values` knows who fills it in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.findings import Finding
from harness.spec.parse.source import KeyPath, Source, join_key

_SCALARS: dict[KeyPath, KeyPath] = {
    ("train_batch_size",): ("train", "global_batch_size"),
    ("train_micro_batch_size_per_gpu",): ("train", "per_device_train_batch_size"),
    ("gradient_accumulation_steps",): ("train", "gradient_accumulation_steps"),
    ("gradient_clipping",): ("train", "max_grad_norm"),
    ("bf16", "enabled"): ("precision", "bf16"),
    ("fp16", "enabled"): ("precision", "fp16"),
    ("fp16", "loss_scale"): ("precision", "loss_scale"),
    ("fp16", "initial_scale_power"): ("precision", "initial_scale_power"),
    ("fp16", "loss_scale_window"): ("precision", "loss_scale_window"),
    ("fp16", "hysteresis"): ("precision", "hysteresis"),
    ("fp16", "min_loss_scale"): ("precision", "min_loss_scale"),
    ("tensor_parallel", "autotp_size"): ("parallel", "tensor_parallel_size"),
    ("sequence_parallel_size",): ("parallel", "sequence_parallel_size"),
}
_OPTIMIZER_PARAMS: dict[str, dict[str, str]] = {
    "adamw": {"lr": "learning_rate", "betas": "betas", "eps": "eps", "weight_decay": "weight_decay"},
    "sgd": {"lr": "learning_rate", "momentum": "momentum", "weight_decay": "weight_decay"},
}
_OPTIMIZER_PARAMS["adam"] = _OPTIMIZER_PARAMS["adamw"]
_ZERO_FIELDS = frozenset(
    """stage contiguous_gradients reduce_scatter reduce_bucket_size allgather_bucket_size overlap_comm
    round_robin_gradients sub_group_size stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save""".split()
)
_OFFLOAD_FIELDS = {
    "offload_optimizer": frozenset(
        ("device", "nvme_path", "buffer_count", "pin_memory", "ratio", "pipeline_read", "pipeline_write", "fast_init")
    ),
    "offload_param": frozenset(("device", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pin_memory")),
}
_OLD_SWITCHES = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
_STAGE_3 = """prefetch_bucket_size param_persistence_threshold model_persistence_threshold max_live_parameters
    max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold use_all_reduce_for_fetch_params
    allgather_sequential"""
_OLD_NAMES = {name: f"stage3_{name}" for name in _STAGE_3.split()} | {
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save"
}
"""Other names that DeepSpeed takes in `zero_optimization`, and the documented ones."""


class DeepSpeedJson(NamedTuple):
    """A DeepSpeed configuration on its way to a spec: `source.data` is the JSON, `source.origin` leads from its keys to
    the user's own where those differ; `extra_fields` are the other fields of a run spec, with the keys that they came
    from.
    """

    source: Source
    findings: tuple[Finding, ...] = ()
    extra_fields: Mapping[KeyPath, tuple[Any, KeyPath]] = {}
    misspelt_keys: frozenset[str] = frozenset()
    """Keys whose spelling has a finding: their values are not checked."""


def map_deepspeed_json(
    config: dict[str, Any], *, normalize_optimizer: bool = False
) -> tuple[dict[str, Any], dict[KeyPath, KeyPath]]:
    """The raw run spec, and for each of its paths the path in the JSON that it came from.

    Values are not checked here; a wrong type arrives in the spec as the user wrote it. `normalize_optimizer`: an
    optimizer with the same meaning under a name of the run spec takes that name (DeepSpeed's `Adam` decays weights as
    `adamw` does).
    """
    spec: dict[str, Any] = {}
    origin: dict[KeyPath, KeyPath] = {}
    optimizer = _expressible_optimizer(config, normalize_optimizer=normalize_optimizer)
    for path, current_path, value in _iter_leaves_by_current_name(config):
        target, spec_value = _spec_target(current_path, value, optimizer)
        for end in range(1, len(target) + 1):
            origin.setdefault(target[:end], path[: max(1, len(path) - (len(target) - end))])
        origin[target] = path
        if value == "auto" and target[0] == "deepspeed" and len(target) > 2:
            _ensure_section(spec, target[:-1])  # a block is there even if nothing in it is
        elif value == "auto":
            continue
        elif current_path[-1] != "autotp_size" or value not in (0, 1):  # both mean off
            _set_value(spec, target, spec_value)
    origin[("zero",)] = ("zero_optimization",)
    origin[("deepspeed",)] = ()
    for section in _OFFLOAD_FIELDS:
        origin[("zero", section)] = ("zero_optimization", section)
        origin.setdefault(("zero", section, "device"), ("zero_optimization", section, "device"))
        origin.setdefault(("zero", section, "nvme_path"), ("zero_optimization", section, "nvme_path"))
    for path, target in _SCALARS.items():
        origin.setdefault(target, path)
    origin.setdefault(("zero", "stage"), ("zero_optimization", "stage"))
    origin.setdefault(("parallel", "pipeline_parallel_size"), ("parallel", "pipeline_parallel_size"))
    _add_required_fields(spec)
    return spec, origin


def covered_keys(config: dict[str, Any]) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The keys of a DeepSpeed JSON that have a field in the run spec, each with that field."""
    for path, current_path, _ in _iter_leaves_by_current_name(config):
        field = spec_field_of(current_path)
        if field is not None:
            yield path, field


def find_maps_as_values(config: dict[str, Any], path: KeyPath = ()) -> frozenset[KeyPath]:
    """The spec's fields for keys of a DeepSpeed JSON that have a map where they take a value."""
    found: set[KeyPath] = set()
    for name, value in config.items():
        field = spec_field_of((*path, name))
        if field is not None and isinstance(value, dict):
            found.add(field)
        elif isinstance(value, dict) and len(path) < 2:
            found |= find_maps_as_values(value, (*path, name))
    return frozenset(found)


def spec_field_of(path: KeyPath) -> KeyPath | None:
    """The spec's own field for a key of DeepSpeed's JSON; None if it has none. (The optimizer block may stay a
    whole.)
    """
    if path in _SCALARS:
        return _SCALARS[path]
    if path[0] != "zero_optimization" or len(path) not in (2, 3):
        return None
    fields = _ZERO_FIELDS if len(path) == 2 else _OFFLOAD_FIELDS.get(str(path[1]), frozenset())
    return ("zero", *path[1:]) if path[-1] in fields else None


def json_key_of(field: KeyPath) -> str | None:
    """The key of DeepSpeed's JSON that has the same meaning as a field of the spec; None if there is none."""
    by_field = {target: path for path, target in _SCALARS.items()} | {("optimizer", "type"): ("optimizer", "type")}
    by_field |= {("optimizer", name): ("optimizer", "params", key) for key, name in _OPTIMIZER_PARAMS["adamw"].items()}
    if field[0] == "zero" and spec_field_of(("zero_optimization", *field[1:])) == field:
        return join_key(("zero_optimization", *field[1:]))
    return join_key(by_field[field]) if field in by_field else None


def spec_key(key_path: KeyPath) -> str:
    """The run spec's key for a place in the user's file, for `Fix.sets`: a field of its own, or one of `deepspeed`."""
    path = key_path[1:] if key_path[:1] == ("deepspeed",) else key_path
    return join_key(spec_field_of(path) or ("deepspeed", *path))


def renamed_spec_key(key_path: KeyPath) -> str:
    """`spec_key` for a key that replaces an old one, to which the spec's own field still leads in a JSON."""
    return spec_key(key_path) if key_path[:1] == ("deepspeed",) else join_key(("deepspeed", *key_path))


def leaves_by_current_name(config: dict[str, Any]) -> dict[KeyPath, Any]:
    """The leaves of a DeepSpeed JSON under today's names."""
    return {current_path: value for _, current_path, value in _iter_leaves_by_current_name(config)}


def _iter_leaves_by_current_name(config: dict[str, Any]) -> Iterator[tuple[KeyPath, KeyPath, Any]]:
    """Each leaf of the JSON: its path, its path under today's names, its value."""
    zero = config.get("zero_optimization")
    for path, value in _iter_leaves(config, ()):
        if path[0] == "bfloat16" and "bf16" not in config:
            yield path, ("bf16", *path[1:]), value
        elif path == ("zero_optimization",) and isinstance(value, bool):
            yield path, (*path, "stage"), int(value)
        elif len(path) == 2 and path[0] == "zero_optimization" and isinstance(zero, dict):
            new, read = _current_zero_name(str(path[1]), value, zero)
            yield path, ("zero_optimization", *new), read
        else:
            yield path, path, value


def _current_zero_name(name: str, value: Any, zero: dict[str, Any]) -> tuple[KeyPath, Any]:
    section = _OLD_SWITCHES.get(name)
    if section is not None and section not in zero and isinstance(value, bool):
        return (section, "device"), "cpu" if value else "none"
    current_name = _OLD_NAMES.get(name, name)
    return ((name,), value) if current_name in zero else ((current_name,), value)


def _iter_leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and (value or not path):
        for name, item in value.items():
            yield from _iter_leaves(item, (*path, name))
    else:
        yield path, value


def _spec_target(path: KeyPath, value: Any, optimizer: str | None) -> tuple[KeyPath, Any]:
    """The place of a JSON leaf in the spec, and its value there."""
    field = spec_field_of(path)
    if field is not None:
        return field, _as_whole_number(value)
    if path[0] == "optimizer" and optimizer is not None:
        if path == ("optimizer", "type"):
            return path, optimizer
        name = _OPTIMIZER_PARAMS[optimizer].get(str(path[-1]))
        if len(path) == 3 and name is not None:
            return ("optimizer", name), value
        return ("optimizer", "type"), optimizer  # the type implies `adam_w_mode`; an empty `params` has no meaning
    return ("deepspeed", *path), value


def _expressible_optimizer(config: dict[str, Any], *, normalize_optimizer: bool) -> str | None:
    """The spec's name of an optimizer whose every value fits into the spec's own section; else None."""
    optimizer = config.get("optimizer")
    if not isinstance(optimizer, dict) or set(optimizer) - {"type", "params"}:
        return None
    kind, params = str(optimizer.get("type")).lower(), optimizer.get("params", {})
    if kind not in _OPTIMIZER_PARAMS or not isinstance(params, dict) or "lr" not in params:
        return None  # the run spec has another default learning rate
    if not normalize_optimizer and "auto" in params.values():
        return None  # the run spec's defaults are not the Trainer's
    kind = _adam_variant(kind, params, normalize_optimizer=normalize_optimizer)
    param_names = set(_OPTIMIZER_PARAMS.get(kind, ())) | {"adam_w_mode"}
    return kind if kind and not set(params) - param_names and _has_valid_numbers(params) else None


def _adam_variant(kind: str, params: dict[str, Any], *, normalize_optimizer: bool) -> str:
    """`adam` for a decay that is added to the gradient, `adamw` for a decoupled one; empty where the spec has neither.

    Source: `_configure_basic_optimizer` in `runtime/engine.py`: AdamW always decouples, Adam by default.
    """
    decoupled = params.get("adam_w_mode", True)
    if kind == "adam" and decoupled is False:
        return kind
    if kind == "adam":
        return "adamw" if normalize_optimizer and decoupled is True else ""
    return kind if "adam_w_mode" not in params else ""


def _has_valid_numbers(params: dict[str, Any]) -> bool:
    numbers = [value for name, value in params.items() if name not in ("betas", "adam_w_mode") and value != "auto"]
    betas = params.get("betas", [0.9, 0.999])
    are_betas_valid = betas == "auto" or (
        isinstance(betas, list) and len(betas) == 2 and all(_is_number(beta) for beta in betas)
    )
    return are_betas_valid and all(_is_number(value) and value >= 0 for value in numbers) and params.get("lr") != 0


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e18 else value


def _set_value(spec: dict[str, Any], path: KeyPath, value: Any) -> None:
    _ensure_section(spec, path[:-1])[str(path[-1])] = value


def _ensure_section(spec: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    for name in path:
        spec = spec.setdefault(str(name), {})
    return spec


def _add_required_fields(spec: dict[str, Any]) -> None:
    """DeepSpeed's defaults that the spec requires: `stage` 0, no offload for a block without a device."""
    zero = spec.get("zero")
    if zero is not None:
        zero.setdefault("stage", 0)
        for section in _OFFLOAD_FIELDS:
            if section in zero:
                zero[section].setdefault("device", "none")
