# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing: a layer keeps only its input and is recomputed in the backward pass.

`transformers` hands each decoder layer to a function `checkpoint(layer, *inputs)`: torch's, reentrant or not, or
DeepSpeed's, which is reentrant and can keep the inputs in host memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import deepspeed
from deepspeed.accelerator import get_accelerator
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from harness.runtime.user_errors import user_error
from harness.spec.sections.training_spec import TrainSpec


def enable_activation_checkpointing(model: PreTrainedModel, train: TrainSpec, ds_config: dict[str, Any]) -> None:
    """Make the model's layers recompute their activations in the backward pass.

    Raises UserError (MD156) for a model that `transformers` cannot do this with.
    """
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise user_error(
            "MD156",
            f"`{type(model).__name__}` has no layers that can be recomputed",
            key="train.gradient_checkpointing",
            fix="set `train.gradient_checkpointing: false`",
        )
    if uses_deepspeed_checkpointing(ds_config):
        # On the CPU the activations are in host memory already: DeepSpeed would empty the tensor that it keeps.
        to_cpu = get_accelerator().device_name() != "cpu"
        deepspeed.checkpointing.configure(None, checkpoint_in_cpu=to_cpu)
        function: Any = deepspeed.checkpointing.checkpoint
    else:
        function = partial(checkpoint, use_reentrant=train.gradient_checkpointing_use_reentrant)
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=function)
    if uses_deepspeed_checkpointing(ds_config) or train.gradient_checkpointing_use_reentrant:
        # A reentrant layer gets gradients only if its input requires them, which a frozen embedding's output does not.
        model.enable_input_require_grads()


def uses_deepspeed_checkpointing(ds_config: dict[str, Any]) -> bool:
    """True when the JSON has `cpu_checkpointing`, which only DeepSpeed's own function does."""
    return bool((ds_config.get("activation_checkpointing") or {}).get("cpu_checkpointing"))
