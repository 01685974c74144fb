# SPDX-License-Identifier: Apache-2.0
"""An accelerate YAML for PyTorch's FSDP as one for DeepSpeed that trains the same, for `harness adopt`.

Strategies and names are those of accelerate 1.15's `FullyShardedDataParallelPlugin`, read, and run for its defaults.
"""

from __future__ import annotations

from typing import Any

from harness.convert.draft import Draft, NoteKind
from harness.convert.trainer_file import is_on
from harness.errors import UserError
from harness.facts.deepspeed_version import DeepSpeedTarget
from harness.findings import Finding, Fix
from harness.spec.accelerate_config import to_deepspeed_json
from harness.spec.config_format import detect_format
from harness.spec.parse.source import KeyPath, Source, is_json, read_text
from harness.spec.parse.source_parser import parse
from harness.spec.spec_loader import LoadedSpec, load_deepspeed_json

_SECTION = "fsdp_config"
_STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""In torch's order, whose numbers from 1 accelerate takes, too."""
_STAGES = (3, 2, 0, 3, 2)
_ANSWERED_ELSEWHERE = {
    "fsdp_version": "",
    "fsdp_auto_wrap_policy": "ZeRO gathers module by module, without wrapping",
    "fsdp_transformer_layer_cls_to_wrap": "ZeRO gathers module by module, without wrapping",
    "fsdp_min_num_params": "ZeRO gathers module by module; `stage3_param_persistence_threshold` keeps small parameters",
    "fsdp_backward_prefetch": "ZeRO-3 fetches ahead by `stage3_prefetch_bucket_size`",
    "fsdp_forward_prefetch": "ZeRO-3 fetches ahead by `stage3_prefetch_bucket_size`",
    "fsdp_state_dict_type": "`harness export` writes whole tensors from any checkpoint",
    "fsdp_use_orig_params": "DeepSpeed keeps the parameters of the model",
    "fsdp_cpu_ram_efficient_loading": "each rank reads the part of the weights that it keeps",
    "fsdp_sync_module_states": "each rank reads the part of the weights that it keeps",
    "fsdp_limit_all_gathers": "ZeRO-3 limits gathers by `stage3_max_live_parameters`",
}


def load_fsdp_config(file: str, target: DeepSpeedTarget) -> tuple[LoadedSpec, Source] | None:
    """(the configuration as accelerate's DeepSpeed plugin would read it, the file); None for a file of another kind.

    Raises UserError for a strategy that accelerate does not know.
    """
    if file == "-":
        return None
    text = read_text(file)
    if is_json(file, text):
        return None
    try:
        source = parse(text, file)
    except UserError:
        return None  # said by the loader of the other kinds
    if detect_format(source) != "accelerate-yaml" or source.data.get("distributed_type") != "FSDP":
        return None
    translated = source._replace(data=_to_deepspeed(source), origin={("deepspeed_config",): (_SECTION,)})
    loaded = load_deepspeed_json(to_deepspeed_json(translated), (), target, "accelerate")
    return loaded._replace(format="accelerate-yaml", source=loaded.source), source


