# SPDX-License-Identifier: Apache-2.0
"""The launch settings of an accelerate YAML, for `harness adopt`. `spec.accelerate_config` has its DeepSpeed part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.convert.draft import Draft, NoteKind
from harness.convert.trainer_file import TrainerFile, is_on
from harness.spec.accelerate_config import find_json_key, is_accelerate_key
from harness.spec.parse.source import KeyPath, Source
from harness.spec.parse.source_parser import parse
from harness.spec.referenced_files import find_referenced_file
from harness.spec.run_spec import RunSpec
from harness.spec.spec_loader import LoadedSpec

_UNREMARKABLE_VALUES: dict[str, tuple[Any, ...]] = {
    "machine_rank": (0,),
    "gpu_ids": ("all",),
    "downcast_bf16": ("no", False),
    "dynamo_backend": ("no", "NO", False),
    "use_cpu": (False,),
    "debug": (False,),
    "enable_cpu_affinity": (False,),
    "rdzv_backend": ("static", "c10d"),
    "tpu_use_cluster": (False,),
    "tpu_use_sudo": (False,),
    "main_training_function": ("main",),
    "same_network": (True, False),
    "num_machines": (1,),
}
"""Values that say nothing of interest."""
_KNOWN_KEYS = frozenset(
    "compute_environment distributed_type deepspeed_config fsdp_config num_processes mixed_precision".split()
)
_MAPPED_FIELDS = frozenset(
    """zero_stage gradient_accumulation_steps gradient_clipping offload_optimizer_device offload_param_device
    offload_optimizer_nvme_path offload_param_nvme_path zero3_save_16bit_model deepspeed_config_file""".split()
)


def add_accelerate_fields(draft: Draft, loaded: LoadedSpec) -> None:
    """Hosts, ranks, port and hostfile; notes for the rest."""
    if loaded.source is None or loaded.spec is None:
        return
    _add_ranks(draft, loaded.spec)
    data = parse(loaded.source.text, loaded.source.file).data
    if data.get("main_process_port"):
        draft.put("launch.master_port", data["main_process_port"])
    for name, value in data.items():
        if name not in _KNOWN_KEYS | {"main_process_port", "parallelism_config"} and _is_noteworthy(name, value):
            _add_note(draft, loaded, (name,))
    if data.get("mixed_precision") == "fp8":
        _add_note(draft, loaded, ("mixed_precision",), "trains in fp8, the run spec in bf16", "lossy")
    if find_missing_json(loaded):
        _leave_open(draft, loaded)
    section = data.get("deepspeed_config")
    for name, value in section.items() if isinstance(section, dict) else ():
        _add_field(draft, loaded, name, value)


def _add_ranks(draft: Draft, spec: RunSpec) -> None:
    cluster, sequence_parallel_size = spec.cluster, spec.parallel.sequence_parallel_size
    if cluster.gpus_per_node and (cluster.num_nodes or 1) == 1:
        draft.put("launch.num_gpus", cluster.gpus_per_node)
    elif cluster.gpus_per_node:
        draft.put("cluster.num_nodes", cluster.num_nodes)
        draft.put("cluster.gpus_per_node", cluster.gpus_per_node)
    if sequence_parallel_size > 1:
        draft.put("parallel.sequence_parallel_size", sequence_parallel_size)
        draft.drop(("deepspeed", "data_parallel_size"))  # the harness derives the groups from the one size


def add_launch_options(file: TrainerFile, source: Source) -> Source:
    """accelerate's YAML, which may be empty, with the options of the command line, which win over it."""
    data, section = dict(source.data), dict(source.data.get("deepspeed_config") or {})
    data["distributed_type"] = _name_type(file, data)
    for name, value in file.launch.items():
        if name in ("use_deepspeed", "use_fsdp", "multi_gpu"):
            continue
        if name == "main_process_port":
            file.put("launch.master_port", value)
        elif name == "mixed_precision":
            data[name] = value
        elif not is_accelerate_key(name) and find_json_key(name) is not None:
            section[name] = value
            if data["distributed_type"] != "DEEPSPEED":
                text = f"`--{name}`: `accelerate launch` reads it with `--use_deepspeed` alone"
                file.draft.add_note(file.source.place(()), text, "harmless", name)
        else:
            text = f"`--{name}` is for `accelerate launch`"
            file.draft.add_note(file.source.place(()), text, "harmless", name)
    if data["distributed_type"] == "DEEPSPEED":
        data["deepspeed_config"] = section
    return source._replace(data={name: value for name, value in data.items() if value is not None})


