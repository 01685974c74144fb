"""Pretrained weights: what must be there, and which way they are loaded.

Stages 0-2: `from_pretrained` on every rank, in the training format. Where that is the format of the files the weights
stay mapped and are read once a node, whatever the number of ranks; else each rank holds its converted copy, which it
needs for training anyway. Stage 3 without AutoTP: `sharded`, or `transformers`' own loader for what that cannot do.
"""

from __future__ import annotations

from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from harness.runtime.models.configuration import first_line
from harness.runtime.models.problems import refuse_missing, refuse_other_shapes
from harness.runtime.models.sharded import load_sharded, made_in_shards, sharded_creation
from harness.runtime.models.stored import open_stored
from harness.runtime.refusals import refusal
from harness.spec.model import ModelSpec


def training_format(ds_config: dict[str, Any]) -> torch.dtype:
    """The number format that DeepSpeed casts the weights to."""
    for block, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if ds_config.get(block, {}).get("enabled"):
            return dtype
    return torch.float32


def load_pretrained(spec: ModelSpec, config: Any, ds_config: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """The model with the weights of `model.name_or_path`. A collective at stage 3.

    Raises Refused (MD102 nothing to load, MD150 weights missing, MD151 weights of another shape).
    """
    dtype = training_format(ds_config)
    try:
        stored = open_stored(spec)
        if stored is not None and made_in_shards(ds_config):
            model = load_sharded(stored, spec, config, ds_config, dtype, arguments)
            if model is not None:
                return model
        with sharded_creation(ds_config):
            model, report = AutoModelForCausalLM.from_pretrained(
                spec.name_or_path,
                config=config,
                revision=spec.revision,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are refused below, all at once
                **arguments,
            )
    except (OSError, ValueError, SafetensorError) as error:
        raise refusal(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(first_line(error),),
        ) from None
    refuse_other_shapes(spec, {name: (tuple(found), tuple(made)) for name, found, made in report["mismatched_keys"]})
    refuse_missing(spec, report["missing_keys"])
    return model
