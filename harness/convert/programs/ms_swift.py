# SPDX-License-Identifier: Apache-2.0
"""ms-swift: `swift sft` and `swift pt` with a YAML, a JSON or options (`swift/arguments`), read in 3.3.0 to 4.5.2."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.convert.lora_settings import LORA_KEYS, convert_lora, trains_lora
from harness.convert.mlp_tiles import convert_mlp_tiles
from harness.convert.programs import trainer_arguments as shared
from harness.convert.programs.hf_trainer import has_steps
from harness.convert.trainer_file import Default, Program, TrainerFile, Values, is_on

_ARGUMENTS = "ms-swift: swift/arguments"
_TRAINERS = "ms-swift: swift/trainers/arguments.py"
DEEPSPEED_PRESETS: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero2_offload": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "zero3": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    "zero3_offload": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}
"""Words for `deepspeed`: what the files of these names in `swift/config` say of ZeRO beyond sizes of buckets."""


def _eval_strategy(values: Values) -> Any:
    """Without a strategy of its own an evaluation follows the saves (`sft_args.py: _init_eval_strategy`)."""
    named = [values.get(name) for name in ("eval_strategy", "evaluation_strategy", "save_strategy")]
    return next((name for name in named if name is not None), "steps")


def _save_steps(values: Values) -> int | None:
    steps = values.get("save_steps", 500)
    return steps if isinstance(steps, int) else None


_DEFAULTS = (
    Default("optimizer.learning_rate", 1e-5, f"{_ARGUMENTS}/sft_args.py: _init_override",
            when=lambda values: not trains_lora(values)),
    Default("optimizer.learning_rate", 1e-4, f"{_ARGUMENTS}/sft_args.py: _init_override", when=trains_lora),
    Default("optimizer.weight_decay", 0.1, f"{_TRAINERS}: weight_decay"),
    Default("optimizer.betas", [0.9, 0.95], f"{_TRAINERS}: adam_beta2"),
    Default("scheduler.type", "cosine", f"{_TRAINERS}: lr_scheduler_type"),
    Default("train.per_device_train_batch_size", 1, f"{_TRAINERS}: per_device_train_batch_size"),
    Default("train.num_train_epochs", 3.0, "transformers: training_args.py", when=lambda values: not has_steps(values)),
    Default("train.gradient_checkpointing", True, f"{_TRAINERS}: gradient_checkpointing"),
    Default("data.excess_length_strategy", "drop", f"{_ARGUMENTS}/base_args/template_args.py: truncation_strategy"),
    Default("data.eval_fraction", 0.01, f"{_ARGUMENTS}/base_args/data_args.py: split_dataset_ratio", until="3.6.0"),
    Default("data.eval_fraction", 0.0, f"{_ARGUMENTS}/base_args/data_args.py: split_dataset_ratio", since="3.6.0"),
    Default("data.group_by_length", False, f"{_TRAINERS}: group_by_length"),
    Default("checkpoint.save_steps", 500, "transformers: training_args.py",
            when=lambda values: values.get("save_strategy") in (None, "steps")),
    Default("eval.eval_steps", _save_steps, f"{_ARGUMENTS}/sft_args.py: _init_eval_strategy",
            when=lambda values: _eval_strategy(values) == "steps"),
    Default("model.lora.lora_alpha", 32, f"{_ARGUMENTS}/tuner_args.py: lora_alpha", when=trains_lora),
    Default("model.lora.lora_dropout", 0.05, f"{_ARGUMENTS}/tuner_args.py: lora_dropout", when=trains_lora),
    Default("model.lora.target_modules", "all-linear", f"{_ARGUMENTS}/tuner_args.py: target_modules", when=trains_lora),
)  # fmt: skip
_SAMPLED = re.compile(r"(?P<path>[^#]+?)(?:#(?P<count>-?\d+))?")
_KERNELS = {
    "flash_attn": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
    "flash_attention_3": "flash_attention_3",
    "sdpa": "sdpa",
    "eager": "eager",
}
_NO_MASTERS = (
    "without DeepSpeed ms-swift trains the bf16 weights themselves: no fp32 masters, and states in bf16 (8 bytes a"
    " parameter); the spec has fp32 masters (16 bytes), `harness plan` of this file counts as ms-swift does"
)
_STRATEGIES = {"delete": "drop", "right": "truncate", "split": "split"}


def _convert(file: TrainerFile) -> None:
    shared.convert_trainer_arguments(file)
    convert_lora(file, "target_modules")
    file.take_value("tuner_type", "train_type")
    for key, spec_key in (("dataset", "data.train"), ("val_dataset", "data.eval")):
        _convert_dataset(file, key, spec_key)
    _convert_preference_columns(file)
    _convert_precision(file)
    _convert_text(file)
    _convert_batch(file)
    patience = file.take_value("early_stop_interval")
    if patience is not None:
        file.put("eval.early_stopping_patience", patience)
    convert_mlp_tiles(file, "use_tiled_mlp", "tiled_mlp_num_shards")
    if file.values.get("deepspeed") in (None, "") and not trains_lora(file.values) and file.draft.get("precision.bf16"):
        file.draft.add_note(file.source.place(()), _NO_MASTERS, "lossy")
    if is_on(file.values.get("sequence_parallel_size")):
        file.put("parallel.sequence_parallel_size", file.take_value("sequence_parallel_size"))
    if is_on(file.values.get("deepspeed_autotp_size")):
        file.put("parallel.tensor_parallel_size", file.take_value("deepspeed_autotp_size"))


def _convert_dataset(file: TrainerFile, key: str, spec_key: str) -> None:
    """`hub/name:subset#count`, or a file; ms-swift takes names of ModelScope unless `use_hf` is on."""
    value = file.values.get(key)
    names = [str(name) for name in (value if isinstance(value, list) else str(value or "").split()) if str(name)]
    if not names:
        return
    sources: list[Any] = []
    for name in names:
        match = _SAMPLED.fullmatch(name)
        path = match["path"] if match else name
        is_file = path.endswith((".jsonl", ".json", ".csv", ".txt", ".parquet")) or path.startswith((".", "/"))
        path, _, subset = (path, "", "") if is_file else path.removeprefix("hf::").removeprefix("HF::").partition(":")
        sources.append({"path": path, "name": subset} if subset else path)
        if match and match["count"] and match["count"] != "-1":
            file.add_lossy(key, f"takes {match['count']} records of `{path}`, the run spec all")
        if not is_file and not name.lower().startswith("hf::") and not is_on(file.values.get("use_hf")):
            file.add_manual(
                key, f"`{path}` is a name of ModelScope: set `{spec_key}` to the same data on the Hub or in files"
            )
    file.put(spec_key, sources)
    file.take_value(key, "use_hf")


def _convert_preference_columns(file: TrainerFile) -> None:
    """Files for `swift rlhf` have a chat whose last turn is the preferred answer."""
    objective, sources = file.draft.get("objective"), file.draft.get("data.train")
    if objective is None or not isinstance(sources, list):
        return
    if all(isinstance(path, str) and path.endswith((".jsonl", ".json", ".csv")) for path in sources):
        file.put("data.completion_column" if objective == "kto" else "data.chosen_column", "messages")
        if objective in ("dpo", "reward"):
            file.put("data.rejected_column", "rejected_response")


def _convert_precision(file: TrainerFile) -> None:
    dtype = file.take_value("torch_dtype")
    if file.draft.get("precision.bf16") is None and file.draft.get("precision.fp16") is None:
        if dtype == "bfloat16":
            file.put("precision.bf16", True)
        elif dtype in ("float16", "float32"):
            file.put("precision.fp16", True)
            if dtype == "float32":
                file.add_manual("torch_dtype", "ms-swift computes in fp16 over such weights, as the spec does")
        else:
            file.draft.put("precision.bf16", True, "ms-swift takes the model's own format")
            if dtype is not None:
                file.add_manual("torch_dtype", "set `precision`")


def _convert_text(file: TrainerFile) -> None:
    kernel = file.take_value("attn_impl")
    if str(kernel) in _KERNELS:
        file.put("model.attn_implementation", _KERNELS[str(kernel)])
    elif kernel is not None:
        file.add_manual("attn_impl", "set `model.attn_implementation`")
    strategy = file.take_value("truncation_strategy")
    if strategy in _STRATEGIES:
        file.put("data.excess_length_strategy", _STRATEGIES[str(strategy)])
    elif strategy is not None:
        file.add_lossy("truncation_strategy", "cuts at the start of a record, the run spec at the end")
        file.put("data.excess_length_strategy", "truncate")
    _convert_selection(file)
    _convert_held_out_data(file)


def _convert_held_out_data(file: TrainerFile) -> None:
    size = file.values.get("split_dataset_ratio")
    if _eval_strategy(file.values) in ("no", False):
        file.put("data.eval_fraction", 0.0)
        if is_on(size):
            file.add_harmless("split_dataset_ratio", "nothing is held out, since nothing is evaluated")
    elif isinstance(size, (int, float)):
        file.put("data.eval_fraction", float(file.take_value("split_dataset_ratio")))


def _convert_selection(file: TrainerFile) -> None:
    """Convert the choice of records, tokens and parameters that are trained."""
    if file.values.get("max_length") is None:
        place = file.source.place(("model",), of_key=True)
        text = "no `max_length` in the file, ms-swift takes the model's own: set `data.max_length` (1024 without it)"
        file.draft.add_note(place, text, "manual", "max_length")
    if is_on(file.take_value("packing")):
        file.put("data.packing", True)
    if file.take_value("dataset_shuffle") is False or file.take_value("train_dataloader_shuffle") is False:
        file.put("data.shuffle", False)
    scale = str(file.take_value("loss_scale") or "default")
    if scale == "all":
        file.put("data.assistant_only_loss", False)
    elif scale.split("+", maxsplit=1)[0] != "default" or "+" in scale:
        file.add_lossy(
            "loss_scale",
            "weighs tokens by its own rules; the run spec gives all tokens of the assistant the same weight",
        )
    for key, glob in (("freeze_parameters", "model.freeze"), ("trainable_parameters", "model.train_only")):
        names = file.values.get(key)
        if isinstance(names, list) and names:
            file.put(glob, [f"{name}*" for name in names])
            file.take_value(key)


def _convert_batch(file: TrainerFile) -> None:
    """Without accumulation steps a global batch of about 16 (`TrainArgumentsMixin.__post_init__`)."""
    if "gradient_accumulation_steps" in file.handled:
        return
    micro, ranks = file.values.get("per_device_train_batch_size", 1), file.ranks
    if not isinstance(micro, int) or micro < 1:
        return
    remark = "ms-swift's default: 16 / micro-batch / ranks, rounded up"
    if ranks:
        file.draft.put("train.gradient_accumulation_steps", max(1, -(-16 // (micro * ranks))), remark)
    elif 16 % micro == 0:
        file.draft.put("train.global_batch_size", 16, remark)
    else:
        place = file.source.place(("per_device_train_batch_size",), of_key=True)
        text = f"no accumulation steps: set `train.gradient_accumulation_steps` to 16 / {micro} / ranks, rounded up"
        file.draft.add_note(place, text, "manual", "gradient_accumulation_steps")


def fill_preset(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The DeepSpeed JSON for a word such as `zero2`, with the keys that ms-swift adds; None for a file."""
    preset = DEEPSPEED_PRESETS.get(str(values.get("deepspeed", "")).removeprefix("default-"))
    if preset is None:
        return None
    zero = dict(preset)
    if values.get("zero_hpz_partition_size"):
        zero["zero_hpz_partition_size"] = values["zero_hpz_partition_size"]
    keys = "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps gradient_clipping".split()
    return {
        **dict.fromkeys(keys, "auto"),
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero,
    }