def add_fsdp_fields(draft: Draft, source: Source) -> None:
    """Add fields that the DeepSpeed plugin lacks, and a note for each key that works otherwise."""
    fields = _fields(source)
    name = _strategy(source)[0]
    if is_on(fields.get("fsdp_activation_checkpointing")):
        draft.put("train.gradient_checkpointing", True)
    draft.drop(("train", "max_grad_norm"))
    _note(draft, source, (_SECTION,), "the script clips gradients under FSDP: set `train.max_grad_norm`", "manual")
    ranks, hosts = source.data.get("num_processes"), source.data.get("num_machines", 1)
    if name == "HYBRID_SHARD" and isinstance(ranks, int) and isinstance(hosts, int) and 1 < hosts <= ranks:
        draft.put("deepspeed.zero_optimization.zero_hpz_partition_size", ranks // hosts)
        text = "each host has all 16-bit parameters (hpZ); gradients and optimizer states are divided over all ranks"
        _note(draft, source, _strategy_path(source), text, "lossy")
    elif name == "HYBRID_SHARD_ZERO2":
        text = "ZeRO-2 divides optimizer states over all ranks, not within a host"
        _note(draft, source, _strategy_path(source), text, "lossy")
    elif name == "SHARD_GRAD_OP":
        text = "ZeRO-2 keeps the 16-bit parameters whole between steps, where FSDP divides them outside of a step"
        _note(draft, source, _strategy_path(source), text, "lossy")
    if is_on(fields.get("fsdp_offload_params")) and _strategy(source)[1] != 3:
        text = "ZeRO-2 with the optimizer on the CPU: parameters stay on the GPU"
        _note(draft, source, (_SECTION, "fsdp_offload_params"), text, "lossy")
    for key, value in fields.items():
        if _ANSWERED_ELSEWHERE.get(key):
            _note(draft, source, (_SECTION, key), _ANSWERED_ELSEWHERE[key])
        elif key == "fsdp_activation_cpu_offload" and is_on(value):
            draft.put("train.offload_activations", True)
        elif key not in _ANSWERED_ELSEWHERE and key not in _USED and value not in (None, ""):
            _note(draft, source, (_SECTION, key), "is not known here", "manual")


_USED = frozenset(
    """fsdp_sharding_strategy fsdp_reshard_after_forward fsdp_offload_params fsdp_activation_checkpointing
    fsdp_activation_cpu_offload""".split()
)


def _fields(source: Source) -> dict[str, Any]:
    section = source.data.get(_SECTION)
    return section if isinstance(section, dict) else {}


def _strategy_path(source: Source) -> KeyPath:
    names: tuple[str, ...] = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    if str(_fields(source).get("fsdp_version", 1)) == "2":
        names = names[1:]  # the version that does not read the other
    return next(((_SECTION, name) for name in names if name in _fields(source)), (_SECTION,))


def _strategy(source: Source) -> tuple[str, int]:
    """(FSDP1's name of the strategy, the ZeRO stage). FSDP2 has a boolean: are parameters freed after forward?"""
    path = _strategy_path(source)
    value = _fields(source).get(str(path[-1]), True)
    if isinstance(value, bool) or str(value).lower() in ("true", "false"):
        index = 0 if is_on(value) else 1
        return _STRATEGIES[index], _STAGES[index]
    text = str(value).upper()
    if text.isdigit() and 1 <= int(text) <= len(_STRATEGIES):
        text = _STRATEGIES[int(text) - 1]
    if text not in _STRATEGIES:
        message, fix = f"`{value}` is no sharding strategy of FSDP", Fix(f"write one of {', '.join(_STRATEGIES)}")
        raise UserError([Finding("SP007", "error", message, ".".join(map(str, path)), source.place(path), fix=fix)])
    return text, _STAGES[_STRATEGIES.index(text)]


def _to_deepspeed(source: Source) -> dict[str, Any]:
    stage = _strategy(source)[1]
    section: dict[str, Any] = {"zero_stage": stage, "deepspeed_multinode_launcher": "standard"}
    if is_on(_fields(source).get("fsdp_offload_params")):
        if stage == 0:
            section["zero_stage"] = 2
        section["offload_optimizer_device"] = "cpu"
        if stage == 3:
            section["offload_param_device"] = "cpu"
    others = {key: value for key, value in source.data.items() if key != _SECTION}
    return others | {"distributed_type": "DEEPSPEED", "deepspeed_config": section}


def _note(draft: Draft, source: Source, path: KeyPath, reason: str, kind: NoteKind = "harmless") -> None:
    key = ".".join(map(str, path))
    draft.add_note(source.place(path), f"`{key}`: {reason}", kind, key)
