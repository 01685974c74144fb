# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's `checkpoint` block and its checkpoint engines."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, Severity, gate


@gate(
    "CK004 universal-flag-on-ordinary-checkpoints",
    upstream="raises",
    severity=("error", "info"),
    cites=Cite("runtime/engine.py", "Invalid for universal checkpoint"),
)
def universal_flag(ctx: Context) -> Findings:
    """`load_universal` for ordinary checkpoints.

    `checkpoint.load_universal: true` in a run spec (an error), in a DeepSpeed JSON (information).

    Why: With the flag DeepSpeed looks for a file `latest_universal` in the checkpoint folder and refuses every
    checkpoint that was not converted by `ds_to_universal.py` (run on 0.19.8). The harness resumes from checkpoints as
    they were saved, so each resume would end there, after all ranks have built their weights.

    Example:
        deepspeed.checkpoint.load_universal: true

    Use instead:
        checkpoint.save_steps: 5
    """
    if ctx.ds("checkpoint.load_universal") is not True:
        return
    key = "deepspeed.checkpoint.load_universal"
    if ctx.run.kind == "spec":
        severity: Severity = "error"
        note = "the harness resumes from checkpoints as they were saved"
        fix = ctx.fix_to_remove(key, effect="checkpoints are loaded as they were saved")
    else:
        severity = "info"
        note = "`ds_to_universal.py` converts one"
        fix = ctx.fix_to_remove(key, effect="checkpoints are loaded as they were saved")
    yield ctx.finding(
        f"{ctx.key(key)} refuses every checkpoint that was not converted to a universal one",
        key,
        severity=severity,
        notes=[note],
        fix=fix,
    )


@gate(
    "CK005 node-local-checkpoints-on-several-hosts",
    severity="warning",
    cites=Cite("runtime/engine.py", "rank = self.local_rank if self.use_node_local_storage() else dp_rank"),
    needs=("hosts",),
    when=lambda ctx: ctx.ds("checkpoint.use_node_local_storage") is True,
    unseen="needs several hosts",
)
def node_local_checkpoints(ctx: Context) -> Findings:
    """Checkpoint shards that stay on the host that wrote them.

    `checkpoint.use_node_local_storage: true` with more than one host.

    Why: Each host then writes only the files of its own ranks, numbered by local rank. On disks that are not shared no
    host has a whole checkpoint: a resume on other hosts, or with their order changed, does not find its shards, and
    nothing can be exported. (Read in 0.19.8; on a single host the flag changes nothing, which was run.)

    Example:
        deepspeed.checkpoint.use_node_local_storage: true
    Hostfile:
        worker-0 slots=2
        worker-1 slots=2

    Use instead:
        checkpoint.save_steps: 5
    Hostfile:
        worker-0 slots=2
        worker-1 slots=2
    """
    hosts = len(ctx.slots or ())
    if hosts > 1:
        key = "deepspeed.checkpoint.use_node_local_storage"
        yield ctx.finding(
            f"with {ctx.key(key)} none of the {hosts} hosts has a whole checkpoint",
            key,
            notes=["a resume on other hosts, or in another order, does not find its shards"],
            fix=Fix(
                f"remove {ctx.key(key)} and save to a shared folder",
                {key: None},
                effect="all hosts save to one folder",
            ),
        )


