"""The `PipelineModule`: every rank keeps the layers of its own stage, and has created or read nothing else.

Partition methods are DeepSpeed's own; the loss is that of `transformers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, set_seed

from harness.plan.run import Run
from harness.runtime import plugins
from harness.runtime.models.configuration import is_new
from harness.runtime.models.creation import model_arguments
from harness.runtime.models.freezing import choose_trained
from harness.runtime.pipeline import layers
from harness.runtime.pipeline.creation import Deferred
from harness.runtime.pipeline.families import layout_of
from harness.runtime.pipeline.loss import TokenLoss
from harness.runtime.pipeline.names import TIED, Part, parts_of
from harness.runtime.pipeline.weights import LayerWeights
from harness.runtime.ranks import Ranks
from harness.runtime.refusals import refusal
from harness.runtime.topology import Topology


class Made(LayerSpec):
    """A layer that is there already. `typename` is the class inside the cover: `type:` partitions look at its name."""

    def __init__(self, cover: nn.Module, inner: nn.Module) -> None:
        super().__init__(type(inner))
        self.cover = cover

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 (DeepSpeed's signature)
        """The layer; called to count its parameters too."""
        return self.cover


class MadeTied(TiedLayerSpec):
    """The embedding, or the head that shares its weight."""

    def __init__(self, cover: nn.Module, inner: nn.Module, forward_fn: Callable[..., Any] | None = None) -> None:
        # The layer without a function of its own is the one that DeepSpeed saves.
        super().__init__(TIED, type(inner), forward_fn=forward_fn, tied_weight_attr="module.weight")
        self.cover = cover

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002 (DeepSpeed's signature)
        """The layer; called to count its parameters too."""
        return self.cover


class Pipeline(PipelineModule):
    """A PipelineModule that has its own layers filled with weights before it takes them.

    Raises Refused (PP103) when a stage would have nothing to train.
    """

    def __init__(self, specs: list[LayerSpec], fill: Callable[[int, nn.Module], None], **options: Any) -> None:
        self._fill = fill
        super().__init__(specs, **options)

    def _build(self) -> None:
        self._check_stages()
        for index in range(self._local_start, self._local_stop):
            self._fill(index, self._layer_specs[index].cover)
        super()._build()

    def _check_stages(self) -> None:
        for stage, (start, stop) in enumerate(zip(self.parts, self.parts[1:], strict=False)):
            covers = [spec.cover for spec in self._layer_specs[start:stop]]
            if not any(p.requires_grad for cover in covers for p in cover.parameters()):
                raise refusal(
                    "PP103",
                    f"stage {stage} of {self.num_stages} has nothing to train: layers {start} to {stop} of"
                    f" {len(self._layer_specs)}",
                    key="parallel.pipeline_parallel_size",
                    notes=("DeepSpeed's optimizer refuses an empty list on that stage, the others would wait for it",),
                    fix="set fewer stages, or another `parallel.pipeline_partition_method`",
                )


def build_pipeline(run: Run, config: Any) -> Pipeline:
    """The model of the run, cut into stages. A collective. Raises Refused (PP101 to PP105) on every rank alike."""
    spec, parallel = run.spec.model, run.spec.parallel
    _refuse_whole(run)
    parts = parts_of(config)
    set_seed(run.spec.train.seed)
    creation = Deferred(draw=is_new(spec))
    with creation:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **model_arguments(spec))
    if spec.freeze or spec.train_only:
        choose_trained(model, spec)
    stored = None if is_new(spec) else LayerWeights(spec, model, parts)
    specs = _specs(model, parts)

    def fill(index: int, cover: nn.Module) -> None:
        creation.fill(cover)
        if stored is not None:
            stored.read(index, cover)

    recompute = run.spec.train.gradient_checkpointing
    method = _method(parallel.pipeline_partition_method, specs)
    pipeline = Pipeline(
        specs,
        fill,
        num_stages=parallel.pipeline_parallel_size,
        loss_fn=TokenLoss(model.config.vocab_size),
        partition_method=method,
        activation_checkpoint_interval=int(recompute),
        activation_checkpoint_func=non_reentrant_checkpoint,
        checkpointable_layers=[layers.Decoder.__name__],
    )
    pipeline.generation_config = _generation(run, model)
    return pipeline.train()


def _generation(run: Run, model: Any) -> Any:
    """How to generate with the model, for its export: as the weights' folder says, or the configuration."""
    spec = run.spec.model
    if not is_new(spec):
        with suppress(OSError):
            return GenerationConfig.from_pretrained(spec.name_or_path, revision=spec.revision)
    return model.generation_config


def num_parameters(pipeline: Pipeline, ranks: Ranks, topology: Topology) -> int:
    """Elements of the whole model; a tied weight counts on its first stage alone. A collective."""
    mine = sum(p.numel() for p in pipeline.parameters() if not p.ds_pipe_replicated)
    return int(ranks.sum(mine if topology.data_rank == 0 else 0)[0])


def _refuse_whole(run: Run) -> None:
    """What a plug-in does with a model that is whole on one rank."""
    plugin = plugins.load(run.spec)
    for name in ("build_model", "metrics"):
        if getattr(plugin, name, None) is not None:
            raise refusal(
                "PP105",
                f"`{name}` of the plug-in needs the whole model, of which a pipeline stage has some layers",
                key="plugins.file",
                fix=f"set `parallel.pipeline_parallel_size: 1`, or take `{name}` out of the plug-in",
            )


def _specs(model: Any, parts: list[Part]) -> list[LayerSpec]:
    """A layer for each part, empty as the model is."""
    config, layout = model.config, layout_of(model.config)
    surroundings = layers.Surroundings(config)
    rotary = model.get_submodule(f"{layout.base}.{layout.rotary}") if layout.rotary else None
    tied = any(part.prefix is None for part in parts)
    specs: list[LayerSpec] = []
    number = 0
    for part in parts:
        inner = model.get_submodule(part.prefix) if part.prefix else None
        if part.kind == "embedding":
            embedding = layers.Embedding(inner)
            specs.append(MadeTied(embedding, inner) if tied else Made(embedding, inner))
        elif part.kind == "positions":
            dropout = model.get_submodule(f"{layout.base}.{layout.dropout}")
            specs.append(Made(layers.Positions(inner, dropout), inner))
        elif part.kind == "decoder":
            mask = _mask(config, layout.mask, number)
            specs.append(Made(layers.Decoder(inner, rotary, surroundings, mask), inner))
            number += 1
        elif part.kind == "norm":
            specs.append(Made(layers.Norm(inner), inner))
        elif inner is not None:
            specs.append(Made(layers.Head(inner), inner))
        else:
            specs.append(MadeTied(embedding, embedding.module, layers.tied_head))
    return specs


def _mask(config: Any, rule: str, number: int) -> str:
    if rule == "by-layer":
        return str(config.layer_types[number])
    window = rule == "window" and getattr(config, "sliding_window", None) is not None
    return "sliding_attention" if window else "full_attention"


def _method(method: str, specs: list[LayerSpec]) -> str:
    """DeepSpeed's word for it, once it is known to find a layer. Raises Refused (PP104)."""
    if method.startswith("type:"):
        pattern = re.compile(method.removeprefix("type:"), re.IGNORECASE)
        found = sorted({spec.typename.__name__ for spec in specs})
        if not any(pattern.search(name) for name in found):
            raise refusal(
                "PP104",
                f"`{method}` matches no layer of this model, which are {', '.join(f'`{name}`' for name in found)}",
                key="parallel.pipeline_partition_method",
                fix="name one of them, or set `parameters`",
            )
    return method
