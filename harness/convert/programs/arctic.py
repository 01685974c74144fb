# SPDX-License-Identifier: Apache-2.0
"""ArcticTraining: a YAML in sections, one of them DeepSpeed's (`arctic_training/config`), read in 0.0.3 to 0.8.0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.convert.mlp_tiles import convert_mlp_tiles
from harness.convert.trainer_file import Default, Program, TrainerFile, Values, is_on

_CONFIG = "ArcticTraining: arctic_training/config"
_DATA = "ArcticTraining: arctic_training/data"
_SUFFIXES = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_HUMAN_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:(k|m|b|t|ki|mi|gi|ti|%)|e(-?\d+)|\^(\d+))?")
"""Numbers with a suffix, an exponent or a power (`config/utils.py`)."""
_PYTHON_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?")
"""Other numbers are read as Python reads them."""
_SPLITS = {
    "HuggingFaceH4/ultrachat_200k": {"train": "train_sft", "eval": "test_sft"},
    "nvidia/AceMath-Instruct-Training-Data": {"train": "general_sft_stage2"},
}
"""Splits that it knows of datasets on the Hub (`data/hf_source.py`)."""
_WITHOUT_DECAY = ("constant", "constant_with_warmup")
_KEYS = {
    "micro_batch_size": "train.per_device_train_batch_size",
    "gradient_accumulation_steps": "train.gradient_accumulation_steps",
    "seed": "train.seed",
    "sequence_parallel_size": "parallel.sequence_parallel_size",
    "activation_checkpoint_cpu_offload": "train.offload_activations",
    "model.name_or_path": "model.name_or_path",
    "model.attn_implementation": "model.attn_implementation",
    "tokenizer.name_or_path": "model.tokenizer",
    "data.max_length": "data.max_length",
    "data.num_proc": "data.num_proc",
    "data.pack_samples": "data.packing",
    "data.mask_inputs": "data.assistant_only_loss",
    "optimizer.learning_rate": "optimizer.learning_rate",
    "optimizer.lr": "optimizer.learning_rate",
    "optimizer.weight_decay": "optimizer.weight_decay",
    "optimizer.betas": "optimizer.betas",
    "scheduler.warmup_ratio": "scheduler.warmup_ratio",
    "scheduler.num_warmup_steps": "scheduler.warmup_steps",
    "scheduler.num_decay_steps": "scheduler.decay_steps",
    "scheduler.min_lr_ratio": "scheduler.min_lr_ratio",
    "eval_interval": "eval.eval_steps",
    "loss_log_interval": "logging.logging_steps",
    "wandb.entity": "telemetry.wandb_entity",
    "wandb.project": "telemetry.project",
}


def _is_sft(values: Values) -> bool:
    return str(values.get("type", "sft")) == "sft"


def _has_warmup_ratio(values: Values) -> bool:
    """`constant` has no warm-up, whatever the file says; the schedule of three phases counts its steps."""
    return values.get("scheduler.num_warmup_steps") is None and values.get("scheduler.name") != "constant"


_DEFAULTS = (
    Default("optimizer.learning_rate", 5e-4, f"{_CONFIG}/optimizer.py: learning_rate"),
    Default("optimizer.weight_decay", 0.1, f"{_CONFIG}/optimizer.py: weight_decay"),
    Default("scheduler.type", "linear", "ArcticTraining: arctic_training/scheduler/hf_factory.py: name"),
    Default("scheduler.warmup_ratio", 0.1, "ArcticTraining: arctic_training/scheduler/hf_factory.py: warmup_ratio",
            when=_has_warmup_ratio),
    Default("train.num_train_epochs", 1, f"{_CONFIG}/trainer.py: epochs",
            when=lambda values: not any(is_on(values.get(key)) for key in ("train_iters", "exit_iteration"))),
    Default("train.per_device_train_batch_size", 1, f"{_CONFIG}/trainer.py: micro_batch_size"),
    Default("train.gradient_checkpointing", True, f"{_CONFIG}/model.py: disable_activation_checkpoint"),
    Default("model.attn_implementation", "sdpa", f"{_CONFIG}/model.py: attn_implementation"),
    Default("data.packing", True, f"{_DATA}/sft_factory.py: pack_samples", until="0.7.1", when=_is_sft),
    Default("data.eval_fraction", 0.0, f"{_CONFIG}/data.py: train_eval_split"),
    Default("data.excess_length_strategy", "drop", f"{_DATA}/sft_factory.py: filter_samples", when=_is_sft),
    Default("data.group_by_length", False, f"{_DATA}/factory.py: create_dataloader"),
    Default("zero.stage", 2, f"{_CONFIG}/trainer.py: build_deepspeed_config"),
    Default("checkpoint.save_at_end", False, f"{_CONFIG}/checkpoint.py: save_end_of_training",
            when=lambda values: isinstance(values.get("checkpoint"), (list, dict))),
)  # fmt: skip


def parse_human_number(value: Any) -> Any:
    """`1_000`, `10k`, `5e-4`, `2^20` and `10%` as numbers; anything else as it is."""
    text = value.replace("_", "").strip().lower() if isinstance(value, str) else ""
    match = _HUMAN_NUMBER.fullmatch(text)
    if match is None:
        return float(text) if _PYTHON_NUMBER.fullmatch(text) else value
    number = float(match[1])
    if match[2] == "%":
        return number / 100
    number *= _SUFFIXES.get(match[2] or "", 1)
    if match[3]:
        number = float(f"{match[1]}e{match[3]}")
    elif match[4]:
        number **= int(match[4])
    return int(number) if number.is_integer() and abs(number) >= 1 else number


def flatten_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """The sections as dotted keys, and as they are; numbers for people as numbers."""
    values = dict(data)
    for name, section in data.items():
        if isinstance(section, Mapping) and name != "deepspeed":
            values |= {f"{name}.{key}": parse_human_number(value) for key, value in section.items()}
        elif not isinstance(section, (Mapping, list)):
            values[name] = parse_human_number(section)
    return values


def _convert(file: TrainerFile) -> None:
    for name in ("model", "tokenizer", "data", "optimizer", "scheduler", "wandb", "logger", "type"):
        file.take_value(name)
    file.take_value("tokenizer.type", "data.type")
    kind = file.take_value("model.type")
    if kind == "liger":
        file.add_harmless("model.type", "other kernels of the same functions")
    elif kind not in (None, "huggingface"):
        file.add_lossy("model.type", "a custom model class; the run spec trains that of `transformers`")
    _convert_length(file)
    _convert_model(file)
    _convert_optimizer(file)
    _convert_data(file)
    convert_mlp_tiles(file, "tiled_mlp_compute")
    _convert_checkpoints(file)
    if is_on(file.take_value("wandb.enable")):
        file.put("telemetry.trackers", ["wandb"])
    deepspeed = file.values.get("deepspeed")
    if not isinstance(deepspeed, Mapping) or deepspeed.get("gradient_clipping") is None:
        file.put("train.max_grad_norm", 1.0)
    interval = file.draft.get("eval.eval_steps")
    if interval == 0:
        file.draft.drop(("eval", "eval_steps"))
    if file.values.get("data.max_length") is None:
        place = file.source.place(("data",), of_key=True)
        text = (
            "no `max_length` in the file, ArcticTraining takes the model's own: set `data.max_length` (1024 without it)"
        )
        file.draft.add_note(place, text, "manual", "data.max_length")


def _convert_length(file: TrainerFile) -> None:
    stop, horizon = file.take_value("exit_iteration"), file.take_value("train_iters")
    has_decay = str(file.values.get("scheduler.name", "")) not in _WITHOUT_DECAY
    if is_on(horizon):
        file.put("train.max_steps", horizon)
        if is_on(stop):
            file.add_lossy("exit_iteration", "ends the run before its schedule; the run spec trains all `train_iters`")
    elif is_on(stop):
        file.put("train.max_steps", stop)
        if has_decay:
            file.add_lossy(
                "exit_iteration", "its schedule spans all epochs; in the run spec schedule and training end together"
            )
    epochs = file.take_value("epochs")
    if is_on(epochs) and file.draft.get("train.max_steps") is None:
        file.put("train.num_train_epochs", epochs)
    if is_on(file.values.get("min_iterations")) and not is_on(stop):
        file.add_manual("min_iterations", "repeats the data up to this number of steps: set `train.max_steps`")


def _convert_model(file: TrainerFile) -> None:
    dtype = str(file.take_value("model.dtype") or "bf16").lower()
    if "bf16" in dtype or "bfloat16" in dtype:
        file.put("precision.bf16", True)
    elif "16" in dtype:
        file.put("precision.fp16", True)
    if is_on(file.take_value("model.disable_activation_checkpoint")):
        file.put("train.gradient_checkpointing", False)
    peft = file.values.get("model.peft_config")
    if isinstance(peft, Mapping):
        for key, value in peft.items():
            if key not in ("peft_type", "task_type", "inference_mode"):
                file.put(f"model.lora.{key}", value)
        if file.draft.get("model.lora") is None:
            file.put("model.lora.r", 8)
        file.take_value("model.peft_config")


def _convert_optimizer(file: TrainerFile) -> None:
    kind = str(file.take_value("optimizer.type") or "fused_adam").lower().replace("_", "")
    if kind in ("cpuadam", "cpuadammoe"):
        file.put("zero.offload_optimizer.device", "cpu")
    elif kind not in ("fusedadam", "fusedadammoe"):
        file.add_lossy("optimizer.type", "the run spec trains with `optimizer.type: adamw`; it has no such optimizer")
    file.put("optimizer.type", "adamw")
    scheduler, name = file.take_value("scheduler.type"), file.take_value("scheduler.name")
    types = {"wsd": "warmup_stable_decay", "wds": "warmup_stable_decay", "constant_with_warmup": "constant"}
    kind = str(name or ("linear" if scheduler in (None, "huggingface") else scheduler))
    file.put("scheduler.type", types.get(kind, kind))
    if kind == "constant":
        file.draft.drop(("scheduler", "warmup_ratio"))
        if is_on(file.values.get("scheduler.warmup_ratio")):
            file.add_harmless("scheduler.warmup_ratio", "`constant` has no warm-up there")


def _convert_data(file: TrainerFile) -> None:
    for key, spec_key in (("data.sources", "data.train"), ("data.eval_sources", "data.eval")):
        sources = file.values.get(key)
        if isinstance(sources, list) and sources:
            converted, problem = _to_sources(sources, "text" if file.values.get("type") == "causal" else "messages")
            if problem:
                file.add_manual(key, f"{problem}: set `{spec_key}`")
            else:
                file.put(spec_key, converted)
            columns = {str(s["column"]) for s in sources if isinstance(s, Mapping) and s.get("column")}
            if len(columns) == 1:
                file.put("data.text_column", columns.pop())
            for source in sources:
                _add_source_notes(file, key, source)
            file.take_value(key)
    split = file.values.get("data.train_eval_split")
    if isinstance(split, list) and len(split) == 2 and isinstance(split[1], (int, float)):
        file.put("data.eval_fraction", float(file.take_value("data.train_eval_split")[1]))
    if file.values.get("data.filter_samples") is False:
        file.put("data.excess_length_strategy", "truncate")
        file.add_lossy("data.filter_samples", "longer records stay as they are, the run spec truncates them")


def _to_sources(sources: list[Any], format_: str) -> tuple[list[Any], str]:
    """Sources, or what keeps one of them from being one. A split may take a part, as `train[:100]`."""
    converted: list[Any] = []
    for source in sources:
        entry = {"name_or_path": source} if isinstance(source, str) else source
        if not isinstance(entry, Mapping) or not entry.get("name_or_path"):
            kind = entry.get("type") if isinstance(entry, Mapping) else None
            return [], f"a source of type `{kind}` is no file or dataset of the Hub"
        name, _, split = str(entry["name_or_path"]).partition(":")
        roles = entry.get("role_mapping")
        if isinstance(roles, Mapping) and format_ == "messages" and not _is_chat(roles):
            return [], f"`{name}` makes chats of other columns (`role_mapping`)"
        base, bracket, part = (split or str(entry.get("split") or "train")).partition("[")
        split = _SPLITS.get(name, {}).get(base, base) + bracket + part
        plain = {"path": name, "format": format_} | ({"split": split} if split != "train" else {})
        kwargs = entry.get("kwargs")
        if isinstance(kwargs, Mapping) and kwargs.get("name"):
            plain["name"] = str(kwargs["name"])
        converted.append(plain)
    return converted, ""


def _is_chat(roles: Mapping[str, Any]) -> bool:
    paths = [str(path).split(".") for path in roles.values()]
    return all(len(path) == 3 and path[0] in ("messages", "conversations") for path in paths)


def _add_source_notes(file: TrainerFile, key: str, source: Any) -> None:
    for name, value in source.items() if isinstance(source, Mapping) else ():
        if name in ("sample_ratio", "sample_count") and value is not None:
            file.add_lossy(
                key, f"`{name}: {value}` of `{source.get('name_or_path')}` draws some of its records; set a `weight`"
            )


def _convert_checkpoints(file: TrainerFile) -> None:
    value = file.take_value("checkpoint")
    for entry in _enabled_checkpoints(value):
        steps = parse_human_number(entry.get("save_every_n_steps"))
        if is_on(steps):
            file.put("checkpoint.save_steps", steps)
        if is_on(entry.get("save_every_n_epochs")):
            file.add_manual(
                "checkpoint", f"set `checkpoint.save_steps` to {entry['save_every_n_epochs']} x the steps of an epoch"
            )
        if is_on(entry.get("save_end_of_training")):
            file.put("checkpoint.save_at_end", True)
            if str(entry.get("type", "")).startswith("h"):
                file.put("export.at_end", True)
        if entry.get("output_dir"):
            file.put("launch.output_dir", str(entry["output_dir"]))
        if is_on(entry.get("auto_resume")):
            file.add_harmless("checkpoint", "`auto_resume`: `harness launch --resume auto`")


def _enabled_checkpoints(value: Any) -> Iterator[Mapping[str, Any]]:
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, Mapping) and entry.get("enabled", True):
            yield entry


ARCTIC_TRAINING = Program(
    "ArcticTraining",
    ("0.0.3", "0.8.0"),
    _KEYS,
    _DEFAULTS,
    _convert,
    frozenset(
        """skip_validation train_log_iter_interval train_log_metrics_path eval_log_iter_interval mem_profiler
        mem_profiler_dir mem_profiler_max_entries kill_switch_path model.save_name data.dl_num_workers
        data.use_data_cache data.cache_processed_data data.cache_dir data.cache_fs_type data.fail_on_missing_cache
        logger.level logger.output_dir logger.print_output_ranks logger.file_output_ranks wandb.name wandb.enable
        data.div_length data.pad_to enable_arctic_moe_custom_optimization
        exit_iteration_this_run step_timer ray""".split()
    ),
    {
        "code": "custom code, which the run spec does not run",
        "data.seed": "has a separate seed for the order of the data; the run spec uses `train.seed`",
        "data.always_max_length": "cuts the last record of a packed sequence, the run spec keeps records whole",
        "data.drop_last": "drops the last, shorter sequence",
        "data.fuse_positions_prob": "joins the positions of packed records",
        "data.repeat_to_pack_max_length": "repeats records until a sequence is full",
        "data.ignore_empty_think": "does not train on empty thoughts, the run spec does",
        "overfit_first_batch": "trains on the first batch alone",
        "model.hf_config_kwargs": "changes the model's configuration",
        "tokenizer.tokenize_kwargs": "arguments of the tokenizer",
        "scheduler.scheduler_specific_kwargs": "arguments of the schedule",
        "arctic_moe": "replaces the experts by its own",
        "enable_routing_replay": "keeps the routes of the experts",
        "min_iterations": "repeats the data",
    },
    {
        "expert_parallel_size": ("deepspeed.expert_parallel", ""),
        "data.sources": ("data.train", ""),
        "data.train_eval_split": ("data.eval_fraction", ""),
    },
    {
        "data.seed": (42,),
        "min_iterations": (0,),
        "exit_iteration": (0,),
        "train_iters": (0,),
        "expert_parallel_size": (1,),
        "data.filter_samples": (True,),
        "arctic_moe": (False,),
        "data.fuse_positions_prob": (0, 0.0),
    },
)
