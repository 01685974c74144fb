# SPDX-License-Identifier: Apache-2.0
"""axolotl: one YAML (`src/axolotl/utils/schemas`), read in 0.5.0 to 0.18.0."""

from __future__ import annotations

from typing import Any

from harness.convert.axolotl_datasets import convert_datasets
from harness.convert.lora_settings import LORA_KEYS, convert_lora
from harness.convert.mlp_tiles import convert_mlp_tiles
from harness.convert.programs import trainer_arguments as shared
from harness.convert.trainer_file import Default, Program, TrainerFile, Values, is_on

_SCHEMAS = "axolotl: src/axolotl/utils/schemas"
_BUILDER = "axolotl: src/axolotl/core/builders/base.py"
_SAVES = "_configure_save_and_eval_strategy"


def _default_warmup_steps(values: Values) -> int | None:
    steps = values.get("max_steps")
    return min(int(0.03 * steps), 100) if isinstance(steps, int) and steps > 0 else None


def _has_no_warmup(values: Values) -> bool:
    return values.get("warmup_steps") is None and values.get("warmup_ratio") is None


_DEFAULTS = (
    Default("data.max_length", 512, f"{_SCHEMAS}/config.py: sequence_len"),
    Default("data.excess_length_strategy", "drop", "axolotl: src/axolotl/utils/data/utils.py: excess_length_strategy",
            when=lambda values: not values.get("pretraining_dataset") and not _is_text(values)),
    Default("data.assistant_only_loss", "to-eos", "axolotl: prompt_strategies/chat_template.py: train_on_eos",
            when=lambda values: "chat_template" in _list_types(values)),
    Default("data.eval_fraction", 0.0, f"{_SCHEMAS}/config.py: val_set_size"),
    Default("data.group_by_length", False, f"{_SCHEMAS}/training.py: group_by_length"),
    Default("train.per_device_train_batch_size", 1, f"{_SCHEMAS}/training.py: micro_batch_size"),
    Default("train.num_train_epochs", 1.0, f"{_SCHEMAS}/training.py: num_epochs",
            when=lambda values: not values.get("max_steps")),
    Default("scheduler.type", "cosine", f"{_SCHEMAS}/training.py: lr_scheduler"),
    Default("scheduler.warmup_steps", _default_warmup_steps, f"{_BUILDER}: _configure_warmup_and_logging",
            when=_has_no_warmup),
    Default(
        "scheduler.warmup_ratio",
        0.03,
        f"{_BUILDER}: _configure_warmup_and_logging, at most 100 steps",
        when=lambda values: _has_no_warmup(values) and _default_warmup_steps(values) is None,
    ),
    Default("precision.bf16", True, f"{_SCHEMAS}/config.py: bf16, auto",
            when=lambda values: values.get("bf16") is None and not is_on(values.get("fp16"))),
    Default("checkpoint.save_total_limit", 4, f"{_BUILDER}: {_SAVES}",
            when=lambda values: bool(values.get("save_steps"))),
)  # fmt: skip


_KERNEL_PLUGINS = tuple(f"axolotl.integrations.{name}" for name in ("liger", "cut_cross_entropy", "kernels"))
"""Plugins that compute the same by other kernels."""


def _list_types(values: Values) -> list[Any]:
    """The `type` of each dataset; of one that is a path alone, an empty text."""
    entries = values.get("datasets")
    found = entries if isinstance(entries, list) else []
    return [entry.get("type") if isinstance(entry, dict) else "" for entry in found]


def _is_text(values: Values) -> bool:
    return all(kind in (None, "completion", "pretrain") for kind in _list_types(values) or [""])


