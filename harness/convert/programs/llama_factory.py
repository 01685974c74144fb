# SPDX-License-Identifier: Apache-2.0
"""LLaMA-Factory: one flat YAML of four groups of arguments (`src/llamafactory/hparams`), read in 0.9.0 to 0.9.5."""

from __future__ import annotations

from harness.convert.dataset_info import convert_datasets
from harness.convert.lora_settings import LORA_KEYS, convert_lora, trains_lora
from harness.convert.programs import trainer_arguments as shared
from harness.convert.programs.hf_trainer import TRAINER_DEFAULTS
from harness.convert.trainer_file import Default, Program, TrainerFile, is_on
from harness.hostinfo.program_templates import ask_llama_factory_template

_HPARAMS = "LLaMA-Factory: src/llamafactory/hparams"
_DEFAULTS = (
    Default("data.max_length", 1024, f"{_HPARAMS}/data_args.py: cutoff_len", until="0.9.1"),
    Default("data.max_length", 2048, f"{_HPARAMS}/data_args.py: cutoff_len", since="0.9.1"),
    Default("data.eval_fraction", 0.0, f"{_HPARAMS}/data_args.py: val_size"),
    Default(
        "model.lora.lora_alpha",
        lambda values: 2 * (values.get("lora_rank") or 8) if isinstance(values.get("lora_rank") or 8, int) else None,
        f"{_HPARAMS}/finetuning_args.py: __post_init__, twice the rank",
        when=trains_lora,
    ),
    Default("model.lora.target_modules", "all-linear", f"{_HPARAMS}/finetuning_args.py: lora_target", when=trains_lora),
    Default(
        "train.gradient_checkpointing",
        True,
        f"{_HPARAMS}/model_args.py: disable_gradient_checkpointing",
        when=lambda values: not is_on(values.get("disable_gradient_checkpointing")),
    ),
    *TRAINER_DEFAULTS,
)
_DEGREES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
)
"""Degrees of Megatron (`USE_MCA`)."""
_NO_TEMPLATE = ("default", "empty")
_KERNELS = {"fa2": "flash_attention_2", "sdpa": "sdpa", "disabled": "eager"}


def _convert(file: TrainerFile) -> None:
    shared.convert_trainer_arguments(file)
    convert_lora(file, "lora_target")
    convert_datasets(file)
    _convert_model(file)
    name, model = file.values.get("template"), file.values.get("model_name_or_path")
    if isinstance(name, str) and isinstance(model, str) and name not in _NO_TEMPLATE:
        file.put_template("template", ask_llama_factory_template(name, model))
    _convert_precision(file)
    _convert_packing(file, file.values.get("stage"))
    if file.values.get("finetuning_type") is None and trains_lora(file.values):
        place = file.source.place(("stage",), of_key=True)
        text = "`finetuning_type` is not in the file: LLaMA-Factory trains LoRA then, and so does the spec"
        file.draft.add_note(place, text, "harmless", "finetuning_type")
    if is_on(file.take_value("disable_shuffling")):
        file.put("data.shuffle", False)
    patience = file.take_value("early_stopping_steps")
    if patience is not None:
        file.put("eval.early_stopping_patience", patience)
    if is_on(file.values.get("use_muon")):
        file.put("optimizer.type", "muon")
        file.add_lossy("use_muon", "set `optimizer.adam_learning_rate`; its rates are not scaled alike")


def _convert_model(file: TrainerFile) -> None:
    kernel = file.take_value("flash_attn")
    if str(kernel) in _KERNELS:
        file.put("model.attn_implementation", _KERNELS[str(kernel)])
    elif kernel not in (None, "auto"):
        file.add_manual("flash_attn", "set `model.attn_implementation`")
    if is_on(file.take_value("disable_gradient_checkpointing")):
        file.put("train.gradient_checkpointing", False)
    if is_on(file.take_value("train_from_scratch")):
        file.put("model.random_init", True)


def _convert_precision(file: TrainerFile) -> None:
    if is_on(file.values.get("pure_bf16")):
        file.put("precision.bf16", True)
        file.add_lossy("pure_bf16", "only 16-bit weights; the run spec keeps fp32 master weights")
    if file.draft.get("precision.bf16") is not True and file.draft.get("precision.fp16") is not True:
        place = file.source.place(("model_name_or_path",), of_key=True)
        text = "no `bf16` or `fp16`: weights stay in the model's own format, here they are fp32; set `precision.bf16`"
        file.draft.add_note(place, text, "lossy", "bf16")


def _convert_packing(file: TrainerFile, stage: object) -> None:
    neat, packing = is_on(file.take_value("neat_packing")), file.values.get("packing")
    if stage == "pt":
        file.take_value("packing")
        if packing is False:
            file.add_lossy("packing", "each text is a separate sequence; a run spec packs plain text")
    elif neat or is_on(packing):
        file.put("data.packing", True)
        if not neat:
            file.add_lossy(
                "packing", "packed records attend to earlier ones in the sequence; in the run spec they do not"
            )
        file.take_value("packing")
    elif packing is False:
        file.put("data.packing", False)
        file.take_value("packing")