@gate(
    "CK006 checkpoint-writer-without-ranks",
    upstream="raises",
    cites=Cite(
        "runtime/model_checkpointing/data_parallel_writer_factory.py",
        "dp_rank = self._uni_parallel_info.dp_rank if mpu_info is None else mpu_info.dp_rank",
    ),
    since="0.19.8",
    when=lambda ctx: ctx.has_key("checkpoint.writer"),
)
def writer_without_ranks(ctx: Context) -> Findings:
    """A checkpoint writer that DeepSpeed cannot build.

    A `checkpoint.writer` block: on the CPU always; elsewhere without `data_parallel`, below ZeRO stage 3, without
    tensor or pipeline parallelism.

    Why: Whatever `type` says, DeepSpeed takes its fast or its decoupled writer, which reads `dp_rank` from a record
    that lacks it: `AttributeError: 'UniversalParallelInfo' object has no attribute 'dp_rank'` when the engine is built
    (run on 0.19.8 at stages 0, 1 and 2, with the types mock, python and fast and with an empty block). With
    `data_parallel`, or at stage 3, the CPU accelerator is refused (run on 0.19.8).

    Example:
        zero.stage: 2
        deepspeed.checkpoint.writer.type: fast

    Use instead:
        zero.stage: 2
        checkpoint.save_steps: 5
    """
    writer = ctx.ds("checkpoint.writer")
    if not isinstance(writer, dict):
        return
    key = "deepspeed.checkpoint.writer"
    is_model_cut = ctx.stage == 3 or ctx.tensor_parallel_size > 1 or ctx.pipeline_parallel_size > 1
    if not is_model_cut and not writer.get("data_parallel"):
        message = f"{ctx.key(key)} fails in DeepSpeed's own code below ZeRO stage 3, this is stage {ctx.stage}"
        note = "its record of ranks has no `dp_rank`, which the writer reads"
    elif ctx.accelerator == "cpu":
        message = f"{ctx.key(key)} needs an accelerator, and this run is on the CPU"
        note = "DeepSpeed says `Cannot access accelerator device when none is available`"
    else:
        return
    yield ctx.finding(
        message,
        key,
        related=[("zero.stage", "the stage is set here")],
        notes=[note],
        fix=ctx.fix_to_remove(key, effect="checkpoints are written by `torch.save`"),
        of_key=True,
    )


@gate(
    "CK060 writer-of-unloadable-checkpoints",
    upstream="wrong",
    cites=Cite(
        "runtime/checkpoint_engine/fast_checkpoint_engine.py", "sd = torch.load(path, map_location=map_location)"
    ),
    since="0.17.1",
    when=lambda ctx: isinstance(ctx.ds("checkpoint.writer"), dict) and ctx.stage == 3 and ctx.accelerator != "cpu",
)
def writer_of_unloadable_checkpoints(ctx: Context) -> Findings:
    """A checkpoint writer whose checkpoints cannot be loaded.

    A `checkpoint.writer` block at ZeRO stage 3, on torch 2.6 or newer.

    Why: The fast and the decoupled writer load with `torch.load` and its default of `weights_only=True`, and a shard of
    ZeRO-3 has DeepSpeed's own classes in it: `_pickle.UnpicklingError: Weights only load failed` when the same
    DeepSpeed resumes (run on 0.18.4 to 0.18.6, 0.19.3 and 0.19.8 with the type python; DeepSpeed's issue 8500). Saving
    gives no warning.

    Example:
        zero.stage: 3
        deepspeed.checkpoint.writer.type: fast
        deepspeed.checkpoint.writer.data_parallel: replica

    Use instead:
        zero.stage: 3
        checkpoint.save_steps: 5
    """
    key = "deepspeed.checkpoint.writer"
    yield ctx.finding(
        f"what {ctx.key(key)} saves at ZeRO stage 3 cannot be loaded with torch 2.6 or newer",
        key,
        related=[("zero.stage", "the stage is set here")],
        notes=["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 loads it, and runs whatever code the file holds"],
        fix=ctx.fix_to_remove(key, effect="checkpoints are written by `torch.save`"),
        of_key=True,
    )