def _name_type(file: TrainerFile, data: Mapping[str, Any]) -> Any:
    if file.launch.get("use_deepspeed"):
        return "DEEPSPEED"
    return "FSDP" if file.launch.get("use_fsdp") else data.get("distributed_type")


def take_precision(file: TrainerFile, source: Source) -> None:
    """`mixed_precision` of a launch without DeepSpeed, which the Trainer takes where it has no flag of its own."""
    precision = source.data.get("mixed_precision")
    if precision not in ("bf16", "fp16", "fp8") or any(is_on(file.values.get(name)) for name in ("bf16", "fp16")):
        return
    place = file.source.place(())
    if file.program.name == "TRL":  # whose own default is bf16
        text = f"`mixed_precision: {precision}`: TRL trains in bf16, unless its own options say `fp16` or `bf16: false`"
        file.draft.add_note(place, text, "harmless", "mixed_precision")
        return
    file.put("precision.fp16" if precision == "fp16" else "precision.bf16", True)
    if precision == "fp8":
        file.draft.add_note(place, "`mixed_precision: fp8`: here bf16", "lossy", "mixed_precision")


def find_missing_json(loaded: LoadedSpec) -> str:
    """The DeepSpeed JSON that an accelerate YAML names and that is not on this machine; empty if there is none."""
    if loaded.source is None or loaded.format != "accelerate-yaml":
        return ""
    section = parse(loaded.source.text, loaded.source.file).data.get("deepspeed_config")
    name = section.get("deepspeed_config_file") if isinstance(section, dict) else None
    is_missing = isinstance(name, str) and name and find_referenced_file(loaded.source.file, name) is None
    return str(name) if is_missing else ""


def _leave_open(draft: Draft, loaded: LoadedSpec) -> None:
    """Without the JSON nothing is known of ZeRO and of clipping."""
    path = ("deepspeed_config", "deepspeed_config_file")
    _add_note(draft, loaded, path, "is not on this machine: set `zero.stage` and its other settings", "manual")
    draft.drop(("zero",))
    draft.drop(("train", "max_grad_norm"))


def _add_field(draft: Draft, loaded: LoadedSpec, name: str, value: Any) -> None:
    path = ("deepspeed_config", name)
    if name in _MAPPED_FIELDS or value is None:
        return
    if name == "deepspeed_hostfile":
        draft.put("launch.hostfile", str(value))
    elif name in ("deepspeed_moe_layer_cls_names", "transformer_moe_cls_names"):
        classes = [part.strip() for part in str(value).split(",") if part.strip()]
        draft.put("deepspeed.zero_optimization.leaf_module.classes", classes)
    elif name == "zero3_init_flag":
        return  # the stage decides here whether weights are sharded at load
    elif any(finding.gate == "HF102" and finding.key == ".".join(path) for finding in loaded.findings):
        _add_note(draft, loaded, path, "accelerate does not read it")
    elif name != "deepspeed_multinode_launcher" or value != "standard":
        _add_note(draft, loaded, path)


def _is_noteworthy(name: str, value: Any) -> bool:
    return value not in (None, "", {}, []) and value not in _UNREMARKABLE_VALUES.get(name, ())


def _add_note(
    draft: Draft,
    loaded: LoadedSpec,
    path: KeyPath,
    reason: str = "is for `accelerate launch`",
    kind: NoteKind = "harmless",
) -> None:
    if loaded.source is not None:
        key = ".".join(map(str, path))
        draft.add_note(loaded.source.place(path), f"`{key}`: {reason}", kind, key)