LLAMA_FACTORY = Program(
    "LLaMA-Factory",
    ("0.9.0", "0.9.5"),
    {
        **shared.KEYS,
        "model_name_or_path": "model.name_or_path",
        "model_revision": "model.revision",
        "cutoff_len": "data.max_length",
        "preprocessing_num_workers": "data.num_proc",
        "streaming": "data.streaming",
        "use_reentrant_gc": "train.gradient_checkpointing_use_reentrant",
    },
    _DEFAULTS,
    _convert,
    shared.HARMLESS
    | LORA_KEYS
    | set(
        """plot_loss overwrite_cache cache_dir use_fast_tokenizer low_cpu_mem_usage use_unsloth use_unsloth_gc
        enable_liger_kernel offload_folder use_kv_cache infer_backend infer_dtype hf_hub_token ms_hub_token om_hub_token
        print_param_status adapter_folder tokenized_path buffer_size preprocessing_batch_size media_dir
        data_shared_file_system eval_num_beams ignore_pad_token_for_loss compute_accuracy
        include_effective_tokens_per_second use_swanlab swanlab_project swanlab_workspace swanlab_run_name swanlab_mode
        swanlab_api_key swanlab_logdir swanlab_lark_webhook_url ray_run_name ray_storage_path ray_num_workers
        ray_init_kwargs resources_per_worker placement_strategy master_addr master_port export_dir export_size
        export_device export_legacy_format do_sample temperature top_p top_k max_new_tokens num_beams
        repetition_penalty length_penalty skip_special_tokens use_v1_kernels dataset_dir upcast_layernorm
        upcast_lmhead_output enable_torch_profiler profiler_output_dir double_quantization quantization_type
        sequence_parallel bias_activation_fusion apply_rope_fusion use_distributed_optimizer overlap_param_gather
        overlap_grad_reduce moe_grouped_gemm moe_token_dispatcher_type recompute_granularity
        pref_beta pref_loss ref_model_quantization_bit eval_on_each_dataset""".split()
    ),
    {
        **shared.LOSSY,
        "max_samples": "takes this many records of each dataset, the run spec all",
        "mask_history": "trains on the last turn of a chat alone, the run spec on all of the assistant's",
        "mix_strategy": "alternates between the datasets, the run spec reads each once",
        "resize_vocab": "adds rows to the embeddings, the run spec does not",
        "add_tokens": "adds tokens to the vocabulary, the run spec does not",
        "add_special_tokens": "adds tokens to the vocabulary, the run spec does not",
        "new_special_tokens_config": "adds tokens to the vocabulary, the run spec does not",
        "split_special_tokens": "reads special tokens in texts as plain text",
        "rope_scaling": "stretches the position embeddings, the run spec takes them from the model",
        "shift_attn": "attends in shifted groups, the run spec attends to all",
        "moe_aux_loss_coef": "another weight of the experts' balance loss; the run spec takes the model's",
        "enable_thinking": "adds or removes an empty thought in each answer",
        "preserve_thinking": "keeps the thoughts of earlier turns",
        "tool_format": "formats tools by its own rules; the run spec by the chat template",
        "use_adam_mini": "another optimizer, the run spec trains with `optimizer.type: adamw`",
        "create_new_adapter": "another adapter on top of the first",
        "freeze_multi_modal_projector": "decides about parts of a multimodal model",
        "freeze_vision_tower": "decides about parts of a multimodal model",
        "freeze_language_model": "decides about parts of a multimodal model",
    },
    {
        **shared.MANUAL,
        "tensor_model_parallel_size": ("parallel.tensor_parallel_size", ""),
        "pipeline_model_parallel_size": ("parallel.pipeline_parallel_size", ""),
        "context_parallel_size": ("parallel.sequence_parallel_size", ""),
        "expert_model_parallel_size": ("deepspeed.expert_parallel", ""),
        "template": ("data.chat_template", " where it differs from the tokenizer's own, which the run spec uses"),
        "default_system": ("data.train", " to chats with this system prompt"),
        "interleave_probs": ("data.train", ", a `weight` for each source"),
        "val_size": ("data.eval_fraction", ""),
        "eval_dataset": ("data.eval", ""),
        "dataset": ("data.train", ""),
    },
    {
        **shared.NEUTRAL,
        "enable_thinking": (True,),
        "mix_strategy": ("concat",),
        **dict.fromkeys(_DEGREES, (1,)),
        "freeze_vision_tower": (True,),
        "freeze_multi_modal_projector": (True,),
        "freeze_language_model": (False,),
        "template": _NO_TEMPLATE,
    },
)
