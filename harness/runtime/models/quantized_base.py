# SPDX-License-Identifier: Apache-2.0
"""The frozen weights in 4 bits by bitsandbytes, under the adapters of LoRA (QLoRA).

`transformers` quantizes each linear layer but the head as it loads it, on the device of the rank. DeepSpeed sees frozen
parameters of bytes, which ZeRO 0 to 2 leave alone. The scales of a weight are no parameters: a module writes them into
its state dict, and `restore_scales` reads them back, so that a checkpoint has all of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from transformers import PreTrainedModel

from harness.hostinfo.training_packages import install_command
from harness.runtime.user_errors import user_error
from harness.spec.sections.model_spec import QuantizationSpec

_PACKED = "quant_state.bitsandbytes__"


def quantization_arguments(quantization: QuantizationSpec, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of `from_pretrained` that quantize to 4 bits. Products are computed in `dtype`.

    Raises UserError (MD162) where bitsandbytes is missing.
    """
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise user_error(
            "MD162",
            "`model.quantization` needs the package `bitsandbytes`, which is not installed here",
            key="model.quantization",
            fix=f"install it on every host: {install_command('qlora')}",
        ) from None
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(bnb_4bit_compute_dtype=dtype, **quantization.model_dump())
    return {"quantization_config": config, "device_map": {"": get_accelerator().current_device_name()}}


def prepare_quantized(model: PreTrainedModel) -> None:
    """Make the 4-bit layers of a loaded model trainable with DeepSpeed: their scales are restored with their weights.

    Raises UserError (MD163) where the model has no such layer.
    """
    layers = quantized_layers(model)
    if not layers:
        raise user_error(
            "MD163",
            "`model.quantization` fits no layer of this model",
            key="model.quantization",
            notes=("bitsandbytes quantizes linear layers, and stacked weights of experts are not linear layers",),
            fix="remove `model.quantization`",
        )
    for layer in layers:
        # On a CPU with AVX-512 in bf16, an evaluation would change the layout of the weight, and the layer would then
        # compute with a kernel that has no gradient (read in bitsandbytes 0.50, `matmul_4bit`).
        layer.support_avx512bf16_for_cpu = False
        layer.register_load_state_dict_pre_hook(restore_scales)


def quantized_layers(model: torch.nn.Module) -> list[Any]:
    """The modules of the model with a 4-bit weight."""
    if "bitsandbytes" not in sys.modules:
        return []
    from bitsandbytes.nn import Linear4bit

    return [module for module in model.modules() if isinstance(module, Linear4bit)]


def full_numel(parameter: torch.Tensor) -> int:
    """Elements of the whole weight: of a shard at stage 3 those of all ranks, of bytes those of their 4-bit weights."""
    state = getattr(parameter, "quant_state", None)
    return int(getattr(parameter, "ds_numel", None) or (parameter.numel() if state is None else state.shape.numel()))


def has_quantized_weights(names: Iterable[str]) -> bool:
    """Are these the names of a state dict with 4-bit weights?"""
    return any(_PACKED in name for name in names)


def scale_tensors(weight: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that a 4-bit weight needs besides its bytes: scales and tables of values."""
    state = weight.quant_state  # type: ignore[attr-defined]
    tensors = [state.absmax, state.code]
    return [*tensors, state.offset, state.state2.absmax, state.state2.code] if state.nested else tensors


def restore_scales(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Take the scales of a weight out of a state dict and into the module, before its parameters are loaded. For
    `register_load_state_dict_pre_hook`.

    Raises ValueError for scales of another kind than the module's.
    """
    from bitsandbytes.functional import QuantState

    names = {name: name.removeprefix(f"{prefix}weight.") for name in state_dict if name.startswith(f"{prefix}weight.")}
    if not any(name.startswith(_PACKED) for name in names.values()):
        return
    stored = {short: state_dict.pop(name) for name, short in names.items()}
    weight = module.weight
    state = QuantState.from_dict(stored, device=weight.device)
    before = weight.quant_state
    kinds = [(each.quant_type, each.nested, each.blocksize, each.shape, each.dtype) for each in (before, state)]
    if kinds[0] != kinds[1]:
        raise ValueError(f"the scales of `{prefix}weight` are of {kinds[1]}, those of the model of {kinds[0]}")
    weight.quant_state = module.quant_state = state
