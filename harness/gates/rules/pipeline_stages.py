# SPDX-License-Identifier: Apache-2.0
"""Layers and micro-batches on the stages of a pipeline."""

from __future__ import annotations

import re

from harness.facts import model_table
from harness.facts.pipeline_support import compile_layer_pattern, layer_class_names
from harness.gates.divisors import largest_divisor
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_STAGES = "parallel.pipeline_parallel_size"


@gate("MD004 degree-that-this-version-does-not-train", needs=("a run spec", "model facts"))
def unsupported_family(ctx: Context) -> Findings:
    """Pipeline stages for a model that cannot be split into stages.

    With `parallel.pipeline_parallel_size` above 1 the model's forward is a plain stack of layers, as the table of
    models (`docs/models.md`) has it for each `model_type`.

    Why: A pipeline calls the layers of a `transformers` model one by one. Whatever else a family's forward does between
    them (scaled embeddings, masks of its own, capped logits) would silently be lost. A small copy of each type was
    asked: the logits of its layers one by one are those of the whole model, for plain, padded and packed rows. The
    ranks ask a small copy of the run's own configuration before they build a stage (PP101).

    Example:
        model:
          config: {model_type: gemma2, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: 320}
          tokenizer: bytes
        train:
          gradient_accumulation_steps: 8
        zero:
          stage: 1
        parallel:
          pipeline_parallel_size: 2

    Use instead:
        model:
          config: {model_type: mistral, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: 320}
          tokenizer: bytes
        train:
          gradient_accumulation_steps: 8
        zero:
          stage: 1
        parallel:
          pipeline_parallel_size: 2
    """
    model = ctx.model
    stages = ctx.pipeline_parallel_size
    row = model_table.find_row(model.family) if model is not None else None
    answer = row.answer_to("pipeline") if row is not None else None
    if stages > 1 and model is not None and answer is not None and answer.holds is False:
        yield ctx.finding(
            f"`{model.family}` models cannot be split into {stages} pipeline stages",
            _STAGES,
            notes=[
                *filter(None, (answer.reason, model_table.release_note())),
                "ZeRO stage 3 is the way to large models of such families",
            ],
            fix=ctx.fix_to_set(_STAGES, 1, effect="more data-parallel ranks, other memory"),
        )


def _fix_stages(ctx: Context, layers: int) -> Fix:
    """The fix that puts equally many layers on every stage."""
    stages = largest_divisor(min(layers, ctx.pipeline_parallel_size), layers)
    return ctx.fix_to_set(_STAGES, stages, effect="other memory and speed")


@gate(
    "PP003 pipeline-stage-without-parameters",
    upstream="crashes",
    needs=("model facts",),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
    unseen="the harness refuses it itself (PP103) before DeepSpeed can fail",
)
def more_stages_than_layers(ctx: Context) -> Findings:
    """More pipeline stages than layers.

    A model of N layers, with its embedding and its head, fills at most N + 2 stages.

    Why: A stage without parameters has nothing to optimise: "optimizer got an empty parameter list" on its ranks, while
    the others wait for them (run on 0.19.8).

    Example:
        model:
          config: {model_type: llama, hidden_size: 64, num_hidden_layers: 1, num_attention_heads: 4, vocab_size: 256}
          tokenizer: bytes
        train:
          gradient_accumulation_steps: 16
        zero:
          stage: 1
        parallel:
          pipeline_parallel_size: 4

    Use instead:
        model:
          config: {model_type: llama, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, vocab_size: 256}
          tokenizer: bytes
        train:
          gradient_accumulation_steps: 16
        zero:
          stage: 1
        parallel:
          pipeline_parallel_size: 4
    """
    model = ctx.model
    stages = ctx.pipeline_parallel_size
    if model is not None and stages > model.num_layers + 2:
        layers = model.num_layers
        yield ctx.finding(
            f"{stages} pipeline stages for {layers} {'layer' if layers == 1 else 'layers'}, embedding and head",
            _STAGES,
            label="some stage stays empty",
            related=[("model.name_or_path", "the model"), ("model.config.num_hidden_layers", "the layers")],
            notes=["torch refuses an optimizer without parameters on that stage, the others wait"],
            fix=_fix_stages(ctx, layers),
        )


