# SPDX-License-Identifier: Apache-2.0
"""An objective: what a run is built from, its rows and batches, and its loss. `train.py` and `step.py` know no other.

A unit is what the loss counts: a predicted token, an example, a pair. Every unit of the global batch counts the same,
however units are spread over ranks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from harness.patches.patch_registry import PatchStates
from harness.run.resolved_run import ResolvedRun
from harness.runtime.dataset.distributed_preparation import prepare_on_node_leaders
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.sampler import EvalData, TrainData, open_eval_data, open_train_data
from harness.runtime.distributed import Distributed
from harness.runtime.engine_protocol import Engine
from harness.runtime.evaluate import PluginMetrics
from harness.runtime.micro_batch import BatchGeometry
from harness.runtime.models import build_model, load_config
from harness.runtime.objective_metrics import ObjectiveMetrics
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunDir
from harness.runtime.step import DataParallelStepper, Stepper
from harness.runtime.tokenizer import load_tokenizer
from harness.runtime.topology import Topology


class RunData(NamedTuple):
    """The data of a run: its description, the training rows, the held-out rows (None: nothing is held out)."""

    prepared: PreparedData
    train: TrainData
    eval: EvalData | None


class Objective:
    """One for each run and rank. The defaults are those of a model of `transformers` that is trained on text."""

    name: ClassVar[str]
    step_metrics: ClassVar[tuple[str, ...]] = ()
    """The names that `loss` adds to `metrics`."""
    reference_sha256: str | None = None
    """Of the weights that the loss compares with; None where it compares with none. Known once `prepare` has run."""

    rows_sha256: str | None = None
    """Of rows of all parts of the training data, where `PreparedData.sha256` is of its first rows alone."""

    def __init__(self, run: ResolvedRun) -> None:
        self.run = run
        self.metrics = ObjectiveMetrics(self.step_metrics)

    def load_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer; None where the objective has no text. Raises UserError (MD103, MD127)."""
        return load_tokenizer(self.run.spec.model, self.run.spec.data.chat_template)

    def load_config(self, tokenizer: Any) -> PreTrainedConfig | None:
        """The configuration of the model; None where `transformers` has none. Raises UserError (MD101, MD102)."""
        return load_config(self.run.spec.model, tokenizer)

    def check_model(self, config: Any) -> None:
        """Raises UserError for a model that the objective cannot train."""

    def open_data(
        self,
        tokenizer: Any,
        run_dir: RunDir,
        distributed: Distributed,
        geometry: BatchGeometry,
        data_parallel_rank: int,
    ) -> RunData:
        """Prepare the token files once a node, map them. A collective. Raises UserError (MD11x, MD12x) on all ranks."""
        run, on_all_ranks = self.run, distributed.call_or_fail_everywhere
        prepared, folder = prepare_on_node_leaders(run, tokenizer, run_dir.data, distributed)
        train = on_all_ranks(lambda: open_train_data(run, folder, prepared, geometry, data_parallel_rank))
        held_out = on_all_ranks(lambda: open_eval_data(run, folder, prepared, geometry, data_parallel_rank))
        return RunData(prepared, train, held_out)

    def build_model(self, ds_config: dict[str, Any], config: Any) -> torch.nn.Module:
        """The model in training mode, seeded by `train.seed`. A collective at stage 3."""
        return build_model(self.run, ds_config, config)

    def install_loss(self, engine: Engine, patches: PatchStates, *, is_main_process: bool) -> PatchStates:  # noqa: ARG002
        """Change the model for its loss, once the engine is built. Returns the patches, of which one may be skipped."""
        return patches

    def make_stepper(self, engine: Engine, distributed: Distributed, topology: Topology) -> Stepper:
        """The stepper of this engine, which calls `loss` and `eval_loss`."""
        self._device = distributed.device
        return DataParallelStepper(engine, distributed, topology, self)

    def make_eval_metrics(self) -> PluginMetrics:
        """The metrics of a plug-in for one evaluation, if any."""
        return PluginMetrics(None)

    def count_units(self, micro_batches: Sequence[Any], num_targets: int) -> float:  # noqa: ARG002
        """The units of the global batch, of which these are this rank's micro-batches: `num_targets`, as the data
        counts them, unless the objective counts otherwise.
        """
        return num_targets

    def prepare(self, engine: Engine, data: RunData, distributed: Distributed, status: RankStatusWriter) -> None:
        """Compute what the loss needs of the initial weights, before a checkpoint is restored. A collective."""

    def loss(self, engine: Engine, batch: Any, share: float) -> torch.Tensor:
        """The sum of the losses of a micro-batch's units over `share`, a scalar with its graph.

        `share` is the mean number of units of a micro-batch: those of the global batch over accumulation x
        data-parallel ranks.
        """
        raise NotImplementedError

    def eval_loss(self, engine: Engine, batch: Any) -> tuple[torch.Tensor, float]:
        """(sum of the losses of a micro-batch's units, a float64 scalar; their number). Without units it computes, too,
        since other ranks gather in it (ZeRO-3).
        """
        raise NotImplementedError
