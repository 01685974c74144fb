# SPDX-License-Identifier: Apache-2.0
"""Pretrained weights, loaded and checked for completeness.

Stages 0-2: `from_pretrained` on every rank, in the training format. Where that is the format of the files the weights
stay mapped and are read once a node, whatever the number of ranks; else each rank holds its converted copy, which it
needs for training anyway. Stage 3 without AutoTP: `zero3_weights`, or `transformers`' own loader where that cannot.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel

from harness.runtime.models.auto_class import auto_class, draw_head, head_names
from harness.runtime.models.quantized_base import prepare_quantized, quantization_arguments
from harness.runtime.models.safetensors_reader import open_safetensors
from harness.runtime.models.stored_names import build_source, check_whole_export, match_sources
from harness.runtime.models.weight_errors import check_missing_weights, check_weight_shapes
from harness.runtime.models.zero3_weights import load_zero3_model, uses_zero3_init, zero3_init
from harness.runtime.patch_selection import check_usable
from harness.runtime.text_part import build_text_model, rename_prefixes
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.run_spec import ModelSpec


def training_dtype(ds_config: dict[str, Any]) -> torch.dtype:
    """The number format that DeepSpeed casts the weights to."""
    for block, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if ds_config.get(block, {}).get("enabled"):
            return dtype
    return torch.float32


def load_pretrained(
    spec: ModelSpec,
    config: PreTrainedConfig,
    ds_config: dict[str, Any],
    arguments: dict[str, Any],
    objective: str | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """The model with the weights of `model.name_or_path`, and a head over labels drawn by `seed` where they have none.
    A collective at stage 3.

    Raises UserError (MD102 nothing to load, MD150 weights missing, MD151 weights of another shape, MD162 and MD163
    4-bit weights).
    """
    auto = auto_class(objective)
    dtype = training_dtype(ds_config)
    if spec.quantization is not None:
        arguments = arguments | quantization_arguments(spec.quantization, dtype)
    try:
        files = open_safetensors(spec)
        whole = build_source(spec, config)
        if files is not None and uses_zero3_init(ds_config):
            check_usable("zero3-pretrained-weights")
            sharded_model = load_zero3_model(files, spec, config, ds_config, dtype, arguments, whole, auto)
            if sharded_model is not None:
                check_whole_export(sharded_model, spec, whole, files)
                return sharded_model
        if whole is not None and files is not None:
            text_model = build_text_model(config)
            check_whole_export(text_model, spec, whole, files)
            arguments = arguments | {"key_mapping": rename_prefixes(match_sources(text_model, files, whole) or {})}
        with zero3_init(ds_config):
            loaded = auto.from_pretrained(
                str(spec.name_or_path),
                config=config,
                revision=spec.revision,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported below, all at once
                **arguments,
            )
        model, report = cast("tuple[PreTrainedModel, dict[str, Any]]", loaded)  # with `output_loading_info`
    except (OSError, ValueError, ImportError, SafetensorError) as error:  # a tower may need a package
        raise user_error(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(first_error_line(error),),
        ) from None
    check_weight_shapes(
        spec,
        {
            name: (tuple(stored_shape), tuple(model_shape))
            for name, stored_shape, model_shape in report["mismatched_keys"]
        },
    )
    new_head = head_names(model, report["missing_keys"])
    check_missing_weights(spec, set(report["missing_keys"]) - new_head)
    draw_head(model, new_head, seed)
    check_whole_export(model, spec, whole, files)
    if spec.quantization is not None:
        prepare_quantized(model)
    return model
