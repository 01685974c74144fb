# SPDX-License-Identifier: Apache-2.0
"""Causal language modelling: the next token, over rows of text. Its unit is a predicted token."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, cast

import torch

from harness.patches.chunked_loss import ChunkedHead
from harness.patches.patch_registry import PatchStates
from harness.runtime.distributed import Distributed
from harness.runtime.engine import install_loss
from harness.runtime.engine_protocol import Engine, PipelineEngine
from harness.runtime.evaluate import PluginMetrics
from harness.runtime.micro_batch import MicroBatch, copy_to_device
from harness.runtime.models import build_model
from harness.runtime.models.objective_check import check_objective
from harness.runtime.models.packed_attention import PackedAttention, install_packed_attention
from harness.runtime.objectives.objective import Objective
from harness.runtime.packed_kernels import border_arguments
from harness.runtime.parallel.sequence_parallel import install_ulysses_attention
from harness.runtime.parallel.sequence_stepper import SequenceParallelStepper
from harness.runtime.pipeline import pipeline_module
from harness.runtime.pipeline.pipeline_stepper import PipelineStepper
from harness.runtime.pipeline.stack_check import check_stack
from harness.runtime.plugin_loader import load_plugin
from harness.runtime.step import Stepper
from harness.runtime.topology import Topology


class CausalLM(Objective):
    """The objective `causal_lm`."""

    name: ClassVar[str] = "causal_lm"
    _head: ChunkedHead | None = None
    """Computes the loss in chunks of tokens."""
    _packed_attention: PackedAttention | None = None
    """Takes the borders of packed documents."""
    _needs_borders = False
    """So do the kernels of other layers, in one row."""

    @property
    def _is_pipeline(self) -> bool:
        return self.run.parallel_dims.pipeline > 1

    def check_model(self, config: Any) -> None:
        """Raises UserError (MD164 not a causal language model, MD128 packing, PP1xx layers of a pipeline)."""
        self._needs_borders = check_objective(self.run, config)
        if self._is_pipeline:
            check_stack(config, trust_remote_code=self.run.spec.model.trust_remote_code)

    def build_model(self, ds_config: dict[str, Any], config: Any) -> torch.nn.Module:
        """The model, or the layers of this rank's pipeline stage."""
        if self._is_pipeline:
            return pipeline_module.build_pipeline(self.run, config)
        return build_model(self.run, ds_config, config)

    def install_loss(self, engine: Engine, patches: PatchStates, *, is_main_process: bool) -> PatchStates:
        """Make the model compute its loss in chunks, where the run does."""
        self._head, patches = install_loss(engine, self.run, patches, is_main_process=is_main_process)
        return patches

    def make_stepper(self, engine: Engine, distributed: Distributed, topology: Topology) -> Stepper:
        """The stepper, with attention over packed documents and over a sequence group where the run has these."""
        if topology.pipeline_parallel_size > 1:
            return PipelineStepper(cast("PipelineEngine", engine), distributed, topology)
        self._packed_attention = packed = install_packed_attention(engine.module, self.run)
        self._eval_head = None if self.run.spec.plugins.file is not None else self._head  # `metrics` takes logits
        self._accepts_num_items = accepts_num_items(engine.module)
        if topology.sequence_parallel_size > 1:
            attention = install_ulysses_attention(engine.module, engine.get_sequence_parallel_group())
            heads = self._head, self._eval_head
            return SequenceParallelStepper(engine, distributed, topology, attention, *heads, packed)
        return super().make_stepper(engine, distributed, topology)

    def make_eval_metrics(self) -> PluginMetrics:
        """Those of a plug-in, from the logits of every forward."""
        plugin = load_plugin(self.run.spec)
        return PluginMetrics(plugin.metrics if plugin else None)

    def loss(self, engine: Engine, batch: MicroBatch, share: float) -> torch.Tensor:
        """Sum of the token losses over `share`, the mean number of predicted tokens of a micro-batch."""
        if self._head is not None:
            return self._forward(engine, batch, self._head, share)
        if self._accepts_num_items:
            return self._forward(engine, batch, None, num_items_in_batch=share)
        return self._forward(engine, batch, None) * (batch.num_targets / share)

    def eval_loss(self, engine: Engine, batch: MicroBatch) -> tuple[torch.Tensor, float]:
        """(sum of the token losses, predicted tokens)."""
        predicted = batch.num_targets
        loss = self._forward(engine, batch, self._eval_head).detach().double()
        return (loss * predicted, predicted) if predicted else (torch.zeros_like(loss), 0)

    def _forward(
        self,
        engine: Engine,
        batch: MicroBatch,
        head: ChunkedHead | None,
        share: float | None = None,
        **arguments: float,
    ) -> torch.Tensor:
        """The model's loss. `head` computes it in chunks, over `share` or as the mean."""
        borders: dict[str, Any] = {}
        if self._needs_borders:
            batch = batch.as_one_row()
            borders = border_arguments(batch.document_borders or (), self._device)
        inputs, labels = batch.to_model_inputs(self._device), copy_to_device(batch.labels, self._device)
        if head is not None:
            head.set_labels(labels, share)
        if self._packed_attention is not None:
            self._packed_attention.start_forward(batch, self._device)
        loss: torch.Tensor = engine(**inputs, **borders, labels=labels, use_cache=False, **arguments).loss
        if self._packed_attention is not None:
            self._packed_attention.check_layers()
        return loss


def accepts_num_items(model: torch.nn.Module) -> bool:
    """True when the model's forward hands `num_items_in_batch` on to its loss, as `transformers` models do."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.name == "num_items_in_batch" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
