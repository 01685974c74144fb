# SPDX-License-Identifier: Apache-2.0
"""The context of a run on one rank: everything that is built once, before the first step.

`build_context` builds it; the loop, telemetry, checkpoints and evaluations take what they need from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.utils import set_seed
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from harness.patches.lazy_compile import import_without_compile
from harness.patches.nvme_counters import replace_aio_handle
from harness.patches.patch_registry import PatchStates
from harness.run.schedule_steps import total_steps
from harness.runtime.dataset.batch_prefetch import BatchPrefetcher
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.sampler import EvalData, TrainData
from harness.runtime.dataset.tokenization import tokenize_prompts
from harness.runtime.distributed import Distributed
from harness.runtime.engine import build_engine, check_ds_config, install_step, resolve_batch_geometry, resolve_topology
from harness.runtime.engine_checks.check_runner import EngineChecks
from harness.runtime.engine_protocol import Engine
from harness.runtime.lr_schedule import check_schedule
from harness.runtime.metrics import MetricsWriter
from harness.runtime.nvme_io import counting_handle_class
from harness.runtime.objectives.objective import Objective
from harness.runtime.objectives.objective_list import make_objective
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.plugin_loader import describe_misspelt, load_plugin
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.step import Stepper
from harness.runtime.topology import Topology
from harness.runtime.user_errors import print_findings


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """One run on one rank, once its engine is built. Nothing in it is replaced while the run trains."""

    run_config: RunConfig
    run_dir: RunDir
    objective: Objective
    distributed: Distributed
    topology: Topology
    status: RankStatusWriter
    metrics: MetricsWriter
    tokenizer: PreTrainedTokenizerBase | None
    config: PretrainedConfig | None
    """The `transformers` configuration of the model; None for a module of the user's own."""
    patches: PatchStates
    prepared_data: PreparedData
    train_data: TrainData
    eval_data: EvalData | None
    prefetcher: BatchPrefetcher
    total_steps: int
    engine: Engine
    stepper: Stepper
    engine_checks: EngineChecks


def build_context(
    run_config: RunConfig,
    run_dir: RunDir,
    distributed: Distributed,
    status: RankStatusWriter,
    *,
    is_resumed: bool = True,
) -> TrainContext:
    """Tokenizer, data, model, engine, in this order: cheap checks come first. A collective.

    `is_resumed=False`: no checkpoint will be restored, so the patches for that are not needed.
    Raises UserError on all ranks, for whatever the run cannot be built from.
    """
    run, ds_config, on_all_ranks = run_config.run, run_config.ds_config, distributed.call_or_fail_everywhere
    on_all_ranks(lambda: check_ds_config(ds_config))
    plugin = on_all_ranks(lambda: load_plugin(run.spec))
    topology = on_all_ranks(lambda: resolve_topology(run, distributed))
    objective, data_parallel_rank = make_objective(run), topology.data_parallel_rank
    geometry = on_all_ranks(lambda: resolve_batch_geometry(ds_config, topology.data_parallel_size))
    is_main_process = distributed.is_main_process
    misspelt = describe_misspelt(plugin, run.spec.objective) if plugin and is_main_process else []
    if misspelt:
        print_findings(misspelt)
    patches = on_all_ranks(
        lambda: resolve_patches(run, ds_config, is_main_process=is_main_process, is_resumed=is_resumed)
    )
    if patches.is_applied("lazy-compile"):
        import_without_compile()
    if run.spec.objective != "custom":
        status.set_activity("loading the tokenizer")
    tokenizer = on_all_ranks(objective.load_tokenizer)
    if tokenizer is not None:  # prompts without a template end the run now, not at its first evaluation
        on_all_ranks(lambda: tokenize_prompts(tokenizer, run.spec))
    config = on_all_ranks(lambda: objective.load_config(tokenizer))
    on_all_ranks(lambda: objective.check_model(config))

    status.set_activity("preparing the data")
    with status.enter_phase("data"):
        data = objective.open_data(tokenizer, run_dir, distributed, geometry, data_parallel_rank)
    num_steps = total_steps(run.spec, data.train.steps_per_epoch)
    on_all_ranks(lambda: check_schedule(run.spec.scheduler, num_steps))

    if patches.is_applied("nvme-counters"):
        replace_aio_handle(counting_handle_class)
    status.set_activity("building the model")
    model = objective.build_model(ds_config, config)
    engine_checks = EngineChecks(run_config, run_dir, distributed, topology, model, config)
    status.set_activity("building the engine")
    engine = build_engine(run, ds_config, model, num_steps, patches, distributed)
    patches = install_step(
        engine, patches, distributed, is_main_process=is_main_process, overlap_gib=run.spec.zero.overlap_step_gib
    )
    patches = objective.install_loss(engine, patches, is_main_process=is_main_process)
    engine_checks.on_engine_built(engine, patches)
    # For dropout: every rank draws its own mask, but a tensor group one, since its ranks share the activations.
    set_seed(run.spec.train.seed + distributed.rank - topology.tensor_parallel_rank)

    stepper = objective.make_stepper(engine, distributed, topology)
    objective.prepare(engine, data, distributed, status)
    return TrainContext(
        run_config=run_config,
        run_dir=run_dir,
        objective=objective,
        distributed=distributed,
        topology=topology,
        status=status,
        metrics=MetricsWriter(run_dir.metrics if distributed.is_main_process else None),
        tokenizer=tokenizer,
        config=config,
        patches=patches,
        prepared_data=data.prepared,
        train_data=data.train,
        eval_data=data.eval,
        prefetcher=BatchPrefetcher(data.train, distributed.device),
        total_steps=num_steps,
        engine=engine,
        stepper=stepper,
        engine_checks=engine_checks,
    )
