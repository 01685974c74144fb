# SPDX-License-Identifier: Apache-2.0
"""Names of the Hugging Face Trainer, TRL, LLaMA-Factory, axolotl, accelerate, Lightning and Megatron for keys of a run
spec, and for settings that a run spec does not have.

Imported for unknown keys alone. A name that a run spec has too, in whatever section, needs no entry.
"""

from __future__ import annotations

from collections.abc import Mapping

_NAMES_BY_KEY: Mapping[str, str] = {
    "train.global_batch_size": "train_batch_size effective_batch_size total_batch_size",
    "train.per_device_train_batch_size": """
        train_micro_batch_size_per_gpu micro_batch_size micro_batch_size_per_gpu batch_size per_gpu_train_batch_size
        per_device_batch_size""",
    "train.max_grad_norm": "gradient_clipping clip_grad clip_grad_norm grad_clip gradient_clip_val max_norm",
    "zero": "zero_optimization",
    "zero.stage": "zero_stage",
    "zero.offload_optimizer.device": "cpu_offload offload_optimizer_device",
    "zero.offload_optimizer.nvme_path": "offload_optimizer_nvme_path",
    "zero.offload_param.device": "offload_param_device",
    "zero.offload_param.nvme_path": "offload_param_nvme_path",
    "zero.stage3_gather_16bit_weights_on_model_save": "zero3_save_16bit_model",
    "parallel.tensor_parallel_size": "tensor_parallel autotp_size tp_size tp tensor_model_parallel_size",
    "parallel.pipeline_parallel_size": "pipeline num_stages pp pp_size pipeline_model_parallel_size pipe_parallel_size",
    "parallel.sequence_parallel_size": "sp sp_size context_parallel_size sequence_parallel_degree ulysses_size",
    "model.name_or_path": """
        model_name_or_path model_name model_id model_path base_model pretrained_model_name_or_path pretrained
        hf_model model.name model.path model.model model.id""",
    "model.revision": "model_revision revision_of_model",
    "model.tokenizer": "tokenizer_name tokenizer_name_or_path tokenizer_config tokenizer_path",
    "model.attn_implementation": """
        flash_attn use_flash_attn flash_attention use_flash_attention use_flash_attention_2 sdp_attention
        attention_implementation attention""",
    "model.train_only": "unfrozen_parameters trainable_params",
    "model.freeze": "freeze_layers frozen_parameters freeze_modules",
    "model.lora": "lora peft peft_config lora_config use_lora use_peft adapter finetuning_type",
    "model.lora.r": "lora_r lora_rank r model.lora.rank",
    "model.lora.lora_alpha": "lora_alpha model.lora.alpha",
    "model.lora.lora_dropout": "lora_dropout model.lora.dropout",
    "model.lora.target_modules": (
        "target_modules lora_target lora_target_modules lora_target_linear model.lora.target model.lora.modules"
    ),
    "model.lora.modules_to_save": "modules_to_save lora_modules_to_save additional_target",
    "model.lora.use_rslora": "use_rslora peft_use_rslora",
    "model.quantization": "quantization_config bnb_config",
    "model.quantization.load_in_4bit": "load_in_4bit",
    "model.quantization.bnb_4bit_quant_type": "bnb_4bit_quant_type quantization_type",
    "model.quantization.bnb_4bit_use_double_quant": "bnb_4bit_use_double_quant double_quantization",
    "data.train": """
        dataset datasets train_dataset train_file train_files train_data train_datasets data_path data_files
        dataset_name dataset_path dataset_name_or_path dataset_dir data.path data.file data.files data.name""",
    "data.eval": (
        "eval_dataset eval_data eval_file validation_file validation_data val_dataset test_datasets data.validation"
    ),
    "data.eval_fraction": """
        validation_split validation_split_percentage val_split val_size val_set_size test_size eval_split_ratio
        test_split""",
    "data.max_length": """
        max_seq_length max_seq_len max_sequence_length seq_len seq_length sequence_len sequence_length cutoff_len
        block_size model_max_length context_length""",
    "data.packing": "sample_packing neat_packing",
    "data.text_column": "dataset_text_field text_field data.field",
    "data.messages_column": "field_messages data.messages",
    "data.chat_template": "template chat_template_path",
    "data.completion_only_loss": "mask_prompt",
    "data.assistant_only_loss": "roles_to_train train_on_responses_only",
    "data.num_proc": "dataset_num_proc preprocessing_num_workers dataset_processes num_workers",
    "data.cache_dir": "dataset_prepared_path tokenized_path data_cache_dir",
    "data.shuffle": "shuffle_merged_datasets shuffle_data",
    "data.group_by_length": "length_column_name train_sampling_strategy",
    "train.gradient_accumulation_steps": (
        "accumulate_grad_batches grad_accum grad_accum_steps grad_acc_steps accumulation_steps"
    ),
    "train.num_train_epochs": "num_epochs epochs max_epochs n_epochs num_train_epoch",
    "train.max_steps": "steps train_steps num_steps num_train_steps train_iters",
    "train.gradient_checkpointing": """
        activation_checkpointing activation_checkpointing_enabled use_gradient_checkpointing recompute
        enable_gradient_checkpointing recompute_granularity""",
    "train.gradient_checkpointing_use_reentrant": (
        "gradient_checkpointing_kwargs activation_checkpointing_kwargs use_reentrant use_reentrant_gc"
    ),
    "train.seed": "data_seed random_seed",
    "optimizer.learning_rate": "lr max_lr peak_lr",
    "optimizer.type": "optim optimizer.name optimizer_type",
    "optimizer.betas": "adam_beta1 adam_beta2 beta1 beta2 adam_betas",
    "optimizer.eps": "adam_epsilon adam_eps epsilon",
    "optimizer.weight_decay": "wd",
    "scheduler.type": "lr_scheduler_type lr_scheduler lr_decay_style scheduler.name",
    "scheduler.min_lr_ratio": "cosine_min_lr_ratio min_lr_rate",
    "scheduler.warmup_steps": "num_warmup_steps lr_warmup_iters lr_warmup_steps warmup_iters warmup",
    "scheduler": "lr_scheduler_kwargs",
    "checkpoint.save_steps": "save_strategy save_interval save_freq checkpoint_every checkpoint.steps",
    "checkpoint.save_total_limit": "keep_last max_checkpoints save_top_k",
    "checkpoint.keep_best": "load_best_model_at_end save_best",
    "eval.eval_steps": (
        "eval_strategy evaluation_strategy do_eval eval_interval eval_every val_check_interval eval.steps"
    ),
    "eval.per_device_eval_batch_size": "eval_batch_size per_gpu_eval_batch_size eval.batch_size",
    "eval.max_batches": "eval_iters max_eval_samples limit_val_batches",
    "eval.early_stopping_patience": "early_stopping",
    "logging.logging_steps": "steps_per_print logging_strategy log_interval log_every log_every_n_steps logging.steps",
    "logging.deepspeed_level": "log_level log_level_replica",
    "telemetry.trackers": "report_to use_wandb log_with logger use_tensorboard use_mlflow",
    "telemetry.project": "wandb_project mlflow_experiment_name project_name",
    "telemetry.tracker_dir": "logging_dir",
    "name": "run_name wandb_name wandb_run_id experiment_name exp_name job_name",
    "launch.num_gpus": "nproc_per_node num_processes num_processes_per_node world_size gpus devices num_devices",
    "launch.hostfile": "nnodes num_machines launch.num_nodes",
    "launch.master_port": "main_process_port",
    "launch.hang_timeout_seconds": "ddp_timeout distributed_timeout_minutes",
    "launch.output_dir": "output_path out_dir save_dir default_root_dir",
}  # fmt: skip
"""A key of a run spec -> its names in other programs. One with a section in front, such as `eval.steps`, is a name in
that section alone, and comes before the name by itself.
"""

