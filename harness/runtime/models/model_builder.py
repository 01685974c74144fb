# SPDX-License-Identifier: Apache-2.0
"""Builds the model for the engine: new or pretrained weights, in shards at ZeRO stage 3.

A new model of stages 0-2 is built whole, in fp32, on every rank, and so is one that AutoTP shards. Stage 3 builds it
under `deepspeed.zero.Init`, which `transformers` enters by itself while an `HfDeepSpeedConfig` is alive: a parameter is
cut into shards as soon as its module has been constructed, and then initialised module by module from rank 0.

With bf16 or fp16 DeepSpeed casts the model before it takes the fp32 master copy, at every stage (stage 3: as the shards
are made, so that new weights are drawn in 16 bit). Masters of an fp32 checkpoint thus start from rounded weights; a
checkpoint that is in the training format already loses nothing. So pretrained weights are loaded in the training format
at once: the same numbers, half the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate.utils import set_seed
from transformers import PreTrainedConfig, PreTrainedModel

from harness.plan.tuned_defaults.attention_kernel import missing_package
from harness.run.resolved_run import ResolvedRun
from harness.runtime import plugin_loader
from harness.runtime.models import sdpa_varlen
from harness.runtime.models.activation_checkpointing import enable_activation_checkpointing
from harness.runtime.models.auto_class import auto_class, head_names
from harness.runtime.models.lora import add_adapters
from harness.runtime.models.model_config import is_random_init
from harness.runtime.models.objective_check import check_own_model
from harness.runtime.models.pretrained import load_pretrained
from harness.runtime.models.tiled_mlp import tile_mlps
from harness.runtime.models.trainable_parameters import freeze_parameters
from harness.runtime.models.zero3_weights import zero3_init
from harness.runtime.user_errors import user_error


def build_model(run: ResolvedRun, ds_config: dict[str, Any], config: PreTrainedConfig) -> torch.nn.Module:
    """The model in training mode, seeded by `train.seed`. A collective at stage 3.

    Raises UserError (MD102 nothing to load, MD150 weights missing, MD151 weights of another shape,
    MD152 to MD156, MD160 and MD161 freezing, adapters, recomputation, tiles, MD128, MD157 and MD158 the plug-in).
    """
    spec = run.spec.model
    set_seed(run.spec.train.seed)
    plugin, arguments = plugin_loader.load_plugin(run.spec), model_kwargs(run)
    model: PreTrainedModel
    if plugin is not None and plugin.build_model is not None:
        model = build_own_model(run, config, plugin.build_model)
    elif is_random_init(spec):
        with zero3_init(ds_config):
            model = auto_class(run.spec.objective).from_config(config, dtype=torch.float32, **arguments)
    else:
        model = load_pretrained(spec, config, ds_config, arguments, run.spec.objective, run.spec.train.seed)
    if spec.lora is not None:
        head = head_names(model, [name for name, _ in model.named_parameters()])
        add_adapters(model, spec.lora, run.spec.train.seed)
        for name, parameter in model.named_parameters():  # a new head has nothing that adapters could change
            parameter.requires_grad_(parameter.requires_grad or name.replace(".base_layer.", ".") in head)
    if spec.freeze or spec.train_only:
        freeze_parameters(model, spec)
    if run.num_mlp_tiles > 1:
        tile_mlps(model, run.num_mlp_tiles)
    if run.checkpointing is not None:
        enable_activation_checkpointing(model, run.checkpointing, run.spec.train, ds_config)
    model.train()
    return model


def model_kwargs(run: ResolvedRun) -> dict[str, Any]:
    """Arguments of `from_config` and `from_pretrained` other than the configuration. Registers an attention function
    of ours that the run asks for. Raises UserError (EN016) where its package is missing on this host: transformers
    would take a kernel of the Hub.
    """
    arguments: dict[str, Any] = {}
    attention = run.attn_implementation
    package = missing_package(attention)
    if package is not None:
        raise user_error(
            "EN016",
            f"`{attention}` needs the package `{package}`, which is not installed here",
            key="model.attn_implementation",
            fix="install it on every host, or use `sdpa`",
        )
    if attention == sdpa_varlen.NAME:
        sdpa_varlen.register_attention()
    if attention:
        arguments["attn_implementation"] = attention
    if run.spec.model.trust_remote_code:
        arguments["trust_remote_code"] = True
    return arguments


def build_own_model(run: ResolvedRun, config: PreTrainedConfig, build: Callable[..., object]) -> PreTrainedModel:
    """What `build_model` of a plug-in returns. Raises UserError (MD158 no model, MD128 packing)."""
    model = build(config, run.spec)
    if not isinstance(model, PreTrainedModel):
        raise user_error(
            "MD158",
            f"`build_model` of the plug-in returned a `{type(model).__name__}`, should be a `PreTrainedModel`",
            key="plugins.file",
            notes=("checkpoints, export and adapters use what `transformers` gives every model",),
            fix="derive the model's class from `transformers.PreTrainedModel`",
        )
    check_own_model(run, model)
    return model
