# SPDX-License-Identifier: Apache-2.0
"""The `PipelineModule`: every rank creates or reads the layers of its own stage only.

Partition methods are DeepSpeed's own; the loss is that of `transformers`. Every rank checks from the headers
that the files hold the whole model, so that all ranks raise together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch
from accelerate.utils import set_seed
from deepspeed import comm as dist
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipeModelDataParallelTopology, ProcessTopology
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from harness.facts.pipeline_support import compile_layer_pattern
from harness.run.resolved_run import ResolvedRun
from harness.runtime import plugin_loader
from harness.runtime.distributed import Distributed
from harness.runtime.models.model_builder import model_kwargs
from harness.runtime.models.model_config import is_random_init
from harness.runtime.models.safetensors_reader import SafetensorsFiles, open_safetensors
from harness.runtime.models.stored_names import build_source, check_whole_export, match_sources
from harness.runtime.models.trainable_parameters import freeze_parameters
from harness.runtime.models.weight_errors import check_missing_weights, check_weight_shapes
from harness.runtime.pipeline import layers
from harness.runtime.pipeline.layer_layouts import layout_of, mask_kind
from harness.runtime.pipeline.parameter_names import (
    INNER_MODULE,
    TIED_EMBEDDING_KEY,
    PipelinePart,
    pipeline_parts,
    tied_names,
    to_transformers_parameter,
)
from harness.runtime.pipeline.pipeline_stepper import TokenLoss
from harness.runtime.pipeline.shard_rules import WeightPartition, find_indivisible
from harness.runtime.pipeline.tensor_layers import TensorShards
from harness.runtime.topology import Topology
from harness.runtime.user_errors import first_error_line, user_error
from harness.spec.run_spec import ModelSpec


class PrebuiltLayer(LayerSpec):  # type: ignore[misc]  # DeepSpeed has no types
    """A layer that exists already. `typename` is the wrapped class: `type:` partitions match its name."""

    def __init__(self, layer: nn.Module, inner: nn.Module) -> None:
        super().__init__(type(inner))
        self.layer = layer

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 (DeepSpeed's signature)
        """The layer; called to count its parameters too."""
        return self.layer


class PrebuiltTiedLayer(TiedLayerSpec):  # type: ignore[misc]  # as above
    """The embedding, or the head that shares its weight."""

    def __init__(self, layer: nn.Module, inner: nn.Module, forward_fn: Callable[..., Any] | None = None) -> None:
        # The layer without a function of its own is the one that DeepSpeed saves.
        super().__init__(TIED_EMBEDDING_KEY, type(inner), forward_fn=forward_fn, tied_weight_attr="module.weight")
        self.layer = layer

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 (DeepSpeed's signature)
        """The layer; called to count its parameters too."""
        return self.layer


class Pipeline(PipelineModule):  # type: ignore[misc]  # as above
    """A PipelineModule that fills the weights of its own stage's layers before it builds.

    `tensor_partitions` has the weights that are sharded over a tensor group, by their name in `transformers`.
    Raises UserError (PP103) when a stage would have nothing to train.
    """

    def __init__(
        self,
        specs: list[LayerSpec],
        fill: Callable[[int, nn.Module], None],
        recompute_every: int,
        config: PreTrainedConfig,
        **options: Any,
    ) -> None:
        self._fill, self._recompute_every, self._model_config = fill, recompute_every, config
        self.tensor_partitions: dict[str, WeightPartition] = {}
        super().__init__(specs, **options)
        self._mark_parameters_of_the_norm()

    def _is_checkpointable(self, funcs: list[Any]) -> bool:
        """DeepSpeed asks for one layer at a time. Of the stage's decoder layers those that `every` names recompute."""
        if not super()._is_checkpointable(funcs):
            return False
        decoders = [layer for layer in self.forward_funcs if isinstance(layer, layers.Decoder)]
        return next(i for i, layer in enumerate(decoders) if layer is funcs[0]) % self._recompute_every == 0

    def _build(self) -> None:
        self._check_stages()
        group = self.mpu().get_slice_parallel_group()
        shards = TensorShards(self._model_config, group) if self.mpu().model_parallel_size > 1 else None
        if shards is not None:
            cast("TokenLoss", self.loss_fn).tensor_group = group
        parts = pipeline_parts(self._model_config)
        for index in range(self._local_start, self._local_stop):
            layer = self._layer_specs[index].layer
            self._fill(index, layer)
            if shards is not None:  # at once: only one layer is whole at a time
                self._shard_layer(layer, parts[index].prefix or str(parts[0].prefix), shards)
        super()._build()

    def _shard_layer(self, layer: nn.Module, prefix: str, shards: TensorShards) -> None:
        """Shard a layer in place. `prefix`: its name in `transformers`, of a tied head that of the embedding."""
        if isinstance(layer, layers.Embedding):
            if f"{prefix}.weight" not in self.tensor_partitions:  # it and the tied head may be on one stage
                layer.module, self.tensor_partitions[f"{prefix}.weight"] = shards.shard_embedding(layer.module)
        elif isinstance(layer, layers.Decoder):
            partitions = shards.shard_decoder(layer.module)
            self.tensor_partitions |= {f"{prefix}.{name}": partition for name, partition in partitions.items()}
        elif isinstance(layer, layers.Head):
            self.tensor_partitions[f"{prefix}.weight"] = shards.shard_head(cast("nn.Linear", layer.module))

    def _mark_parameters_of_the_norm(self) -> None:
        """DeepSpeed's mark, by which a norm over the ranks of a replica counts each weight once.

        Without it, clipping without ZeRO counts the first stage alone, and none that a tensor group shards.
        """
        is_counted = self.mpu().get_slice_parallel_rank() == 0
        for name, parameter in self.named_parameters():
            is_sharded = self.partition_of(name) is not None
            parameter.model_parallel = (is_counted or is_sharded) and not parameter.ds_pipe_replicated

    def partition_of(self, name: str) -> WeightPartition | None:
        """The partition of the parameter of this name, as `named_parameters` has it; None for one that is whole."""
        return self.tensor_partitions.get(to_transformers_parameter(self._model_config, name))

    def _check_stages(self) -> None:
        for stage, (start, stop) in enumerate(zip(self.parts, self.parts[1:], strict=False)):
            stage_layers = [spec.layer for spec in self._layer_specs[start:stop]]
            if not any(p.requires_grad for layer in stage_layers for p in layer.parameters()):
                raise user_error(
                    "PP103",
                    f"stage {stage} of {self.num_stages} has nothing to train: layers {start} to {stop} of"
                    f" {len(self._layer_specs)}",
                    key="parallel.pipeline_parallel_size",
                    notes=("DeepSpeed's optimizer refuses an empty list on that stage, the others would wait for it",),
                    fix="set fewer stages, or another `parallel.pipeline_partition_method`",
                )


