# SPDX-License-Identifier: Apache-2.0
"""Training methods of axolotl, LLaMA-Factory, ms-swift, ArcticTraining and TRL that a run spec does not have: other
losses, quantised weights, other adapters, parts of a model, images and sound. `harness adopt` refuses them: the run
spec of such a file would train something else.

The keys are those of axolotl 0.12 to 0.18, LLaMA-Factory 0.9, ms-swift 3.3 to 4.5, ArcticTraining 0.8 and TRL 0.20 to
0.29 (read, not run).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.convert.lora_settings import QLORA_KEYS, trains_qlora
from harness.convert.preference_settings import DPO_LOSSES, KTO_LOSSES, PREFERENCE_KEYS, named_method, single_loss
from harness.findings import Finding, Fix
from harness.spec.parse.source import Source, value_at

_LOSS_KEYS = ("pref_loss", "dpo_loss_type", "loss_type")
_NAMING_KEYS = ("stage", "rl", "rlhf_type", "type", *_LOSS_KEYS)
"""Keys whose value is the name of a method or a loss."""
_OFF_VALUES = ("", "none", "null", "false", "no", "off", "0")
"""Values that switch nothing on, as text."""

_OF_REWARD = {"reward_model": ("true",), "num_labels": ("1",), "task_type": ("seq_cls",)}
"""Key -> the values that a file for a reward model may have."""


class _TrainingMethod(NamedTuple):
    """One difference in training: the file's method, the run spec's, and the keys that ask for it."""

    description: str
    supported: str
    keys: Mapping[str, tuple[str, ...]]
    """Key -> values that a run spec has; every other value that is not off is refused."""
    refused: Mapping[str, str] = {}
    """Key -> the one value that is refused."""


def _keys_without_values(keys: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(keys.split(), ())


_METHODS = (
    _TrainingMethod(
        "trains by another loss",
        "pre-training, supervised fine-tuning, DPO, KTO and reward models",
        {
            "stage": ("sft", "pt", "dpo", "kto", "rm"),
            "rl": ("dpo", "ipo", "kto"),
            "rlhf_type": ("dpo", "kto", "rm"),
            "type": ("sft", "causal"),
            "pref_loss": ("sigmoid", "hinge", "ipo"),
            "dpo_loss_type": tuple(sorted(DPO_LOSSES)),
            "loss_type": ("nll", "chunked_nll"),
            "task_type": ("causal_lm",),
            "f_divergence_type": ("reverse_kl", "fdivergencetype.reverse_kl"),
            **_keys_without_values(
                """reward_model process_reward_model kd_trainer use_dft_loss use_asft_loss use_eaft_loss
                diffusion use_eaft ebft enable_dft_loss num_labels
                reward_funcs reward_model_path reward_model_name_or_path num_generations max_prompt_length
                max_completion_length beta desirable_weight undesirable_weight precompute_ref_log_probs rpo_alpha
                center_rewards_coefficient ref_model ref_adapters ref_model_adapters ref_model_quantization_bit
                pref_bco_weight ld_alpha dpo_use_weighting use_weighting sync_ref_model reference_free orpo_alpha"""
            ),
        },
    ),
    _TrainingMethod(
        "trains over quantised weights",
        "4-bit weights of bitsandbytes under LoRA",
        {
            **dict.fromkeys(("quantization_method", "quant_method"), ("bnb", "bitsandbytes")),
            **_keys_without_values(
                """load_in_4bit load_in_8bit quantization_bit quantization_config gptq qat model_quantization_config
                peft.weight_dtype peft.loftq_config quant_bits quantize_moe_experts use_onebitllms"""
            ),
        },
        {"adapter": "qlora"},
    ),
    _TrainingMethod(
        "trains other weights than full fine-tuning and plain LoRA",
        "these two",
        {
            "adapter": ("lora", "qlora"),
            "finetuning_type": ("full", "lora"),
            "tuner_type": ("full", "lora"),
            "train_type": ("full", "lora"),
            "sft_type": (),
            "model.peft_config.peft_type": ("lora",),
            "peft_init_lora_weights": ("true",),
            "init_weights": ("true", "gaussian"),
            **_keys_without_values(
                """use_dora peft_use_dora pissa_init use_llama_pro relora relora_steps lisa_n_layers
                lora_target_parameters peft_trainable_token_indices
                loraplus_lr_ratio use_galore use_apollo use_badam mixture_of_depths lisa_activated_layers lorap_lr_ratio
                freeze_parameters_ratio target_parameters peft_layer_replication use_hyper_parallel use_megatron_bridge
                use_kt"""
            ),
        },
    ),
    _TrainingMethod(
        "chooses parameters by regular expressions",
        "globs (`model.train_only`)",
        _keys_without_values("unfrozen_parameters"),
    ),
    _TrainingMethod(
        "starts from a trained adapter",
        "whole models to start from",
        _keys_without_values("adapter_name_or_path lora_model_dir adapters"),
    ),
    _TrainingMethod(
        "trains on images or sound",
        "text",
        _keys_without_values(
            """processor_type image_size image_resize_algorithm image_max_pixels image_min_pixels video_max_pixels
            video_maxlen audio_sampling_rate max_pixels vit_lr aligner_lr freeze_vit freeze_aligner freeze_llm
            vit_gradient_checkpointing freeze_mm_modules"""
        ),
    ),
)


def find_unsupported_methods(source: Source, objective: str | None = None) -> tuple[Finding, ...]:
    """One error for each unsupported method of the file. `objective`: what it trains on preferences by, if it does."""
    return tuple(finding for kind in _METHODS for finding in _first_finding(kind, source, objective))


def _first_finding(method: _TrainingMethod, source: Source, objective: str | None) -> Iterator[Finding]:
    for key in (*method.refused, *method.keys):
        path = tuple(key.split("."))
        value = value_at(source.data, path)
        supported = method.keys.get(key, ())
        if key in QLORA_KEYS and trains_qlora(source.data):
            continue
        if objective and key in PREFERENCE_KEYS:
            if key not in _LOSS_KEYS:
                continue
            value = None if value is None else single_loss(value)
            if key == "loss_type":
                supported = tuple(sorted(DPO_LOSSES if objective == "dpo" else KTO_LOSSES))
        if key == "model_quantization_config" and _is_dequantized(source.data):
            continue
        if objective == "reward" and key in _OF_REWARD:
            supported = _OF_REWARD[key]
        if key == "ref_model" and value in _own_names(source.data):
            continue
        if (
            not value
            or _normalize(value) in (*_OFF_VALUES, *supported)
            or _normalize(value) != method.refused.get(key, _normalize(value))
        ):
            continue
        what = f"`{key}: {_format_value(value)}` {_describe(method, key, source)}"
        message = f"{what}, and a run spec supports only {method.supported}"
        change = (
            f"with {' or '.join(f'`{key}: {option}`' for option in supported)}" if supported else f"without `{key}`"
        )
        fix = Fix(f"train it with its own program; without this, as a file {change}, it can be converted")
        yield Finding("SP040", "error", message, key, source.place(path), fix=fix)
        return


def _describe(method: _TrainingMethod, key: str, source: Source) -> str:
    name = named_method(source) if method is _METHODS[0] and key not in _NAMING_KEYS else ""
    return method.description if name in ("", "dpo", "kto") else f"is of {name.upper()}, by the words of this file"


def _own_names(data: Mapping[str, Any]) -> list[Any]:
    """The model that a file trains: as its reference it is what a run spec takes."""
    return [data.get(name) for name in ("model", "model_name_or_path", "base_model")]


def _is_dequantized(data: Mapping[str, Any]) -> bool:
    """Are weights that are quantized in their files trained in 16 bit? As such a run loads MXFP4 and fp8, too."""
    options = data.get("model_quantization_config_kwargs")
    is_loaded = data.get("model_quantization_config") in ("Mxfp4Config", "FineGrainedFP8Config")
    return is_loaded and isinstance(options, Mapping) and options.get("dequantize") is True


def _normalize(value: Any) -> str:
    return str(value).strip().lower()


def _format_value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "{...}" if isinstance(value, dict) else "[...]"
    return _normalize(value)[:40] if isinstance(value, bool) else str(value)[:40]


METHOD_KEYS = frozenset(key for method in _METHODS for key in (*method.refused, *method.keys) if "." not in key)
"""Keys that choose a method: what is not refused asks for nothing else."""