def _convert(file: TrainerFile) -> None:
    shared.convert_trainer_arguments(file)
    convert_lora(file, "lora_target_modules")
    convert_datasets(file)
    convert_mlp_tiles(file, "tiled_mlp", "tiled_mlp_num_shards")
    _convert_attention(file)
    _convert_steps_per_epoch(file, "saves_per_epoch", "checkpoint.save_steps")
    _convert_steps_per_epoch(file, "evals_per_epoch", "eval.eval_steps")
    if not any(file.values.get(key) for key in ("save_steps", "saves_per_epoch", "save_strategy")):
        place = file.source.place(("output_dir",), of_key=True)
        text = "axolotl saves after each epoch: set `checkpoint.save_steps` to its steps (without it: at the end)"
        file.draft.add_note(place, text, "manual", "save_strategy")
    if _has_no_warmup(file.values) and _default_warmup_steps(file.values) is None:
        place = file.source.place(("base_model",), of_key=True)
        text = "no warm-up in the file: 3 % of the steps, and axolotl stops at 100; set `scheduler.warmup_steps: 100`"
        file.draft.add_note(place, f"{text} for a run of more than 3,333 steps", "manual", "warmup_ratio")
    if is_on(file.values.get("activation_offloading")):
        file.put("train.gradient_checkpointing", True)
        file.put("train.offload_activations", file.take_value("activation_offloading") is not None)
    plugins = file.values.get("plugins")
    if isinstance(plugins, list) and all(str(plugin).startswith(_KERNEL_PLUGINS) for plugin in plugins):
        file.take_value("plugins")
    patience = file.take_value("early_stopping_patience")
    if patience is not None:
        file.put("eval.early_stopping_patience", patience)
    _convert_trackers(file)
    _convert_batch_size(file)


