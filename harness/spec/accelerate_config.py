# SPDX-License-Identifier: Apache-2.0
"""accelerate's YAML as the DeepSpeed JSON that accelerate 1.15 makes of it: from its own few fields, or from the file
that `deepspeed_config_file` names.

Reads no file but that one. `spec_loader` and the gates check the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.spec.accelerate_machines import check_machines, is_count
from harness.spec.deepspeed_mapping import DeepSpeedJson
from harness.spec.parse.source import KeyPath, Source, input_error, join_key
from harness.spec.referenced_files import find_referenced_file, missing_file_finding, read_deepspeed_json
from harness.spec.suggestions import Suggestions

_TOP = frozenset(
    """compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
    gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity
    fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config downcast_bf16
    tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config
    dynamo_backend fp16""".split()
)
_SECTION = "deepspeed_config"
_FILE = "deepspeed_config_file"
_FIELDS: dict[str, KeyPath] = {
    "zero_stage": ("zero_optimization", "stage"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("gradient_clipping",),
    "offload_optimizer_device": ("zero_optimization", "offload_optimizer", "device"),
    "offload_optimizer_nvme_path": ("zero_optimization", "offload_optimizer", "nvme_path"),
    "offload_param_device": ("zero_optimization", "offload_param", "device"),
    "offload_param_nvme_path": ("zero_optimization", "offload_param", "nvme_path"),
    "zero3_save_16bit_model": ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
}
"""accelerate's own names, and where it writes them in the JSON."""
_OTHER_FIELDS = frozenset(
    """zero3_init_flag deepspeed_config_file deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter
    deepspeed_multinode_launcher deepspeed_moe_layer_cls_names transformer_moe_cls_names enable_msamp
    msamp_opt_level""".split()
)
_DEBUG_BACKENDS = ("EAGER", "AOT_EAGER")
"""Back ends of torch.compile that run the graph op by op."""
_PRECISIONS = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}


def is_accelerate_key(key: str) -> bool:
    """Is a top-level key one of accelerate's?"""
    return key in _TOP and key not in ("fp16",)


def find_json_key(name: str) -> KeyPath | None:
    """The JSON key that accelerate writes its own key `name` to; () if there is no such key, None for other names."""
    return _FIELDS.get(name, () if name in _OTHER_FIELDS or is_accelerate_key(name) else None)


def to_deepspeed_json(source: Source) -> DeepSpeedJson:
    """The JSON with its places. Raises UserError for a configuration that does not use DeepSpeed."""
    section = source.data.get(_SECTION)
    kind = source.data.get("distributed_type")
    if kind != "DEEPSPEED" and not isinstance(section, dict):
        reason = f"`distributed_type: {kind}`" if kind else "no `deepspeed_config`"
        message = f"this accelerate configuration does not use DeepSpeed ({reason})"
        place = source.place(("distributed_type",))
        title = "give one with `distributed_type: DEEPSPEED`"
        if kind == "FSDP":
            title += f"; `harness adopt {source.file}` writes the run spec with ZeRO that trains the same"
        raise input_error("SP016", message, place, title)
    fields: dict[str, Any] = section if isinstance(section, dict) else {}
    machines = check_machines(source, fields)
    findings = [*_check_shape(source, section), *_check_unknown_keys(source, fields), *machines.findings]
    findings += _check_dynamo(source)
    config = _to_json(source, fields, findings)
    if machines.hostfile is None:
        return config
    path: KeyPath = (_SECTION, "deepspeed_hostfile")
    hosts: dict[KeyPath, tuple[Any, KeyPath]] = {("launch", "hostfile"): (machines.hostfile, path)}
    return config._replace(extra_fields={**config.extra_fields, **hosts})


def _to_json(source: Source, fields: dict[str, Any], findings: list[Finding]) -> DeepSpeedJson:
    file_name = fields.get(_FILE)
    if isinstance(file_name, str) and file_name:
        return _json_from_file(source, fields, file_name, findings)
    if file_name is not None:
        message, fix = f"`{_SECTION}.{_FILE}` is no path", Fix("write the path of a DeepSpeed JSON")
        path = (_SECTION, _FILE)
        findings.append(Finding("SP006", "error", message, join_key(path), source.place(path), fix=fix))
    return _json_from_fields(source, fields, findings)


