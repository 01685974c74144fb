# SPDX-License-Identifier: Apache-2.0
"""Stage 3: pretrained weights go from the file into the shards of all ranks, one tensor at a time.

The model is created without memory for its parameters. Then `deepspeed.zero.Init` walks over them: rank 0 reads the
tensor, DeepSpeed sends it to all ranks and each keeps its shard. So a file is read once, by one process; a rank holds
its shards and one whole tensor, in a buffer that is used for all of them.

`transformers`' own loader does the same in other steps: it creates every parameter whole first, and rank 0 maps all
files. With 4 ranks and 1 GB of weights that took four times the model in host memory, since single tensors are
allocated and freed between the shards, which fragments the heap. It remains for weights that must be converted (experts
that are stored one by one) or are not stored as safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from deepspeed.accelerator import get_accelerator
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.integrations.deepspeed import HfDeepSpeedConfig

from harness.runtime.models.auto_class import head_names
from harness.runtime.models.safetensors_reader import SafetensorsFiles
from harness.runtime.models.stored_names import match_sources, names_by_parameter
from harness.runtime.models.weight_errors import check_missing_weights, check_weight_shapes
from harness.spec.run_spec import ModelSpec


@contextmanager
def zero3_init(ds_config: dict[str, Any]) -> Iterator[None]:
    """In this context `transformers` creates and loads models in shards, if `uses_zero3_init`."""
    keep_alive = HfDeepSpeedConfig(ds_config) if uses_zero3_init(ds_config) else None
    yield
    del keep_alive


def uses_zero3_init(ds_config: dict[str, Any]) -> bool:
    """Stage 3 without AutoTP. AutoTP shards whole layers: 0.19.4 to 0.19.7 cannot split those that ZeRO has sharded
    already, and 0.19.8 leaves the weights that it does not split in shards over all ranks, not over the data-parallel
    ones.
    """
    tensor = ds_config.get("tensor_parallel", {}).get("autotp_size", 0)
    return bool(ds_config.get("zero_optimization", {}).get("stage", 0) == 3 and tensor < 2)


def load_zero3_model(
    files: SafetensorsFiles,
    spec: ModelSpec,
    config: PreTrainedConfig,
    ds_config: dict[str, Any],
    dtype: torch.dtype,
    arguments: dict[str, Any],
    whole: PreTrainedModel | None = None,
    auto: Any = AutoModelForCausalLM,
) -> PreTrainedModel | None:
    """The model in shards, with the stored weights; None where names have to be converted, or a head over labels is not
    stored. A collective.
    `whole`: the composite whose files they are, where the model is its text part.

    Raises UserError (MD150 weights missing, MD151 weights of another shape), on all ranks.
    """
    from transformers.initialization import no_init_weights

    with init_empty_weights(include_buffers=False), no_init_weights():
        model: PreTrainedModel = auto.from_config(config, dtype=dtype, **arguments)
    model.tie_weights()
    sources = match_sources(model, files, whole)
    if sources is None:
        return None
    names = names_by_parameter(model)
    tensor_names = {first: next((n for n in aliases if n in sources), None) for first, aliases in names.items()}
    missing = [name for name, source in tensor_names.items() if source is None]
    if missing and head_names(model, missing) == set(missing):
        return None
    check_missing_weights(spec, missing)
    parameters = dict(model.named_parameters())
    shapes = {
        n: (files.shapes[sources[s]], tuple(parameters[n].shape)) for n, s in tensor_names.items() if s is not None
    }
    check_weight_shapes(spec, {name: pair for name, pair in shapes.items() if pair[0] != pair[1]})
    _load_buffers(model, files, sources, ds_config, dtype)
    _detach_from_meta(model)
    feeder = _ParameterFeeder(model, files, {n: sources[s] for n, s in tensor_names.items() if s is not None}, shapes)
    deepspeed.zero.Init(module=feeder, config_dict_or_path=ds_config)
    _move_buffers(model, torch.device(get_accelerator().current_device_name()))
    return model


def _load_buffers(
    model: torch.nn.Module,
    files: SafetensorsFiles,
    sources: dict[str, str],
    ds_config: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    """Stored buffers, read by every rank: they are small, and DeepSpeed neither shards nor sends them."""
    from deepspeed.runtime.keep_in_fp32 import keep_buffers_in_fp32, keep_in_fp32_pattern

    pattern = keep_in_fp32_pattern(model, ds_config.get("data_types", {}).get("keep_in_fp32_modules"), dtype)
    if pattern is not None:
        keep_buffers_in_fp32(model, pattern)
    for name, buffer in model.named_buffers():
        if name in sources and files.shapes[sources[name]] == tuple(buffer.shape):
            files.read_into(sources[name], buffer)


def _move_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """`zero.Init` moves the parameters to the device, and the engine then leaves the model where it is
    (DeepSpeed's `runtime/engine.py`, `_configure_distributed_model`). A buffer of several modules stays one.
    """
    on_device: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, old in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, on_device.setdefault(id(old), old.to(device)))


def _detach_from_meta(model: torch.nn.Module) -> None:
    """Replace each meta parameter by an empty one of the training device: data of another kind of device cannot be put
    into a meta parameter. Tied ones stay tied.
    """
    replacements: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(old) not in replacements:
                replacements[id(old)] = torch.nn.Parameter(
                    torch.empty(0, dtype=old.dtype), requires_grad=old.requires_grad
                )
                replacements[id(old)].__dict__.update(old.__dict__)
            setattr(module, name, replacements[id(old)])


class _ParameterFeeder(torch.nn.Module):
    """A module for `deepspeed.zero.Init`, which shards each of its parameters before it takes the next."""

    def __init__(
        self,
        model: torch.nn.Module,
        files: SafetensorsFiles,
        sources: dict[str, str],
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        super().__init__()
        self._entries = [(parameter, sources[name], shapes[name][1]) for name, parameter in model.named_parameters()]
        self._files = files

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:  # noqa: ARG002
        """Each parameter, whole: on rank 0 with its values."""
        largest: dict[torch.dtype, int] = {}
        for parameter, _, shape in self._entries:
            largest[parameter.dtype] = max(largest.get(parameter.dtype, 0), torch.Size(shape).numel())
        buffers = {dtype: torch.empty(count, dtype=dtype) for dtype, count in largest.items()}
        for parameter, source, shape in self._entries:
            whole = buffers[parameter.dtype][: torch.Size(shape).numel()].view(shape)
            if dist.get_rank() == 0:
                self._files.read_into(source, whole)
            parameter.data = whole
            yield parameter
