# SPDX-License-Identifier: Apache-2.0
"""Blocks for other uses of DeepSpeed, which a training run does not have."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate


@gate(
    "UT012 autotuning-in-a-training-run",
    severity=("error", "warning"),
    cites=Cite("runtime/engine.py", "def autotuning_enabled(self):"),
    when=lambda ctx: ctx.has_key("autotuning"),
)
def autotuning_in_a_training_run(ctx: Context) -> Findings:
    """Autotuning enabled in a file for training.

    `autotuning.enabled: true` in a file for training.

    Why: Outside of `deepspeed --autotuning` the engine profiles a few steps and then ends the process with exit code 0:
    of 9 requested steps it trained 6, without an error (run on 0.19.8). In a DeepSpeed JSON it is a warning, since that
    may be a file for the autotuner.

    Example:
        deepspeed.autotuning.enabled: true
        deepspeed.autotuning.fast: false

    Use instead:
        train.max_steps: 10
    """
    if ctx.ds("autotuning.enabled") is True:
        last_step = ctx.ds("autotuning.end_profile_step", 5)
        if isinstance(last_step, int):
            last_step += 1
        key = "deepspeed.autotuning.enabled"
        yield ctx.finding(
            f"{ctx.key(key)} ends the training after step {last_step}, with exit code 0",
            key,
            severity="error" if ctx.consumer is None else "warning",
            notes=["it belongs in a file for `deepspeed --autotuning` alone"],
            fix=ctx.fix_to_remove("deepspeed.autotuning", effect="trains to the end"),
        )


@gate(
    "UT018 hybrid-engine-on-the-cpu",
    upstream="raises",
    cites=Cite("ops/op_builder/cpu/no_impl.py", "This op had not been implemented on CPU backend."),
    needs=("the accelerator",),
    when=lambda ctx: ctx.is_enabled("hybrid_engine"),
)
def hybrid_engine_on_cpu(ctx: Context) -> Findings:
    """The hybrid engine without a GPU.

    `hybrid_engine.enabled: true` on the CPU accelerator (`cluster.gpu: cpu`, or what a launch finds).

    Why: The hybrid engine brings DeepSpeed's inference kernels for generation between training steps, and there are
    none for the CPU: "This op had not been implemented on CPU backend." when the engine is built, after every rank has
    its weights (run on 0.19.8).

    Example:
        cluster.gpu: cpu
        deepspeed.hybrid_engine.enabled: true
    """
    if ctx.accelerator == "cpu":
        key = "deepspeed.hybrid_engine.enabled"
        yield ctx.finding(
            f"{ctx.key(key)} needs kernels that DeepSpeed does not have for the CPU",
            key,
            label="fails when the engine is built",
            fix=Fix("remove the block", {"deepspeed.hybrid_engine": None}, effect="training itself is the same"),
        )


_BLOCKS = (
    "tensor_parallel",
    "expert_parallel",
    "sequence_parallel_size",
    "pipeline",
    "torch_autocast",
    "hybrid_engine",
    "autotuning",
)


@gate("MD005 block-that-this-version-does-not-train", needs=("a run spec", "a launch"))
def untrained_blocks(ctx: Context) -> Findings:
    """A DeepSpeed block that this version's training loop does not support.

    On `harness launch`: the `deepspeed` section contains none of `tensor_parallel`, `expert_parallel`,
    `sequence_parallel_size`, `pipeline` (except with `parallel.pipeline_parallel_size`), `torch_autocast`,
    `hybrid_engine`, `autotuning`, `zero_optimization.zenflow`.

    Why: Each of them changes the model, the data that a rank must see, or the step, and several do so silently:
    autotuning ends the training early with exit code 0, ZenFlow scrambles weights on 0.19.7 and 0.19.8, fp16 autocast
    clips gradients that are still scaled. (Recorded from runs on these releases; not run by this project's tests.)
    `validate-config`, `plan` and `render` work with them.

    Example:
        deepspeed.torch_autocast.enabled: true
        deepspeed.torch_autocast.dtype: bfloat16

    Use instead:
        precision.bf16: true
        zero.stage: 1
    """
    blocks = [name for name in _BLOCKS if name in ctx.run.spec.deepspeed]
    if "pipeline" in blocks and ctx.pipeline_parallel_size > 1:
        blocks.remove("pipeline")
    if ctx.has_key("zero_optimization.zenflow"):
        blocks.append("zero_optimization.zenflow")
    for name in blocks:
        key = f"deepspeed.{name}"
        yield ctx.finding(
            f"`{key}` changes what is trained, and this version's training loop does not support it",
            key,
            notes=["`validate-config`, `plan` and `render` work with it"],
            fix=ctx.fix_to_remove(key, effect="trains without it"),
        )