@gate(
    "PP004 uneven-pipeline-stages",
    severity="info",
    needs=("model facts",),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
    unseen="a matter of speed alone",
)
def uneven_stages(ctx: Context) -> Findings:
    """Layers that do not divide over the pipeline stages.

    The number of layers is a multiple of `parallel.pipeline_parallel_size`.

    Why: Nothing fails. Every micro-batch passes every stage, so the stage with most layers sets the pace and the others
    wait for it. The fewer layers a stage has, the more one layer matters.

    Example:
        model.name_or_path: Qwen/Qwen2.5-1.5B
        train.gradient_accumulation_steps: 32
        zero.stage: 1
        parallel.pipeline_parallel_size: 8
    """
    model = ctx.model
    if model is None:
        return
    layers = model.num_layers
    stages = ctx.pipeline_parallel_size
    if layers % stages and stages <= layers + 2:  # of more stages some stay empty, which PP003 finds
        mean = layers / stages
        most = -(-layers // stages)
        yield ctx.finding(
            f"{layers} layers do not divide over {stages} pipeline stages: the fullest has {most}, the mean is"
            f" {mean:.1f}",
            _STAGES,
            related=[("model.name_or_path", "the model")],
            notes=[f"the other stages wait {1 - mean / most:.0%} of the time for the fullest"],
            fix=_fix_stages(ctx, layers),
        )


@gate(
    "PP014 fewer-micro-batches-than-stages",
    severity="warning",
    cites=Cite("runtime/pipe/schedule.py", "class TrainSchedule(PipeSchedule):"),
    when=lambda ctx: ctx.pipeline_parallel_size > 1,
)
def fewer_micro_batches_than_stages(ctx: Context) -> Findings:
    """Fewer micro-batches than pipeline stages.

    `train.gradient_accumulation_steps` is at least `parallel.pipeline_parallel_size`.

    Why: The micro-batches of a step pass through the stages one after the other. With S stages and M micro-batches
    every stage is idle for (S - 1) / (M + S - 1) of the step: half of it or more with fewer micro-batches than stages,
    less than a fifth with four micro-batches for each stage.

    Example:
        train.gradient_accumulation_steps: 1
        zero.stage: 1
        parallel.pipeline_parallel_size: 4
    """
    stages = ctx.pipeline_parallel_size
    micro_batches = ctx.run.batch.accumulation
    if micro_batches is None and ctx.run.kind == "deepspeed-json" and not ctx.is_auto("gradient_accumulation_steps"):
        micro_batches = 1  # what DeepSpeed and accelerate take without the key
    if micro_batches is None or micro_batches >= stages:
        return
    if ctx.data_parallel_size is None and ctx.run.spec.train.global_batch_size:
        return  # the micro-batches of a global batch depend on the ranks
    key = "train.gradient_accumulation_steps"
    idle = _compute_idle_share(stages, micro_batches)
    target = 4 * stages
    target_idle = _compute_idle_share(stages, target)
    yield ctx.finding(
        f"{micro_batches} micro-{'batch' if micro_batches == 1 else 'batches'} over {stages} pipeline stages: "
        f"every stage is idle for {idle:.0%} of the step",
        key,
        related=[(_STAGES, "the stages")],
        notes=[f"with {target} micro-batches it is {target_idle:.0%}; smaller micro-batches keep the global batch"],
        fix=ctx.fix_to_set(key, target, effect=f"{target} micro-batches a step"),
    )


def _compute_idle_share(stages: int, micro_batches: int) -> float:
    """The share of a step in which a stage stands still."""
    return (stages - 1) / (micro_batches + stages - 1)


@spec_gate(
    "PP015 pipeline-partition-that-cannot-be-made",
    upstream="raises",
    severity=("error", "warning"),
    cites=Cite("runtime/pipe/module.py", "typeregex = regex.compile(layername, regex.IGNORECASE)"),
)
def unusable_partition_method(ctx: Context) -> Findings:
    """A partition method without pipeline stages, or with a pattern that is invalid or matches no layer.

    `parallel.pipeline_partition_method: type:PATTERN` has a regular expression after the colon that matches the class
    of at least one layer, and there are pipeline stages when a method is set.

    Why: DeepSpeed compiles the pattern on every rank when the PipelineModule is built, after the data has been
    prepared. Without stages there is no PipelineModule, and the method has no effect.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        parallel.pipeline_partition_method: "type:(Decoder"

    Use instead:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        parallel.pipeline_partition_method: "type:DecoderLayer"
    """
    key = "parallel.pipeline_partition_method"
    method = ctx.run.spec.parallel.pipeline_partition_method
    fix = ctx.fix_to_remove(key, effect="stages of about as many parameters each")
    if ctx.pipeline_parallel_size == 1:
        if ctx.source.has_key(key):
            yield ctx.unread(
                f"{ctx.key(key)} is set, but there are no pipeline stages", key, severity="warning", fix=fix
            )
        return
    try:
        pattern = compile_layer_pattern(method)
    except re.error as error:
        yield ctx.finding(
            f"`{method}` has no regular expression after the colon: {error}",
            key,
            related=[(_STAGES, "the pipeline is set here")],
            fix=fix,
        )
        return
    if not method.startswith("type:") or ctx.model is None:
        return
    names = dict.fromkeys(layer_class_names(ctx.model, ctx.tensor_parallel_size))
    if names and not any(map(pattern.search, names)):
        yield ctx.finding(
            f"`{method}` matches no layer of this model, which are {', '.join(f'`{name}`' for name in names)}",
            key,
            related=[(_STAGES, "the pipeline is set here")],
            fix=fix,
        )
