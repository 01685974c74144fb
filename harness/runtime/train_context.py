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
from harness.runtime.dataset.distributed_preparation import prepare_on_node_leaders
from harness.runtime.dataset.preparation import PreparedData
from harness.runtime.dataset.sampler import EvalData, TrainData, open_eval_data, open_train_data
from harness.runtime.distributed import Distributed
from harness.runtime.engine import (
    build_engine,
    check_ds_config,
    install_loss,
    resolve_batch_geometry,
    resolve_topology,
)
from harness.runtime.engine_checks.check_runner import EngineChecks
from harness.runtime.engine_protocol import Engine
from harness.runtime.lr_schedule import check_schedule
from harness.runtime.metrics import MetricsWriter
from harness.runtime.models import build_model, load_config
from harness.runtime.models.objective_check import check_objective
from harness.runtime.models.packed_attention import install_packed_attention
from harness.runtime.nvme_io import counting_handle_class
from harness.runtime.parallel.sequence_parallel import install_ulysses_attention
from harness.runtime.patch_selection import resolve_patches
from harness.runtime.pipeline import pipeline_module
from harness.runtime.pipeline.stack_check import check_stack
from harness.runtime.plugin_loader import load_plugin
from harness.runtime.rank_status import RankStatusWriter
from harness.runtime.run_config import RunConfig, RunDir
from harness.runtime.step import Stepper, make_stepper
from harness.runtime.tokenizer import load_tokenizer
from harness.runtime.topology import Topology


@dataclass(frozen=True, kw_only=True)
class TrainContext:
    """One run on one rank, once its engine is built. Nothing in it is replaced while the run trains."""

    run_config: RunConfig
    run_dir: RunDir
    distributed: Distributed
    topology: Topology
    status: RankStatusWriter
    metrics: MetricsWriter
    tokenizer: PreTrainedTokenizerBase
    config: PretrainedConfig
    """The `transformers` configuration of the model."""
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
    on_all_ranks(lambda: load_plugin(run.spec))
    topology = on_all_ranks(lambda: resolve_topology(run, distributed))
    data_parallel_rank, is_pipeline = topology.data_parallel_rank, topology.pipeline_parallel_size > 1
    geometry = on_all_ranks(lambda: resolve_batch_geometry(ds_config, topology.data_parallel_size))
    is_main_process = distributed.is_main_process
    patches = on_all_ranks(
        lambda: resolve_patches(run, ds_config, is_main_process=is_main_process, is_resumed=is_resumed)
    )
    if patches.is_applied("lazy-compile"):
        import_without_compile()
    status.set_activity("loading the tokenizer")
    tokenizer = on_all_ranks(lambda: load_tokenizer(run.spec.model, run.spec.data.chat_template))
    config = on_all_ranks(lambda: load_config(run.spec.model, tokenizer))
    on_all_ranks(lambda: check_objective(run, config))
    if is_pipeline:
        on_all_ranks(lambda: check_stack(config, trust_remote_code=run.spec.model.trust_remote_code))

    status.set_activity("preparing the data")
    with status.enter_phase("data"):
        prepared_data, data_dir = prepare_on_node_leaders(run, tokenizer, run_dir.data, distributed)
    train_data = on_all_ranks(lambda: open_train_data(run, data_dir, prepared_data, geometry, data_parallel_rank))
    eval_data = on_all_ranks(lambda: open_eval_data(run, data_dir, prepared_data, geometry, data_parallel_rank))
    num_steps = total_steps(run.spec, train_data.steps_per_epoch)
    on_all_ranks(lambda: check_schedule(run.spec.scheduler, num_steps))

    if patches.is_applied("nvme-counters"):
        replace_aio_handle(counting_handle_class)
    status.set_activity("building the model")
    model = pipeline_module.build_pipeline(run, config) if is_pipeline else build_model(run, ds_config, config)
    engine_checks = EngineChecks(run_config, run_dir, distributed, topology, model, config)
    status.set_activity("building the engine")
    engine = build_engine(run, ds_config, model, num_steps, patches, distributed)
    head, patches = install_loss(engine, run, patches, is_main_process=is_main_process)
    engine_checks.on_engine_built(engine, patches)
    # For dropout: every rank draws its own mask, but a tensor group one, since its ranks share the activations.
    set_seed(run.spec.train.seed + distributed.rank - topology.tensor_parallel_rank)

    packed_attention = install_packed_attention(engine.module, run)
    attention = None
    if topology.sequence_parallel_size > 1:
        attention = install_ulysses_attention(engine.module, engine.get_sequence_parallel_group())
    stepper = make_stepper(
        engine,
        distributed,
        topology,
        head,
        attention,
        packed_attention,
        eval_needs_logits=run.spec.plugins.file is not None,
    )
    return TrainContext(
        run_config=run_config,
        run_dir=run_dir,
        distributed=distributed,
        topology=topology,
        status=status,
        metrics=MetricsWriter(run_dir.metrics if distributed.is_main_process else None),
        tokenizer=tokenizer,
        config=config,
        patches=patches,
        prepared_data=prepared_data,
        train_data=train_data,
        eval_data=eval_data,
        prefetcher=BatchPrefetcher(train_data, distributed.device),
        total_steps=num_steps,
        engine=engine,
        stepper=stepper,
        engine_checks=engine_checks,
    )
