# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: a layer keeps only its input and is recomputed in the backward pass.

`transformers` hands each decoder layer to a function `checkpoint(layer, *inputs)`: torch's, reentrant or not, or
DeepSpeed's, which is reentrant and can keep the inputs in host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from harness.runtime.models.kept_attention import attention_contexts
from harness.runtime.models.sequential_checkpointing import SegmentCheckpoint
from harness.runtime.user_errors import user_error
from harness.spec.sections.training_spec import CheckpointingSpec, TrainSpec

_ATTENTION_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def enable_activation_checkpointing(
    model: PreTrainedModel, layers: CheckpointingSpec, train: TrainSpec, ds_config: dict[str, Any]
) -> None:
    """Make these layers of the model recompute their activations in the backward pass.

    Raises UserError (MD156) for a model that `transformers` cannot do this with, (MD160) for dropout in attention that
    is kept.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise user_error(
            "MD156",
            f"`{type(model).__name__}` has no layers that can be recomputed",
            key="train.gradient_checkpointing",
            fix="set `train.gradient_checkpointing: false`",
        )
    if layers.keep == "attention":
        _check_attention_dropout(model)
    if uses_deepspeed_checkpointing(ds_config):
        # On the CPU the activations are in host memory already: DeepSpeed would empty the tensor that it keeps.
        to_cpu = get_accelerator().device_name() != "cpu"
        deepspeed.checkpointing.configure(None, checkpoint_in_cpu=to_cpu)
        function: Any = _offload_and_recompute
    elif layers.keep == "attention":
        function = partial(checkpoint, use_reentrant=False, context_fn=attention_contexts)
    elif layers.layers_per_segment > 1:
        function = SegmentCheckpoint(layers.layers_per_segment)
    else:
        function = partial(checkpoint, use_reentrant=train.gradient_checkpointing_use_reentrant)
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    _keep_other_layers(model, layers.recompute_every)
    if uses_deepspeed_checkpointing(ds_config) or train.gradient_checkpointing_use_reentrant:
        # A reentrant layer gets gradients only if its input requires them, which a frozen embedding's output does not.
        model.enable_input_require_grads()


class _Detach(torch.autograd.Function):
    """A tensor on the same memory that is no view, with the gradient passed through."""

    @staticmethod
    def forward(_: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.detach()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def _offload_and_recompute(layer: Callable[..., Any], *inputs: Any) -> Any:
    """DeepSpeed's `checkpoint`, which empties a layer's input on the device while its copy waits in host memory.

    ZeRO-3 registers a full backward hook on a leaf module (`stage3.py`), for which torch passes the layer a view of its
    input. A view keeps its base: with the layer checkpointed inside its hooks, as `transformers` does since 5.24, every
    input would stay on the device, too (simulated: 44.1 GiB in place of 14.1 for 32 layers of 131,072 tokens).
    DeepSpeed would also empty what has no gradient, such as the mask of GPT-2, which all layers share.
    """
    return deepspeed.checkpointing.checkpoint(layer, *map(_prepare_input, inputs))


def _prepare_input(value: Any) -> Any:
    if not torch.is_tensor(value):
        return value
    if not value.requires_grad:
        value.no_checkpointing = True  # type: ignore[attr-defined]  # DeepSpeed's mark (`is_activation_to_checkpoint`)
        return value
    return _Detach.apply(value) if value._is_view() else value  # type: ignore[no-untyped-call]


def _keep_other_layers(model: PreTrainedModel, every: int) -> None:
    """Let all layers but 0, `every`, 2 x `every` and so on keep their activations."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for index, layer in enumerate(layers):
        layer.gradient_checkpointing = index % every == 0


def _check_attention_dropout(model: PreTrainedModel) -> None:
    """Attention that is not computed again draws no random numbers, and the dropouts behind it would draw others."""
    config = model.config.get_text_config()
    name = next((name for name in _ATTENTION_DROPOUTS if getattr(config, name, 0.0)), None)
    if name is not None:
        raise user_error(
            "MD160",
            f"`{name}` of the model is {getattr(config, name)}: attention with dropout cannot be kept",
            key="train.gradient_checkpointing.keep",
            fix="remove `train.gradient_checkpointing.keep`",
        )


def uses_deepspeed_checkpointing(ds_config: dict[str, Any]) -> bool:
    """True when the JSON has `cpu_checkpointing`, which only DeepSpeed's own function does."""
    return bool((ds_config.get("activation_checkpointing") or {}).get("cpu_checkpointing"))
