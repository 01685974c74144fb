"""Makes the model that the engine gets: new or pretrained weights, in shards at ZeRO stage 3.

A new model of stages 0-2 is built whole, in fp32, on every rank, and so is one that AutoTP cuts. Stage 3 builds it
under `deepspeed.zero.Init`, which `transformers` enters by itself while an `HfDeepSpeedConfig` is alive: a parameter is
cut into shards as soon as its module has been constructed, and then initialised module by module from rank 0.

With bf16 or fp16 DeepSpeed casts the model before it takes the fp32 master copy, at every stage (stage 3: as the shards
are made, so that new weights are drawn in 16 bit). Masters of an fp32 checkpoint thus start from rounded weights; a
checkpoint that is in the training format already loses nothing. So pretrained weights are loaded in the training format
at once: the same numbers, half the memory.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, set_seed

from harness.plan.run import Run
from harness.runtime import plugins
from harness.runtime.models.adapters import add_adapters
from harness.runtime.models.configuration import is_new
from harness.runtime.models.freezing import choose_trained
from harness.runtime.models.pretrained import load_pretrained
from harness.runtime.models.recompute import recompute_activations
from harness.runtime.models.sharded import sharded_creation
from harness.runtime.refusals import refusal
from harness.spec.model import ModelSpec


def build_model(run: Run, ds_config: dict[str, Any], config: Any) -> torch.nn.Module:
    """The model in training mode, seeded by `train.seed`. A collective at stage 3.

    Raises Refused (MD102 nothing to load, MD150 weights missing, MD151 weights of another shape,
    MD152 to MD156 freezing, adapters, recomputation, MD157 and MD158 the plug-in).
    """
    spec = run.spec.model
    set_seed(run.spec.train.seed)
    plugin = plugins.load(run.spec)
    if plugin is not None and plugin.build_model is not None:
        model = _own_model(plugin.build_model(config, run.spec))
    elif is_new(spec):
        with sharded_creation(ds_config):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **model_arguments(spec))
    else:
        model = load_pretrained(spec, config, ds_config, model_arguments(spec))
    if spec.lora is not None:
        add_adapters(model, spec.lora, run.spec.train.seed)
    if spec.freeze or spec.train_only:
        choose_trained(model, spec)
    if run.spec.train.gradient_checkpointing:
        recompute_activations(model, run.spec.train, ds_config)
    return model.train()


def model_arguments(spec: ModelSpec) -> dict[str, Any]:
    """What `from_config` and `from_pretrained` are told beside the configuration."""
    arguments: dict[str, Any] = {}
    if spec.attn_implementation:
        arguments["attn_implementation"] = spec.attn_implementation
    if spec.trust_remote_code:
        arguments["trust_remote_code"] = True
    return arguments


def _own_model(model: Any) -> Any:
    if not isinstance(model, PreTrainedModel):
        raise refusal(
            "MD158",
            f"`build_model` of the plug-in returned a `{type(model).__name__}`, should be a `PreTrainedModel`",
            key="plugins.file",
            notes=("checkpoints, export and adapters use what `transformers` gives every model",),
            fix="derive the model's class from `transformers.PreTrainedModel`",
        )
    return model