@gate(
    "CK007 parallel-write-without-pipeline",
    severity="warning",
    unread="a PipelineModule alone reads it",
    cites=Cite(
        "runtime/pipe/engine.py",
        "self.module.checkpoint_parallel_write_pipeline = self._config.checkpoint_parallel_write_pipeline",
    ),
)
def parallel_write_without_pipeline(ctx: Context) -> Findings:
    """Parallel writing of pipeline layers without a pipeline.

    `checkpoint.parallel_write.pipeline_stage: true` with one pipeline stage.

    Why: Only a PipelineModule reads the switch: its data-parallel ranks share the writing of a stage's layers. A plain
    engine writes as it always does (run on 0.19.8).

    Example:
        deepspeed.checkpoint.parallel_write.pipeline_stage: true

    Use instead:
        checkpoint.save_steps: 5
    """
    if ctx.pipeline_parallel_size != 1 or ctx.ds("checkpoint.parallel_write.pipeline_stage") is not True:
        return
    if ctx.run.kind == "deepspeed-json" and ctx.has_key("pipeline"):
        return  # the script brings the stages
    key = "deepspeed.checkpoint.parallel_write.pipeline_stage"
    yield ctx.unread(f"{ctx.key(key)} is read by a pipeline only, and this run has one stage", key)


@gate(
    "UT014 datastates-checkpoints-by-accident",
    upstream="raises",
    cites=Cite("datastates/config.py", "is not False"),
    since="0.18.1",
)
def accidental_datastates(ctx: Context) -> Findings:
    """A checkpoint engine switched on by an empty value.

    `datastates_ckpt` that is neither `false` nor a block with settings.

    Why: Anything but `false` switches this engine on: null, an empty block, an empty list. Without its package the
    engine fails with `Please install DataStates` (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "datastates_ckpt": {}
    }
    """
    if not ctx.has_key("datastates_ckpt"):
        return
    value = ctx.run.spec.deepspeed.get("datastates_ckpt")
    if value is False or (isinstance(value, dict) and value):
        return
    key = "deepspeed.datastates_ckpt"
    yield ctx.finding(
        f"{ctx.key(key)} is on for anything but `false`, and needs the package DataStates",
        key,
        fix=ctx.fix_to_set(key, False, effect="checkpoints by `torch.save`"),
        of_key=True,
    )


@gate(
    "ZR011 obsolete-elastic-checkpoint",
    severity=("error", "warning"),
    cites=Cite("runtime/zero/config.py", "ZeRO-3 elastic checkpointing is deprecated and no longer supported"),
    since="0.19.3",
    when=lambda ctx: ctx.stage > 0,
)
def old_elastic_checkpoint(ctx: Context) -> Findings:
    """Elastic checkpoints of the old kind.

    `elastic_checkpoint: true` in `zero_optimization`, at any stage but 0.

    Why: The name promises that a checkpoint can be loaded with another number of ranks. At stage 3 DeepSpeed warns and
    ignores it; at stages 1 and 2 loading with another number of ranks is refused all the same (run on 0.19.8: saved
    with two ranks, loaded with one). With an optimizer that keeps no `step` in its parameter groups (any but Adam and
    AdamW) not even the same ranks can load it: a bare assertion (run on 0.19.8). A universal checkpoint can be loaded
    with another number of ranks.

    Example:
        zero.stage: 2
        deepspeed.zero_optimization.elastic_checkpoint: true
    """
    if ctx.ds("zero_optimization.elastic_checkpoint") is not True:
        return
    key = "deepspeed.zero_optimization.elastic_checkpoint"
    if ctx.stage < 3 and ctx.optimizer.name not in ("", "adam", "adamw"):
        message = f"checkpoints of {ctx.optimizer.type} with {ctx.key(key)} cannot be loaded"
        label = "a bare assertion at resume"
        severity: Severity = "error"
    else:
        message = f"{ctx.key(key)} does not let a checkpoint be loaded with another number of ranks"
        label = "does not do what it says"
        severity = "warning"
    yield ctx.finding(
        message,
        key,
        severity=severity,
        label=label,
        notes=["convert to a universal checkpoint to change the number of ranks"],
        fix=Fix("remove it", {key: None}, effect="optimizer files are saved in the ordinary layout"),
    )