_NAMES_BY_ADVICE: Mapping[str, str] = {
    "write `precision.bf16: true` or `precision.fp16: true`; neither means fp32": (
        "torch_dtype dtype mixed_precision params_dtype pure_bf16 compute_dtype"
    ),
    "remove it: an evaluation runs in the precision of the training": "bf16_full_eval fp16_full_eval",
    "remove it: DeepSpeed has the loss scaling of fp16": "half_precision_backend fp16_opt_level",
    "remove it: torch's own setting applies": "tf32",
    "set `data.completion_only_loss` or `data.assistant_only_loss`, which mean the opposite": (
        "train_on_inputs train_on_prompt"
    ),
    "remove it: `train.gradient_checkpointing` is off unless it is written": "disable_gradient_checkpointing",
    "set `scheduler.min_lr_ratio`, which is a share of the peak rate": "min_lr eta_min",
    "remove it: frozen weights have the format of `precision`, or 4 bits by `model.quantization`": (
        "load_in_8bit quantization_bit quantization_method loftq_config"
    ),
    "remove it: products with 4-bit weights are computed in the format of `precision`": "bnb_4bit_compute_dtype",
    "remove it: adapters are plain LoRA, or rank-stabilised with `use_rslora`": "use_dora",
    "remove it: `harness launch` always trains; `eval` has the evaluation": "do_train do_predict",
    "put DeepSpeed's keys below `deepspeed:`; `harness adopt FILE` converts a DeepSpeed JSON": (
        "deepspeed_config deepspeed_config_file deepspeed_json ds_config deepspeed_plugin"
    ),
    "remove it: at stage 3 the model is built in shards without it": "zero3_init_flag",
    "remove it: a rank prepares the next batch while a step runs; `data.num_proc` is for tokenization": """
        dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers dataloader_in_order
        dataloader_multiprocessing_context""",
    "remove it: batches are pinned where ranks have a GPU": "dataloader_pin_memory",
    "remove it: every step has a full batch": "dataloader_drop_last",
    "remove it: DeepSpeed reduces the gradients; its settings are in `zero`": """
        ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend strategy
        distributed_backend""",
    "use `zero.stage: 3`, which shards parameters, gradients and optimizer states": (
        "fsdp fsdp_config fsdp_transformer_layer_cls_to_wrap fsdp_version"
    ),
    "remove it: `harness export` writes the folder, `hf upload` uploads it": """
        push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision
        push_to_hub_model_id push_to_hub_token push_to_hub_organization""",
    "use `harness launch --resume auto` or `--resume RUN`": """
        resume_from_checkpoint auto_resume_from_checkpoints resume ignore_data_skip
        restore_callback_states_from_checkpoint""",
    "remove it: each run has its own directory": "overwrite_output_dir",
    "remove it: each rank saves its own shards, to a folder that all hosts share": "save_on_each_node",
    "set `export.at_end: true` for a folder with the model alone; checkpoints have the whole state": "save_only_model",
    "remove it: an export is always in safetensors": "save_safetensors",
    "remove it: a run that is asked to stop saves (`checkpoint.save_at_end`)": "enable_jit_checkpoint",
    "remove it: the held-out loss decides which checkpoint is the best": "metric_for_best_model greater_is_better",
    "remove it: `metrics.jsonl` always has it": """
        include_num_input_tokens_seen include_tokens_per_second skip_memory_metrics log_on_each_node
        logging_first_step""",
    "use `train.on_nonfinite`, the response to a step with a NaN": "logging_nan_inf_filter",
    "remove it: an evaluation computes the loss; `plugins.file` adds metrics": """
        prediction_loss_only include_for_metrics include_inputs_for_metrics batch_eval_metrics
        eval_do_concat_batches eval_use_gather_object eval_accumulation_steps label_names compute_metrics""",
    "remove it: the first evaluation is after `eval.eval_steps` steps, or before step 1 with `eval.eval_on_start`": (
        "eval_delay"
    ),
    "give a number of steps in `checkpoint.save_steps`": "saves_per_epoch",
    "give a number of steps in `eval.eval_steps`": "evals_per_epoch",
    "use `harness launch --progress plain` or `--quiet`": "disable_tqdm",
    "use `harness launch --debug-distributed`": "debug",
    "remove it: only the columns that `data` names are read": "remove_unused_columns",
    "remove it: the loss is always the mean over the tokens of all ranks": "average_tokens_across_devices",
    "use `harness plan SPEC --search` for the largest micro-batch that fits, or `harness tune`": "auto_find_batch_size",
    "remove it: a resume repeats the same bits without it": "full_determinism",
    "remove it: `torch.compile` runs in its default mode": "torch_compile_mode",
    "remove it: memory is not released between steps": "torch_empty_cache_steps",
    "remove it: training computes without the cache of keys and values": "use_cache",
    "set the variable DS_ACCELERATOR=cpu for `harness launch`": "use_cpu no_cuda",
    "remove it: the loss is the plain cross-entropy": (
        "label_smoothing_factor neftune_noise_alpha noisy_embedding_alpha"
    ),
    "set `train.loss_chunk_size` to save the memory of the logits; Liger's kernels are not used": (
        "use_liger_kernel liger_kernel_config enable_liger_kernel"
    ),
    "remove it: the parameters of the optimizer are keys of `optimizer`": "optim_args optim_target_modules",
    "set the degrees in `parallel`": "accelerator_config parallelism_config",
    "remove it: the launcher gives each process its rank": "local_rank machine_rank node_rank rank",
    "use `launch.hostfile` for several hosts, or `harness launch --no-ssh`": (
        "main_process_ip master_addr distributed_type compute_environment"
    ),
    "write it into `model.config`, which describes a model without a folder": """
        hidden_size num_layers num_hidden_layers num_attention_heads num_key_value_heads intermediate_size
        ffn_hidden_size vocab_size max_position_embeddings rope_scaling rope_theta model_type""",
    "remove it: the trackers are csv, tensorboard, wandb and mlflow (`telemetry.trackers`)": (
        "trackio_space_id trackio_bucket_id trackio_static_space_id"
    ),
    "use a smaller file in `data.train`, or `train.max_steps`": "max_samples max_train_samples",
    "remove it: a run trains on the next token only": "rl reward_model ref_model beta dpo_beta",
    "remove it: `harness report` draws the loss": "plot_loss",
    "remove it: the tokenizer's own special tokens are used": "special_tokens",
    "remove it: the vocabulary is that of the tokenizer": "resize_vocab",
}  # fmt: skip
"""Remedy -> names of settings that are no key of a run spec."""

SPEC_KEYS: Mapping[str, str] = {name: key for key, names in _NAMES_BY_KEY.items() for name in names.split()}
"""Another program's name -> the key of a run spec."""
ADVICE: Mapping[str, str] = {name: advice for advice, names in _NAMES_BY_ADVICE.items() for name in names.split()}
"""Another program's name -> what to do instead."""
