"""The model: a `transformers` causal language model, new or pretrained; at ZeRO stage 3 created in shards.

Stages 0-2 build the whole model in fp32 on every rank. Stage 3 builds under `deepspeed.zero.Init`, which `transformers`
enters by itself while an `HfDeepSpeedConfig` is alive: a parameter is cut into shards as soon as its module has been
constructed, and then initialised, or filled from the checkpoint's mapped files, module by module from rank 0.

With bf16 or fp16 DeepSpeed casts the model before it takes the fp32 master copy, at every stage (stage 3: as the shards
are made, so that new weights are drawn in 16 bit). Masters of an fp32 checkpoint thus start from rounded weights; a
checkpoint that is in the training format already loses nothing.

It does not touch optimizers or data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, set_seed
from transformers.integrations import HfDeepSpeedConfig

from harness.plan.run import Run
from harness.runtime.refusals import refusal
from harness.runtime.tokens import check_vocabulary
from harness.spec.model import ModelSpec


def load_config(spec: ModelSpec, tokenizer: Any) -> Any:
    """The model's `transformers` configuration; a new model takes its special ids from the tokenizer.

    Raises Refused (MD101 vocabulary, MD102 configuration).
    """
    config = _config(spec)
    check_vocabulary(tokenizer, config.get_text_config().vocab_size)
    if _is_new(spec):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(config, name, getattr(tokenizer, name))
    config.use_cache = False
    return config


def _is_new(spec: ModelSpec) -> bool:
    return spec.name_or_path is None or spec.random_init


def build_model(run: Run, ds_config: dict[str, Any], config: Any) -> torch.nn.Module:
    """The model in training mode, seeded by `train.seed`. A collective at stage 3. Raises Refused (MD102)."""
    spec = run.spec.model
    extra = {"attn_implementation": spec.attn_implementation} if spec.attn_implementation else {}
    if spec.trust_remote_code:
        extra["trust_remote_code"] = True  # type: ignore[assignment]
    set_seed(run.spec.train.seed)
    with _sharded_creation(ds_config):
        if _is_new(spec):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **extra)
        else:
            model = _pretrained(spec, config, extra)
    if run.spec.train.gradient_checkpointing:
        _recompute_activations(model)
    return model.train()


def _recompute_activations(model: Any) -> None:
    """Under the name that `transformers` has for it: 5.23 renames it, and warns about the old one."""
    options = {"use_reentrant": False}
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(options)
    else:
        model.gradient_checkpointing_enable(options)


def _config(spec: ModelSpec) -> Any:
    try:
        if spec.config is not None and spec.name_or_path is None:
            fields = dict(spec.config)
            return AutoConfig.for_model(fields.pop("model_type"), **fields)
        if spec.name_or_path is not None:
            return AutoConfig.from_pretrained(
                spec.name_or_path, revision=spec.revision, trust_remote_code=spec.trust_remote_code
            )
    except KeyError:
        raise refusal(
            "MD102", "`model.config` has no `model_type`", key="model.config", fix="add `model_type`, such as `llama`"
        ) from None
    except Exception as error:  # transformers raises OSError, ValueError, TypeError and its own validation errors here
        where = "`model.config`" if spec.name_or_path is None else f"`{spec.name_or_path}`"
        raise refusal(
            "MD102", f"no model configuration could be made from {where}", key="model", notes=(_first_line(error),)
        ) from None
    raise refusal("MD102", "neither `model.name_or_path` nor `model.config` is set", key="model", fix="set one of them")


def _pretrained(spec: ModelSpec, config: Any, extra: dict[str, Any]) -> Any:
    """Weights in fp32 whatever format they are stored in: `transformers` 5 would keep the stored one."""
    try:
        return AutoModelForCausalLM.from_pretrained(
            spec.name_or_path, config=config, revision=spec.revision, dtype=torch.float32, **extra
        )
    except OSError as error:
        raise refusal(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(_first_line(error),),
        ) from None


@contextmanager
def _sharded_creation(ds_config: dict[str, Any]) -> Iterator[None]:
    """At stage 3, make `transformers` create and load models in shards while this lasts; nothing at other stages."""
    stage = ds_config.get("zero_optimization", {}).get("stage", 0)
    keep_alive = HfDeepSpeedConfig(ds_config) if stage == 3 else None
    yield
    del keep_alive


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