def build_pipeline(run: ResolvedRun, config: PreTrainedConfig) -> Pipeline:
    """The model of the run, split into stages. A collective. Raises UserError (PP101 to PP106) on every rank."""
    from harness.runtime.pipeline.deferred_init import DeferredInit

    spec, parallel = run.spec.model, run.spec.parallel
    _check_plugin(run)
    parts = pipeline_parts(config)
    _check_widths(config, run.parallel_dims.tensor)
    set_seed(run.spec.train.seed)
    deferred_init = DeferredInit(draw_random=is_random_init(spec))
    with deferred_init:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **model_kwargs(run))
    if spec.freeze or spec.train_only:
        freeze_parameters(model, spec)
    weights = None if is_random_init(spec) else LayerWeights(spec, model, parts)
    shared_inputs = layers.SharedInputs(model.config)
    specs = build_layer_specs(model, parts, shared_inputs)

    def fill(index: int, layer: nn.Module) -> None:
        deferred_init.materialize(layer)
        if weights is not None:
            weights.read_layer(index, layer)

    method = _resolve_partition_method(parallel.pipeline_partition_method, specs)
    pipeline = Pipeline(
        specs,
        fill,
        run.checkpointing.recompute_every if run.checkpointing else 1,
        model.config,
        topology=_process_topology(run),
        loss_fn=TokenLoss(model.config.vocab_size),
        partition_method=method,
        activation_checkpoint_interval=int(run.checkpointing is not None),
        activation_checkpoint_func=non_reentrant_checkpoint,
        checkpointable_layers=[layers.Decoder.__name__],
    )
    pipeline.shared_inputs = shared_inputs
    pipeline.generation_config = _generation_config(run, model)
    pipeline.train()
    return pipeline