def _check_shape(source: Source, section: Any) -> Iterator[Finding]:
    """Values on which accelerate itself fails."""
    kind = source.data.get("distributed_type")
    if kind != "DEEPSPEED":
        message = f"`distributed_type` is `{kind}`, so the `deepspeed_config` section is not used"
        message = message if kind else "`distributed_type` is missing, without which accelerate refuses the file"
        fix = Fix("write `distributed_type: DEEPSPEED`", {"distributed_type": "DEEPSPEED"}, effect="DeepSpeed is used")
        yield Finding("SP008", "error", message, "distributed_type", source.place(("distributed_type",)), fix=fix)
    if section is not None and not isinstance(section, dict):
        fix = Fix("write `zero_stage: 2` below it")
        message = "`deepspeed_config` is no map of keys"
        yield Finding("SP006", "error", message, _SECTION, source.place((_SECTION,)), fix=fix)
    precision = source.data.get("mixed_precision")
    if precision is False:
        message = "`mixed_precision` is false where one of no, fp16, bf16, fp8 belongs in quotes"
        notes = ("YAML reads `no` without quotes as false, and accelerate fails on it",)
        fix = Fix("write `mixed_precision: 'no'`", {"mixed_precision": "no"}, safe=True)
        place = source.place(("mixed_precision",))
        yield Finding("SP006", "error", message, "mixed_precision", place, notes=notes, fix=fix)
    elif precision not in (None, "no", *_PRECISIONS):
        message = f"`mixed_precision` is `{precision}`, which is none of no, fp16, bf16, fp8"
        place = source.place(("mixed_precision",))
        yield Finding("SP007", "error", message, "mixed_precision", place, fix=Fix("write one of these, in quotes"))


def _check_dynamo(source: Source) -> Iterator[Finding]:
    """A back end of torch.compile that finds faults and saves no time."""
    section = source.data.get("dynamo_config")
    backends: dict[KeyPath, Any] = {("dynamo_backend",): source.data.get("dynamo_backend")}
    if isinstance(section, dict):
        backends |= {("dynamo_config", name): section.get(name) for name in ("dynamo_backend", "backend")}
    for path, value in backends.items():
        backend = str(value).upper()
        if backend in _DEBUG_BACKENDS:
            key = join_key(path)
            yield Finding(
                "HF107",
                "warning",
                f"`{backend}` compiles DeepSpeed's engine for debugging: steps are not faster, and the first is slower",
                key,
                source.place(path),
                notes=("torch.compile traces the model and runs it op by op, again for new shapes",),
                fix=Fix("remove it, or write `INDUCTOR`", {key: None}, effect="nothing is compiled"),
            )


def _check_unknown_keys(source: Source, fields: dict[str, Any]) -> Iterator[Finding]:
    """Keys that accelerate does not know: it refuses them at the top and ignores them in its `deepspeed_config`."""
    suggestions = Suggestions()
    for name in source.data:
        if name not in _TOP:
            similar = suggestions.nearest_name(name, _TOP)
            yield Finding(
                "SP005",
                "error",
                f"`{name}` is not a key of an accelerate configuration",
                name,
                source.place((name,), of_key=True),
                notes=("accelerate refuses a file with keys that it does not know",),
                fix=Fix(f"did you mean `{similar}`?" if similar else "remove it"),
            )
    for name, value in fields.items():
        if name in _FIELDS or name in _OTHER_FIELDS:
            continue
        yield _ignored_key_finding(source, name, value, suggestions)


def _ignored_key_finding(source: Source, name: str, value: Any, suggestions: Suggestions) -> Finding:
    similar = suggestions.nearest_name(name, [*_FIELDS, *_OTHER_FIELDS])
    is_misspelt = similar is not None and not isinstance(value, dict)
    whole_block = isinstance(value, dict) and bool(value)
    key = join_key((_SECTION, name))
    title = f"did you mean `{similar}`?" if is_misspelt else "put it into a JSON that `deepspeed_config_file` names"
    return Finding(
        "HF102",
        "error" if is_misspelt or whole_block else "warning",
        f"accelerate does not read `{key}`",
        key,
        source.place((_SECTION, name), of_key=True),
        notes=("accelerate silently ignores it, and DeepSpeed never sees it",),
        fix=Fix(title),
    )


def _json_from_fields(source: Source, fields: dict[str, Any], findings: list[Finding]) -> DeepSpeedJson:
    """The JSON that the plugin builds from its own fields."""
    config: dict[str, Any] = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}
    zero: dict[str, Any] = {"stage": 2}
    config["zero_optimization"] = zero
    for name, path in _FIELDS.items():
        value = fields.get(name)
        if value is None or (path[-1] == "nvme_path" and fields.get(name.replace("nvme_path", "device")) != "nvme"):
            continue
        block = config
        for part in path[:-1]:
            block = block.setdefault(str(part), {})
        block[str(path[-1])] = _convert_digits(value)
    config.setdefault("gradient_accumulation_steps", "auto")
    if config.setdefault("gradient_clipping", "auto") == 0 and not isinstance(config["gradient_clipping"], bool):
        findings.append(_dropped_clipping_finding(source))
        del config["gradient_clipping"]
    ranks = _parallel_fields(source)
    degree = ranks.get(("parallel", "sequence_parallel_size"))
    world = source.data.get("num_processes")
    if degree is not None and is_count(world):
        config["data_parallel_size"] = world // degree[0]  # accelerate builds the mesh itself
    precision = _PRECISIONS.get(str(source.data.get("mixed_precision")))
    if precision:
        config[precision] = {"enabled": True}
    if fields.get("zero_stage") is None:
        findings.append(_default_stage_finding(source))
    origin: dict[KeyPath, KeyPath] = {path: (_SECTION, name) for name, path in _FIELDS.items()}
    origin |= {("bf16",): ("mixed_precision",), ("fp16",): ("mixed_precision",)}
    origin |= {("bf16", "enabled"): ("mixed_precision",), ("fp16", "enabled"): ("mixed_precision",)}
    origin[("zero_optimization",)] = (_SECTION,)
    origin[("data_parallel_size",)] = ("num_processes",)
    return DeepSpeedJson(source._replace(data=config, origin=origin), tuple(findings), ranks)