def _convert_batch_size(file: TrainerFile) -> None:
    """`batch_size` counts the rows of one rank's step."""
    total, micro = file.values.get("batch_size"), file.values.get("micro_batch_size")
    if (
        isinstance(total, int)
        and isinstance(micro, int)
        and micro > 0
        and total % micro == 0
        and not file.values.get("gradient_accumulation_steps")
    ):
        file.put("train.gradient_accumulation_steps", total // micro)
        file.take_value("batch_size")


def _convert_attention(file: TrainerFile) -> None:
    kernels = {"flash_attention": "flash_attention_2", "sdp_attention": "sdpa", "eager_attention": "eager"}
    for key, kernel in kernels.items():
        if is_on(file.take_value(key)):
            file.put("model.attn_implementation", kernel)
    if file.values.get("attn_implementation") in ("eager", "sdpa", "flash_attention_2", "flash_attention_3"):
        file.put("model.attn_implementation", file.take_value("attn_implementation"))


def _convert_steps_per_epoch(file: TrainerFile, name: str, key: str) -> None:
    """So many times an epoch: a share of all steps."""
    times = file.values.get(name)
    if not is_on(times) or (
        key.startswith("eval") and not is_on(file.values.get("val_set_size")) and not file.values.get("test_datasets")
    ):
        file.take_value(name)
        return
    steps, epochs = file.draft.get("train.max_steps"), file.values.get("num_epochs") or 1
    file.put(key, None)
    if isinstance(steps, int) and isinstance(times, (int, float)) and isinstance(epochs, (int, float)):
        file.put(key, max(1, round(steps / (times * epochs))))
        file.take_value(name)
    else:
        file.add_manual(
            name, f"set `{key}` to the steps of an epoch / {times}; without it this happens only at the end"
        )


def _convert_trackers(file: TrainerFile) -> None:
    trackers = []
    if is_on(file.values.get("use_wandb")) or (
        file.values.get("wandb_project") and file.values.get("use_wandb") is None
    ):
        trackers.append("wandb")
    trackers += [name for name in ("tensorboard", "mlflow") if is_on(file.values.get(f"use_{name}"))]
    if trackers:
        file.put("telemetry.trackers", trackers)
    project: Any = file.values.get("wandb_project") or file.values.get("mlflow_experiment_name")
    if project:
        file.put("telemetry.project", str(project))
    if file.values.get("wandb_entity"):
        file.put("telemetry.wandb_entity", str(file.values["wandb_entity"]))
    file.take_value(
        "use_wandb", "use_tensorboard", "use_mlflow", "wandb_project", "mlflow_experiment_name", "wandb_entity"
    )


AXOLOTL = Program(
    "axolotl",
    ("0.5.0", "0.18.0"),
    {
        **{key: value for key, value in shared.KEYS.items() if not key.startswith("per_device")},
        "base_model": "model.name_or_path",
        "revision_of_model": "model.revision",
        "tokenizer_config": "model.tokenizer",
        "sequence_len": "data.max_length",
        "excess_length_strategy": "data.excess_length_strategy",
        "micro_batch_size": "train.per_device_train_batch_size",
        "eval_batch_size": "eval.per_device_eval_batch_size",
        "num_epochs": "train.num_train_epochs",
        "context_parallel_size": "parallel.sequence_parallel_size",
        "sequence_parallel_degree": "parallel.sequence_parallel_size",
        "tensor_parallel_size": "parallel.tensor_parallel_size",
        "cosine_min_lr_ratio": "scheduler.min_lr_ratio",
        "dataset_processes": "data.num_proc",
        "dataset_num_proc": "data.num_proc",
        "pad_to_multiple_of": "data.pad_to_multiple_of",
        "streaming": "data.streaming",
        "shuffle_merged_datasets": "data.shuffle",
    },
    _DEFAULTS,
    _convert,
    shared.HARMLESS
    | LORA_KEYS
    | set(
        """strict base_model_config model_type tokenizer_type tokenizer_use_fast tokenizer_legacy
        is_falcon_derived_model is_llama_derived_model is_mistral_derived_model is_qwen_derived_model
        base_model_ignore_patterns
        dataset_prepared_path dataset_keep_in_memory skip_prepare_dataset push_dataset_to_hub hf_use_auth_token
        num_dataset_shards_to_save device device_map ddp wandb_name wandb_run_id wandb_watch wandb_log_model wandb_mode
        wandb_run_name mlflow_run_name mlflow_tracking_uri hf_mlflow_log_artifacts use_comet comet_api_key comet_mode
        comet_online comet_workspace comet_project_name comet_experiment_key comet_experiment_config use_trackio
        use_otel_metrics gc_steps gc_collect_steps sample_packing_group_size sample_packing_bin_size
        sample_packing_sequentially sample_packing_eff_est sample_packing_mp_start_method pad_to_sequence_len
        multipack_real_batches eval_sample_packing total_num_tokens total_supervised_tokens torchdistx_path
        flash_attn_cross_entropy flash_attn_rms_norm flash_attn_fuse_mlp flash_attn_fuse_qkv flash_optimum
        xformers_attention flex_attention flex_attn_compile_kwargs sage_attention s2_attention_off lora_mlp_kernel
        lora_qkv_kernel lora_o_kernel lora_embedding_kernel lora_on_cpu lora_fan_in_fan_out liger_rope liger_rms_norm
        liger_glu_activation liger_swiglu liger_layer_norm liger_fused_linear_cross_entropy liger_cross_entropy
        liger_use_token_scaling cut_cross_entropy chunked_cross_entropy chunked_cross_entropy_num_chunks
        unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_qkv unsloth_lora_o unsloth_rms_norm unsloth_rope
        tiled_mlp_use_original_mlp eval_table_size eval_max_new_tokens
        eval_table_max_new_tokens eval_causal_lm_metrics do_causal_lm_eval do_bench_eval bench_dataset
        save_first_step auto_resume_from_checkpoints profiler_steps profiler_steps_start include_tkps
        experimental_skip_move_to_device use_kernels merge_lora merge_method low_cpu_mem_usage max_memory
        gpu_memory_limit axolotl_config_path saves_safetensors local_rank world_size deepcompile heads_k_stride
        ring_attn_func loss_watchdog_patience scattermoe sonicmoe experts_implementation
        use_swanlab swanlab_project swanlab_experiment_name swanlab_description swanlab_mode swanlab_workspace
        loraplus_lr_embedding layer_offloading qlora_sharded_model_loading sdpa_varlen
        model_quantization_config_kwargs""".split()
    ),
    {
        **shared.LOSSY,
        "special_tokens": "names its own special tokens, the run spec takes the tokenizer's",
        "tokens": "adds tokens to the vocabulary, the run spec does not",
        "added_tokens_overrides": "renames tokens of the vocabulary",
        "resize_token_embeddings_to_32x": "adds rows to the embeddings, the run spec does not",
        "shrink_embeddings": "takes rows off the embeddings",
        "eot_tokens": "names the tokens that end a turn; the run spec takes the chat template's",
        "default_system_message": "puts a system prompt before each chat, the run spec does not",
        "noisy_embedding_alpha": "adds noise to the embeddings, the run spec does not",
        "rope_scaling": "stretches the position embeddings, the run spec takes them from the model",
        "overrides_of_model_config": "changes the model's configuration",
        "model_config": "changes the model's configuration",
        "overrides_of_model_kwargs": "changes how the model is loaded",
        "s2_attention": "attends in shifted groups, the run spec attends to all",
        "max_packed_sequence_len": "packs by an old rule",
        "min_sample_len": "drops records that are shorter, the run spec keeps them",
        "eval_sequence_len": "another length for evaluation, the run spec has one",
        "dataset_exact_deduplication": "drops records that occur twice, the run spec keeps them",
        "dataset_shard_num": "takes a part of the data, the run spec all",
        "dataset_shard_idx": "takes a part of the data, the run spec all",
        "shuffle_before_merging_datasets": "another order of the data",
        "curriculum_sampling": "another order of the data",
        "batch_flattening": "puts the rows of a batch into one, without padding: the same tokens in other batches",
        "embedding_lr": "another learning rate for embeddings, the run spec has one",
        "embedding_lr_scale": "another learning rate for embeddings, the run spec has one",
        "lr_groups": "learning rates by group, the run spec has one",
        "lr_quadratic_warmup": "warms up by the square, the run spec linearly",
        "cosine_constant_lr_ratio": "holds the last rate from this share of the steps on, the run spec does not",
        "lr_div_factor": "another start of the schedule",
        "float16": "only 16-bit weights; the run spec keeps fp32 master weights",
        "bfloat16": "only 16-bit weights; the run spec keeps fp32 master weights",
        "float32": "trains in fp32",
        "fix_untrained_tokens": "sets embeddings of tokens that were never trained",
        "embeddings_skip_upcast": "keeps embeddings in 16 bit",
        "reinit_weights": "trains from random weights: set `model.random_init`",
        "loss_watchdog_threshold": "ends the run where the loss stays above it, the run spec does not",
        "use_pose": "stretches positions by skipping some",
        "plugins": "custom code, which the run spec does not run",
        "trainer_cls": "custom code, which the run spec does not run",
        "chat_template_kwargs": "arguments of the chat template",
        "peft_autocast_adapter_dtype": "adapters in the weights' format",
        "jagged_restart_steps": "restarts the schedule, the run spec does not",
        "jagged_restart_warmup_steps": "restarts the schedule, the run spec does not",
        "jagged_restart_anneal_steps": "restarts the schedule, the run spec does not",
        "eval_strategy": "evaluates at other times",
    },
    {
        **shared.MANUAL,
        "val_set_size": ("data.eval_fraction", " to this number of records as a share of all"),
        "attn_implementation": ("model.attn_implementation", " to one that the run spec has"),
        "batch_size": ("train.gradient_accumulation_steps", ""),
        "expert_parallel_size": ("deepspeed.expert_parallel", ""),
        "fsdp_version": ("zero.stage", ": 3, which shards as FSDP does"),
        "dp_shard_size": ("zero.stage", ": 3, which shards as FSDP does"),
        "dp_replicate_size": ("zero.stage", ": 3, which shards as FSDP does"),
        "fsdp_final_state_dict_type": ("zero.stage", ": 3, which shards as FSDP does"),
        "datasets": ("data.train", ""),
    },
    {
        **shared.NEUTRAL,
        "val_set_size": (0, 0.0),
        "shuffle_merged_datasets": (True,),
        "default_system_message": ("",),
        "dp_shard_size": (1,),
        "batch_flattening": (False,),
        "loss_watchdog_threshold": (0, 0.0),
    },
)