MS_SWIFT = Program(
    "ms-swift",
    ("3.3.0", "4.5.2"),
    {
        **shared.KEYS,
        "model": "model.name_or_path",
        "model_revision": "model.revision",
        "max_length": "data.max_length",
        "dataset_num_proc": "data.num_proc",
        "streaming": "data.streaming",
        "max_epochs": "train.num_train_epochs",
    },
    _DEFAULTS,
    _convert,
    shared.HARMLESS
    | LORA_KEYS
    | set(
        """add_version create_checkpoint_symlink tuner_backend lazy_tokenize load_from_cache_file download_mode strict
        external_plugins_off check_model ddp_timeout ddp_backend ignore_args_error use_swift_lora hub_token use_hf
        model_type load_args load_data_args packing_num_proc packing_strategy packing_length padding_free
        padding_side val_dataset_shuffle shuffle_buffer_size stopping_strategy data_sharding acc_strategy
        safe_serialization max_shard_size use_logits_to_keep ds3_gather_for_generation resume_only_model eval_limit
        swanlab_project swanlab_token swanlab_workspace swanlab_exp_name swanlab_mode swanlab_notification_method
        eval_use_evalscope eval_dataset eval_dataset_args eval_generation_config extra_eval_args max_new_tokens
        temperature logging_dir device_map max_memory local_repo_path use_flash_ckpt template_backend response_prefix
        model_kwargs zero_hpz_partition_size enable_npu_model_patch use_chat_template
        experts_impl use_ray ray_exp_name""".split()
    ),
    {
        **shared.LOSSY,
        "model_name": "writes this name into records of `swift/self-cognition`",
        "model_author": "writes this name into records of `swift/self-cognition`",
        "agent_template": "formats tools by its own rules; the run spec by the chat template",
        "tools_prompt": "formats tools by its own rules; the run spec by the chat template",
        "new_special_tokens": "adds tokens to the vocabulary, the run spec does not",
        "rope_scaling": "stretches the position embeddings, the run spec takes them from the model",
        "max_model_len": "stretches the position embeddings, the run spec takes them from the model",
        "router_aux_loss_coef": "another weight of the experts' balance loss; the run spec takes the model's",
        "loss_scale": "weighs tokens by its own rules",
        "external_plugins": "custom code, which the run spec does not run",
        "custom_register_path": "custom code, which the run spec does not run",
        "callbacks": "custom code, which the run spec does not run",
        "optimizer": "a custom optimizer; the run spec trains with `optimizer.type`",
        "lora_dtype": "adapters in another format, those of the run spec are fp32",
        "enable_thinking": "adds or removes an empty thought in each answer",
        "preserve_thinking": "keeps the thoughts of earlier turns",
        "add_non_thinking_prefix": "adds an empty thought to each answer",
        "disable_ignore_empty_think": "trains on empty thoughts",
        "interleave_prob": "alternates between the datasets, the run spec reads each once",
        "trainable_parameters_regex": "trains parameters by name: set `model.train_only`",
        "freeze_parameters_regex": "freezes parameters by name: set `model.freeze`",
        "enable_channel_loss": "reports the loss by source",
        "columns": "renames columns of the records: set `data.*_column`",
        "task_type": "a head of another task",
    },
    {
        **shared.MANUAL,
        "template": ("data.chat_template", " where it differs from the tokenizer's own, which the run spec uses"),
        "system": ("data.train", " to chats with this system prompt"),
        "custom_dataset_info": ("data.train", ""),
        "cached_dataset": ("data.train", " to the records, not their tokens"),
        "cached_val_dataset": ("data.eval", " to the records, not their tokens"),
    },
    {
        **shared.NEUTRAL,
        "task_type": ("causal_lm",),
        "router_aux_loss_coef": (0, 0.0),
        "add_non_thinking_prefix": (True,),
        "enable_channel_loss": (False, True),
        "callbacks": ([], ["default"]),
    },
)