def _convert_digits(value: Any) -> Any:
    """accelerate writes its fields into the environment and reads them again: `'2'` is 2 there."""
    if isinstance(value, str) and value.isdigit():
        return int(value)
    return value


def _default_stage_finding(source: Source) -> Finding:
    return Finding(
        "HF103",
        "info",
        "`deepspeed_config.zero_stage` is missing, so accelerate takes ZeRO stage 2",
        f"{_SECTION}.zero_stage",
        source.place((_SECTION,), of_key=True),
        fix=Fix("write `zero_stage`", {f"{_SECTION}.zero_stage": 2}, safe=True),
    )


def _dropped_clipping_finding(source: Source) -> Finding:
    key = f"{_SECTION}.gradient_clipping"
    return Finding(
        "HF108",
        "warning",
        f"accelerate leaves out a `{key}` of 0, and DeepSpeed 0.19.3 and newer clip at 1.0 then",
        key,
        source.place((_SECTION, "gradient_clipping")),
        fix=Fix(f'write `"gradient_clipping": 0` in a JSON that `{_FILE}` names'),
    )


def _parallel_fields(source: Source) -> dict[KeyPath, tuple[Any, KeyPath]]:
    """Hosts, ranks a host and the sequence-parallel size, for the run spec."""
    extra: dict[KeyPath, tuple[Any, KeyPath]] = {}
    ranks, hosts = source.data.get("num_processes"), source.data.get("num_machines", 1)
    if is_count(ranks) and is_count(hosts) and ranks >= hosts:  # accelerate drops the remainder
        extra["cluster", "gpus_per_node"] = (ranks // hosts, ("num_processes",))
        extra["cluster", "num_nodes"] = (hosts, ("num_machines",))
    parallel = source.data.get("parallelism_config")
    degree = parallel.get("parallelism_config_sp_size") if isinstance(parallel, dict) else None
    if isinstance(degree, int) and is_count(degree) and degree > 1:
        place = ("parallelism_config", "parallelism_config_sp_size")
        extra["parallel", "sequence_parallel_size"] = (degree, place)
    return extra


def _json_from_file(source: Source, fields: dict[str, Any], file_name: str, findings: list[Finding]) -> DeepSpeedJson:
    """The JSON of `deepspeed_config_file`, with its own places; accelerate refuses other fields next to it."""
    findings += _check_conflicting_fields(source, fields)
    path = (_SECTION, _FILE)
    file = find_referenced_file(source.file, file_name)
    if file is None:
        findings.append(missing_file_finding(file_name, path, source.place(path)))
        config = {"zero_optimization": {"stage": 2}, "train_batch_size": "auto", "gradient_clipping": "auto"}
        return DeepSpeedJson(source._replace(data=config), tuple(findings), _parallel_fields(source))
    document = read_deepspeed_json(file)
    findings += document.findings
    spots = {**source.spots, **{place_path: spot for place_path, spot in document.source.spots.items() if place_path}}
    lines = {**source.extra_lines, file: document.source.text.split("\n")}
    merged = source._replace(data=document.source.data, spots=spots, extra_lines=lines)
    return DeepSpeedJson(merged, tuple(findings), _parallel_fields(source))


def _check_conflicting_fields(source: Source, fields: dict[str, Any]) -> Iterator[Finding]:
    paths: list[KeyPath] = [(_SECTION, name) for name in _FIELDS if fields.get(name) is not None]
    if source.data.get("mixed_precision") is not None:
        paths.append(("mixed_precision",))
    for path in paths:
        key = join_key(path)
        yield Finding(
            "HF101",
            "error",
            f"`{key}` is set together with `{_FILE}`, which accelerate refuses",
            key,
            source.place(path, of_key=True),
            notes=('accelerate ends with "the following accelerate config variables will be ignored"',),
            fix=Fix("set it in the JSON, and remove it here", {key: None}, effect="only the JSON counts"),
        )
