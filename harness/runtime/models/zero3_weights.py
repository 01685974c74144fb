"""Stage 3: pretrained weights go from the file into the shards of all ranks, one tensor at a time.

The model is made without memory for its parameters. Then `deepspeed.zero.Init` walks over them: rank 0 reads the
tensor, DeepSpeed sends it to all ranks and each keeps its shard. So a file is read once, by one process; a rank holds
its shards and one whole tensor, in a buffer that serves all of them.

`transformers`' own loader does the same in other steps: it makes every parameter whole first, and rank 0 maps all
files. With 4 ranks and 1 GB of weights that came to four times the model in host memory, for single tensors are
allocated and freed between the shards, which scatters the heap. It remains for what has to be converted (experts that
are stored one by one) or is not stored as safetensors.
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
from deepspeed.runtime.keep_in_fp32 import keep_buffers_in_fp32, keep_in_fp32_pattern
from transformers import AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, rename_source_key
from transformers.initialization import no_init_weights
from transformers.integrations import HfDeepSpeedConfig

from harness.runtime.models.safetensors_reader import SafetensorsFiles
from harness.runtime.models.weight_errors import check_missing_weights, check_weight_shapes
from harness.spec.run_spec import ModelSpec


@contextmanager
def zero3_init(ds_config: dict[str, Any]) -> Iterator[None]:
    """Make `transformers` create and load models in shards while this lasts, where that is how they are made."""
    keep_alive = HfDeepSpeedConfig(ds_config) if uses_zero3_init(ds_config) else None
    yield
    del keep_alive


def uses_zero3_init(ds_config: dict[str, Any]) -> bool:
    """Stage 3 without AutoTP. AutoTP cuts whole layers: 0.19.4 to 0.19.7 cannot cut those that are in shards already,
    and 0.19.8 leaves the weights that it does not cut in shards over all ranks, not over the data-parallel ones.
    """
    tensor = ds_config.get("tensor_parallel", {}).get("autotp_size", 0)
    return ds_config.get("zero_optimization", {}).get("stage", 0) == 3 and tensor < 2


def load_zero3_model(
    stored: SafetensorsFiles,
    spec: ModelSpec,
    config: Any,
    ds_config: dict[str, Any],
    dtype: torch.dtype,
    arguments: dict[str, Any],
) -> Any:
    """The model in shards, with the stored weights; None where names have to be converted. A collective.

    Raises Refused (MD150 weights missing, MD151 weights of another shape), on all ranks alike.
    """
    with init_empty_weights(include_buffers=False), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **arguments)
    model.tie_weights()
    sources = _match_sources(model, stored)
    if sources is None:
        return None
    names = _names_by_parameter(model)
    found = {first: next((n for n in same if n in sources), None) for first, same in names.items()}
    check_missing_weights(spec, [name for name, source in found.items() if source is None])
    parameters = dict(model.named_parameters())
    shapes = {n: (stored.shapes[sources[s]], tuple(parameters[n].shape)) for n, s in found.items() if s is not None}
    check_weight_shapes(spec, {name: pair for name, pair in shapes.items() if pair[0] != pair[1]})
    _load_buffers(model, stored, sources, ds_config, dtype)
    _detach_from_meta(model)
    walk = _ParameterFeeder(model, stored, {n: sources[s] for n, s in found.items() if s is not None}, shapes)
    deepspeed.zero.Init(module=walk, config_dict_or_path=ds_config)
    _move_buffers(model, torch.device(get_accelerator().current_device_name()))
    return model


def _match_sources(model: Any, stored: SafetensorsFiles) -> dict[str, str] | None:
    """The stored tensor of each name in the model, renamed as in `transformers`; None where one must be converted."""
    transforms = get_model_conversion_mapping(model)
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    renamings = [t for t in transforms if not isinstance(t, WeightConverter)]
    known = dict(model.state_dict(keep_vars=True))
    sources: dict[str, str] = {}
    for key in stored.paths:
        name, converter = rename_source_key(key, renamings, converters, model.base_model_prefix, known)
        if converter is not None:
            return None
        sources[name] = key
    return sources


def _names_by_parameter(model: torch.nn.Module) -> dict[str, list[str]]:
    """All names of each parameter, by the first: two or more where it is tied."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {same[0]: same for same in names.values()}


def _load_buffers(
    model: torch.nn.Module,
    stored: SafetensorsFiles,
    sources: dict[str, str],
    ds_config: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    """Stored buffers, read by every rank: they are small, and DeepSpeed neither shards nor sends them."""
    pattern = keep_in_fp32_pattern(model, ds_config.get("data_types", {}).get("keep_in_fp32_modules"), dtype)
    if pattern is not None:
        keep_buffers_in_fp32(model, pattern)
    for name, buffer in model.named_buffers():
        if name in sources and stored.shapes[sources[name]] == tuple(buffer.shape):
            stored.read_into(sources[name], buffer)


def _move_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """`zero.Init` takes the parameters to the device, and the engine then leaves the model where it is
    (`runtime/engine.py`, `_configure_distributed_model`). A buffer of several modules stays one.
    """
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, old in module._buffers.items():
            if old is not None:
                module._buffers[name] = moved.setdefault(id(old), old.to(device))


def _detach_from_meta(model: torch.nn.Module) -> None:
    """Put an empty parameter of the training device's kind in place of each one that has a shape only: data of another
    kind of device cannot be put into those. Tied ones stay tied.
    """
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is None:
                continue
            if id(old) not in made:
                made[id(old)] = torch.nn.Parameter(torch.empty(0, dtype=old.dtype), requires_grad=old.requires_grad)
                made[id(old)].__dict__.update(old.__dict__)
            module._parameters[name] = made[id(old)]


class _ParameterFeeder(torch.nn.Module):
    """What `deepspeed.zero.Init` walks over: it asks for the parameters one after another, and has cut one into shards
    before it asks for the next.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        stored: SafetensorsFiles,
        sources: dict[str, str],
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]],
    ) -> None:
        super().__init__()
        self._entries = [(parameter, sources[name], shapes[name][1]) for name, parameter in model.named_parameters()]
        self._files = stored

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
