"""The context of a run, for telemetry, checkpoints, resharding and engine checks.

The loop's own objects (stepper, prefetcher, saver) are added by `train.TrainContext`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.sampler import TrainData
from harness.runtime.distributed import Distributed
from harness.runtime.metrics import MetricsWriter
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.topology import Topology


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """One run on one rank, once its engine is built."""

    run_config: RunConfig
    run_dir: RunDir
    distributed: Distributed
    topology: Topology
    status: RankStatusWriter
    tokenizer: Any
    config: Any
    """The `transformers` configuration of the model."""
    engine: Any
    prepared_data: PreparedData
    train_data: TrainData
    total_steps: int
    metrics: MetricsWriter
