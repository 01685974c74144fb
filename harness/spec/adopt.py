"""A DeepSpeed JSON as a run spec, key by key, so that one set of gates serves both.

Values that have a field of their own move there; everything else stays in `deepspeed`. Each spec key remembers its
place in the JSON. `auto` counts as not given: who fills it (the Hugging Face Trainer, accelerate) is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.spec.source import Path

_SCALARS: dict[Path, Path] = {
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
_OPTIMIZERS = {"adam": "adam", "adamw": "adamw", "sgd": "sgd"}
_OPTIMIZER_PARAMS = {
    "lr": "learning_rate",
    "betas": "betas",
    "eps": "eps",
    "weight_decay": "weight_decay",
    "momentum": "momentum",
}
_ZERO_FIELDS = frozenset(
    """stage contiguous_gradients reduce_scatter reduce_bucket_size allgather_bucket_size overlap_comm
    round_robin_gradients sub_group_size stage3_prefetch_bucket_size stage3_param_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_gather_16bit_weights_on_model_save""".split()
)
_OFFLOAD_FIELDS = {
    "offload_optimizer": frozenset(
        "device nvme_path buffer_count pin_memory ratio pipeline_read pipeline_write fast_init".split()
    ),
    "offload_param": frozenset("device nvme_path buffer_count buffer_size max_in_cpu pin_memory".split()),
}


def adopt(config: dict[str, Any]) -> tuple[dict[str, Any], dict[Path, Path]]:
    """The raw run spec, and for each of its paths the path in the JSON that it came from.

    Values are not judged here; a wrong type arrives in the spec as it was written.
    """
    spec: dict[str, Any] = {}
    origin: dict[Path, Path] = {("deepspeed",): ()}
    for path, value in _leaves(config, ()):
        if value == "auto":
            continue
        target, value = _target(path, value, config)  # noqa: PLW2901
        if target is None:
            continue
        _put(spec, target, value)
        for end in range(1, len(target) + 1):
            origin.setdefault(target[:end], path[: max(1, len(path) - (len(target) - end))])
        origin[target] = path
    origin[("zero",)] = ("zero_optimization",)
    for section in _OFFLOAD_FIELDS:
        origin[("zero", section)] = ("zero_optimization", section)
        origin[("zero", section, "device")] = ("zero_optimization", section, "device")
        origin[("zero", section, "nvme_path")] = ("zero_optimization", section, "nvme_path")
    for path, target in _SCALARS.items():
        origin.setdefault(target, path)
    origin.setdefault(("zero", "stage"), ("zero_optimization", "stage"))
    origin.setdefault(("parallel", "pipeline_parallel_size"), ("parallel", "pipeline_parallel_size"))
    _complete(spec)
    return spec, origin


def owned(config: dict[str, Any]) -> Iterator[tuple[Path, Path]]:
    """The keys of a DeepSpeed JSON that the run spec has a field for, each with that field."""
    for path, _ in _leaves(config, ()):
        field = home(path)
        if field is not None:
            yield path, field


def home(path: Path) -> Path | None:
    """The spec's own field for a key of DeepSpeed's JSON; None where it has none. (The optimizer block may stay a
    whole.)
    """
    if path in _SCALARS:
        return _SCALARS[path]
    if path[0] != "zero_optimization" or len(path) not in (2, 3):
        return None
    known = _ZERO_FIELDS if len(path) == 2 else _OFFLOAD_FIELDS.get(str(path[1]), frozenset())
    return ("zero", *path[1:]) if path[-1] in known else None


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and (value or not path):
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    else:
        yield path, value


def _target(path: Path, value: Any, config: dict[str, Any]) -> tuple[Path | None, Any]:
    """Where a JSON leaf goes in the spec, and as what."""
    if path[-1] == "autotp_size" and value in (0, 1):
        return None, None  # both mean off
    field = home(path)
    if field is not None:
        return field, _whole(value)
    if path[0] == "optimizer" and _simple_optimizer(config):
        if path == ("optimizer", "type"):
            return ("optimizer", "type"), _OPTIMIZERS[str(value).lower()]
        if len(path) == 3 and path[1] == "params":
            return ("optimizer", _OPTIMIZER_PARAMS[str(path[2])]), value
        return None, None
    return ("deepspeed", *path), value


def _simple_optimizer(config: dict[str, Any]) -> bool:
    """Has the `optimizer` block nothing but what the spec's own section can say, each of the right type?"""
    optimizer = config.get("optimizer")
    if not isinstance(optimizer, dict) or str(optimizer.get("type")).lower() not in _OPTIMIZERS:
        return False
    params = optimizer.get("params", {})
    if set(optimizer) - {"type", "params"} or not isinstance(params, dict) or set(params) - set(_OPTIMIZER_PARAMS):
        return False
    numbers = [v for k, v in params.items() if k != "betas" and v != "auto"]
    betas = params.get("betas", [0.9, 0.999])
    return all(_is_number(v) and v >= 0 for v in numbers) and (
        betas == "auto" or (isinstance(betas, list) and len(betas) == 2 and all(_is_number(b) for b in betas))
    ) and params.get("lr", 1) != 0  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e18 else value


def _put(spec: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        spec = spec.setdefault(str(name), {})
    spec[str(path[-1])] = value


def _complete(spec: dict[str, Any]) -> None:
    """What DeepSpeed assumes and the spec wants written: `stage` 0, an offload block without a device is none."""
    zero = spec.get("zero")
    if zero is not None:
        zero.setdefault("stage", 0)
        for section in _OFFLOAD_FIELDS:
            if section in zero:
                zero[section].setdefault("device", "none")