def _process_topology(run: ResolvedRun) -> ProcessTopology:
    """DeepSpeed's topology: stages outermost, then data-parallel ranks, the ranks of a tensor group are neighbours."""
    stages, tensor, ranks = run.parallel_dims.pipeline, run.parallel_dims.tensor, dist.get_world_size()
    if tensor == 1:
        return PipeDataParallelTopology(num_pp=stages, num_dp=ranks // stages)
    return PipeModelDataParallelTopology(num_pp=stages, num_mp=tensor, num_dp=ranks // (stages * tensor))


def _generation_config(run: ResolvedRun, model: PreTrainedModel) -> GenerationConfig | None:
    """The generation configuration of the export: of the weights' folder, or by the model's configuration."""
    spec = run.spec.model
    if not is_random_init(spec):
        with suppress(OSError):
            return GenerationConfig.from_pretrained(str(spec.name_or_path), revision=spec.revision or "main")
    return model.generation_config


def count_parameters(pipeline: nn.Module, distributed: Distributed, topology: Topology) -> tuple[int, int]:
    """(all, trainable) elements of the whole model; a weight that several ranks have counts once. A collective."""
    parameters: Iterator[Any] = pipeline.parameters()  # with the mark of `Pipeline`
    own = [p for p in parameters if topology.data_parallel_rank == 0 and p.model_parallel]
    sizes = sum(p.numel() for p in own), sum(p.numel() for p in own if p.requires_grad)
    total, trainable = distributed.all_reduce_sum(*sizes)
    return int(total), int(trainable)


def _check_plugin(run: ResolvedRun) -> None:
    """Raise UserError (PP105) for a plug-in that needs the whole model on one rank."""
    plugin = plugin_loader.load_plugin(run.spec)
    for name in ("build_model", "metrics"):
        if getattr(plugin, name, None) is not None:
            raise user_error(
                "PP105",
                f"`{name}` of the plug-in needs the whole model, and a pipeline stage has only some layers",
                key="plugins.file",
                fix=f"set `parallel.pipeline_parallel_size: 1`, or remove `{name}` from the plug-in",
            )


def _check_widths(config: PreTrainedConfig, tensor: int) -> None:
    """Raise UserError (PP106) for layers that the tensor ranks of a stage do not divide."""
    indivisible = find_indivisible(config, tensor)
    if indivisible is not None:
        width, unit = indivisible
        raise user_error(
            "PP106",
            f"{width:,} {unit} do not divide over {tensor} tensor ranks of a pipeline stage",
            key="parallel.tensor_parallel_size",
            notes=("each tensor rank takes whole heads, and equal parts of every matrix and of the vocabulary",),
            fix="set `parallel.tensor_parallel_size` to a divisor of all of them",
        )


def build_layer_specs(
    model: PreTrainedModel, parts: list[PipelinePart], shared_inputs: layers.SharedInputs
) -> list[LayerSpec]:
    """One layer for each part, with the modules of the model. Raises AttributeError for one without such modules."""
    config, layout = model.config, layout_of(model.config)
    rotary = model.get_submodule(f"{layout.base}.{layout.rotary}") if layout.rotary else None
    tied = any(part.prefix is None for part in parts)
    embedding = layers.Embedding(model.get_submodule(f"{layout.base}.{layout.embedding}"))
    specs: list[LayerSpec] = []
    number = 0
    for part in parts:
        if part.prefix is None:  # the head is the embedding's weight
            specs.append(PrebuiltTiedLayer(embedding, embedding.module, layers.apply_tied_head))
            continue
        inner = model.get_submodule(part.prefix)
        if part.kind == "embedding":
            specs.append(PrebuiltTiedLayer(embedding, inner) if tied else PrebuiltLayer(embedding, inner))
        elif part.kind == "positions":
            dropout = model.get_submodule(f"{layout.base}.{layout.dropout}")
            specs.append(PrebuiltLayer(layers.PositionEmbedding(inner, dropout), inner))
        elif part.kind == "decoder":
            mask = mask_kind(config, number)
            specs.append(PrebuiltLayer(layers.Decoder(inner, rotary, shared_inputs, mask), inner))
            number += 1
        elif part.kind == "norm":
            specs.append(PrebuiltLayer(layers.Norm(inner), inner))
        else:
            specs.append(PrebuiltLayer(layers.Head(inner), inner))
    return specs


def _resolve_partition_method(method: str, specs: list[LayerSpec]) -> str:
    """The method, if its pattern matches a layer. Raises UserError (PP104)."""
    if method.startswith("type:"):
        pattern = compile_layer_pattern(method)
        class_names = sorted({spec.typename.__name__ for spec in specs})
        if not any(pattern.search(name) for name in class_names):
            listed = ", ".join(f"`{name}`" for name in class_names)
            raise user_error(
                "PP104",
                f"`{method}` matches no layer of this model, which are {listed}",
                key="parallel.pipeline_partition_method",
                fix="name one of them, or set `parameters`",
            )
    return method


class LayerWeights:
    """The tensors in the files of `model.name_or_path` for each layer of a pipeline.

    Raises UserError (MD102 nothing to load, MD150 weights missing, MD151 another shape, PP102 not safetensors, MD165).
    """

    def __init__(self, spec: ModelSpec, model: PreTrainedModel, parts: Sequence[PipelinePart]) -> None:
        self._files = _open_weights(spec)
        whole = build_source(spec, model.config)
        check_whole_export(model, spec, whole, self._files)
        stored = match_sources(model, self._files, whole) if whole is not None else None
        stored = {name: name for name in self._files.paths} if stored is None else stored
        self._sources = [_weight_sources(stored, model, part) for part in parts]
        missing = [name for layer_sources in self._sources for name, source in layer_sources.values() if source is None]
        check_missing_weights(spec, missing)
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
        stored_shapes = {
            name: self._files.shapes[source]
            for layer_sources in self._sources
            for name, source in layer_sources.values()
            if source
        }
        check_weight_shapes(spec, {n: (s, shapes[n]) for n, s in stored_shapes.items() if s != shapes[n]})

    def read_layer(self, layer: int, module: nn.Module) -> None:
        """Fill the parameters, which have memory already; nothing for a tied head, which receives the embedding."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, (_, source) in self._sources[layer].items():
                if source is not None:
                    self._files.read_into(source, parameters[name])


def _open_weights(spec: ModelSpec) -> SafetensorsFiles:
    try:
        files = open_safetensors(spec)
    except (OSError, ValueError, SafetensorError) as error:
        raise user_error(
            "MD102",
            f"no weights could be loaded from `{spec.name_or_path}`",
            key="model.name_or_path",
            notes=(first_error_line(error),),
        ) from None
    if files is None:
        raise user_error(
            "PP102",
            f"`{spec.name_or_path}` has no safetensors files",
            key="model.name_or_path",
            notes=("a pipeline stage reads only its own weights; other formats must be read as a whole",),
            fix="convert it once: `save_pretrained` of `transformers` writes safetensors",
        )
    return files


def _weight_sources(
    stored: Mapping[str, str], model: PreTrainedModel, part: PipelinePart
) -> dict[str, tuple[str, str | None]]:
    """For each parameter of the layer: its name in `transformers`, and its name in the files, None if missing.
    `stored`: the names in the files, by those of the model.

    Files of a base model lack its prefix, and files of a tied one may hold the head in place of the embedding.
    """
    if part.prefix is None:
        return {}
    sources = {}
    for name, _ in model.get_submodule(part.prefix).named_parameters():
        full_name = f"{part.prefix}.{name}"
        candidates = [full_name, full_name.removeprefix(f"{model.base_model_prefix}.")]
        candidates += [alias for alias, owner in tied_names(model.config).items() if owner == full_name]
        sources[f"{INNER_MODULE}.{name}"] = (
            full_name,
            next((stored[candidate] for candidate in candidates if candidate in stored), None),
        )
    return sources
