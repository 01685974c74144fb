# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate

_SWITCHES = ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization")


def _keeps_attention(ctx: Context) -> bool:
    layers = ctx.run.checkpointing
    return layers is not None and layers.keep == "attention"


@gate(
    "UT010 activation-checkpointing-block-that-is-not-read",
    severity="warning",
    cites=Cite("runtime/activation_checkpointing/checkpointing.py", "def configure("),
    when=lambda ctx: ctx.has_key("activation_checkpointing"),
)
def unread_block(ctx: Context) -> Findings:
    """DeepSpeed's activation checkpointing for a model that does not use it.

    An `activation_checkpointing` block with a switch that is on, in a run spec or in a JSON for the Hugging Face
    Trainer or accelerate.

    Why: The block configures `deepspeed.checkpointing.checkpoint`, which a model has to call itself. Hugging Face
    models do not: nothing is recomputed, partitioned or moved to the CPU (run on 0.19.8 with a Llama model). Their own
    gradient checkpointing is another mechanism. In a run spec, `train.gradient_checkpointing: true` and
    `train.offload_activations: true` put DeepSpeed's function in its place, for `cpu_checkpointing`.

    Example: {
      "train_micro_batch_size_per_gpu": "auto",
      "gradient_accumulation_steps": "auto",
      "gradient_clipping": "auto",
      "zero_optimization": {"stage": 1},
      "activation_checkpointing": {"cpu_checkpointing": true}
    }
    """
    is_spec = ctx.run.kind == "spec"
    if not is_spec and ctx.consumer not in ("hf", "accelerate"):
        return
    block = ctx.ds("activation_checkpointing")
    if not isinstance(block, dict):
        return
    names = [name for name in _SWITCHES if block.get(name) is True]
    if is_spec and ctx.run.checkpointing is not None and "cpu_checkpointing" in names:
        names.remove("cpu_checkpointing")
    if not names:
        return
    key = f"deepspeed.activation_checkpointing.{names[0]}"
    substitute = "`train.gradient_checkpointing`" if is_spec else "the Trainer's `gradient_checkpointing`"
    yield ctx.unread(
        f"{ctx.key(key)} does nothing for Hugging Face models",
        key,
        notes=["only a model that calls `deepspeed.checkpointing.checkpoint` itself reads the block"],
        fix=Fix(
            f"remove {ctx.key('deepspeed.activation_checkpointing')}; {substitute} recomputes activations",
            {"deepspeed.activation_checkpointing": None},
            effect="the same for Hugging Face models",
        ),
    )


@gate(
    "UT011 contiguous-activations-alone",
    upstream="asserts",
    severity="warning",
    cites=Cite(
        "runtime/activation_checkpointing/checkpointing.py",
        "Contiguous Checkpointing is only available with partitioned activations.",
    ),
    when=lambda ctx: ctx.has_key("activation_checkpointing"),
)
def contiguous_activations_alone(ctx: Context) -> Findings:
    """Contiguous activations without the settings that they need.

    `activation_checkpointing.contiguous_memory_optimization: true` without `partition_activations: true` and
    `number_checkpoints`, for a script that hands the block to DeepSpeed.

    Why: `deepspeed.checkpointing.configure` asserts both (run on 0.19.8).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "activation_checkpointing": {"contiguous_memory_optimization": true}
    }

    Use instead: {
      "train_micro_batch_size_per_gpu": 1,
      "activation_checkpointing": {
        "partition_activations": true,
        "contiguous_memory_optimization": true,
        "number_checkpoints": 32
      }
    }
    """
    if ctx.run.kind == "spec" or ctx.consumer in ("hf", "accelerate"):
        return  # the block has no effect there at all
    block = "activation_checkpointing"
    requirements = []
    if ctx.ds(f"{block}.partition_activations") is not True:
        requirements.append("`partition_activations: true`")
    if not ctx.ds(f"{block}.number_checkpoints"):
        requirements.append("`number_checkpoints`")
    if requirements and ctx.ds(f"{block}.contiguous_memory_optimization") is True:
        key = f"deepspeed.{block}.contiguous_memory_optimization"
        text = " and ".join(requirements)
        yield ctx.finding(
            f"{ctx.key(key)} needs {text} too",
            key,
            notes=["a script that hands the block to `deepspeed.checkpointing.configure` fails there"],
            fix=Fix(f"write {text}, or set it to false", {key: False}, effect="buffers are not contiguous"),
        )


@spec_gate("MD031 recomputation-options-without-recomputation", severity="warning")
def options_without_recomputation(ctx: Context) -> Findings:
    """Options of activation checkpointing that is off.

    `train.gradient_checkpointing_use_reentrant` and `train.offload_activations` take effect only with
    `train.gradient_checkpointing: true`.

    Why: They say how activations are recomputed. Without `gradient_checkpointing` all of them are kept on the
    accelerator.

    Example:
        train.offload_activations: true
    """
    train = ctx.run.spec.train
    if ctx.run.checkpointing is not None:
        return
    for name in ("gradient_checkpointing_use_reentrant", "offload_activations"):
        if getattr(train, name):
            yield ctx.unread(
                f"`train.{name}` has no effect without `train.gradient_checkpointing: true`",
                f"train.{name}",
                fix=Fix(
                    "set `train.gradient_checkpointing: true`",
                    {"train.gradient_checkpointing": True},
                    effect="computes every layer twice, to save memory",
                ),
            )


@spec_gate("MD040 kept-attention-in-another-recomputation", when=_keeps_attention)
def kept_attention(ctx: Context) -> Findings:
    """Attention that is kept, with a recomputation that keeps nothing.

    `train.gradient_checkpointing: {keep: attention}` together with `train.gradient_checkpointing_use_reentrant`,
    `train.offload_activations` or `train.torch_compile`, with pipeline stages, or with `attn_implementation: eager`.

    Why: A context of torch's non-reentrant `checkpoint` keeps the outputs of attention kernels. Reentrant
    checkpointing (read in 0.19.8), DeepSpeed's own, which offloads activations (it hands `context_fn` to the layer, run
    on 0.19.8), and that of the pipeline engine (read) take no such context; the compiler of a compiled layer decides
    what to recompute. `eager` attention has no kernel whose output could be kept.

    Example:
        train.gradient_checkpointing: {keep: attention}
        train.offload_activations: true

    Use instead:
        train.gradient_checkpointing: true
        train.offload_activations: true
    """
    train = ctx.run.spec.train
    obstacles = {
        "train.gradient_checkpointing_use_reentrant": train.gradient_checkpointing_use_reentrant,
        "train.offload_activations": train.offload_activations
        or ctx.ds("activation_checkpointing.cpu_checkpointing") is True,
        "train.torch_compile": train.torch_compile,
        "parallel.pipeline_parallel_size": ctx.pipeline_parallel_size > 1,
        "model.attn_implementation": ctx.run.spec.model.attn_implementation == "eager",
    }
    obstacle = next((key for key, is_on in obstacles.items() if is_on), None)
    if obstacle is not None:
        key = "train.gradient_checkpointing.keep"
        yield ctx.finding(
            f"`{key}: attention` keeps nothing with `{obstacle}`",
            key,
            related=[(obstacle, "set here")],
            fix=ctx.fix_to_remove(key, effect="computes the attention twice, in less memory"),
        )


@spec_gate(
    "MD048 segments-in-another-recomputation",
    when=lambda ctx: ctx.run.checkpointing is not None and ctx.run.checkpointing.layers_per_segment > 1,
)
def segments(ctx: Context) -> Findings:
    """Segments of layers, with a recomputation that has none.

    `train.gradient_checkpointing: {layers_per_segment: K}` together with `recompute_every` or `keep`, with
    `train.gradient_checkpointing_use_reentrant`, `train.offload_activations` or `train.torch_compile`, or with pipeline
    stages.

    Why: The harness puts segments into torch's non-reentrant `checkpoint` of each layer of a whole model, where it
    takes the place of the layer's input. A reentrant checkpoint and DeepSpeed's own keep their input by themselves, a
    pipeline engine calls its layers itself, and a compiler decides what to recompute.

    Example:
        train.gradient_checkpointing: {layers_per_segment: 4}
        train.offload_activations: true

    Use instead:
        train.gradient_checkpointing: {layers_per_segment: 4}
    """
    train, layers, key = ctx.run.spec.train, ctx.run.checkpointing, "train.gradient_checkpointing"
    obstacles = {
        f"{key}.recompute_every": layers is not None and layers.recompute_every > 1,
        f"{key}.keep": layers is not None and layers.keep is not None,
        "train.gradient_checkpointing_use_reentrant": train.gradient_checkpointing_use_reentrant,
        "train.offload_activations": train.offload_activations
        or ctx.ds("activation_checkpointing.cpu_checkpointing") is True,
        "train.torch_compile": train.torch_compile,
        "parallel.pipeline_parallel_size": ctx.pipeline_parallel_size > 1,
    }
    obstacle = next((each for each, is_on in obstacles.items() if is_on), None)
    if obstacle is not None:
        key = f"{key}.layers_per_segment"
        yield ctx.finding(
            f"`{key}` does not go with `{obstacle}`",
            key,
            related=[(obstacle, "set here")],
            fix=ctx.fix_to_remove(key, effect="keeps the input of each layer that is recomputed"),
        )


_TILED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "gemma3_text")
"""Families with gated MLPs, whose tiles are planned and were compared with one plain process."""


@gate(
    "MD041 mlp-tiles-that-are-not-built",
    needs=("a run spec", "model facts"),
    when=lambda ctx: bool(ctx.run.spec.train.mlp_tile_size),
)
def mlp_tiles(ctx: Context) -> Findings:
    """Tiled MLPs where they are not supported.

    `train.mlp_tile_size` with `train.torch_compile` or pipeline stages, or for a model whose MLPs are not the gated
    ones of Llama, Mistral, Qwen, Phi-3 or Gemma.

    Why: Tiles are a loop around the MLP of each layer of a whole model: a compiled model would unroll it, and a
    pipeline builds its own layers. The gain for experts depends on the tokens that they get, and the plan does not
    count tiles of other families.

    Example:
        model.name_or_path: Qwen/Qwen2.5-1.5B
        train.mlp_tile_size: 1024
        train.torch_compile: true
    """
    train = ctx.run.spec.train
    reason = None
    if train.torch_compile:
        reason = "`train.torch_compile`"
    elif ctx.pipeline_parallel_size > 1:
        reason = f"{ctx.pipeline_parallel_size} pipeline stages"
    elif ctx.model is not None and ctx.model.family not in _TILED_FAMILIES:
        reason = f"a `{ctx.model.family}` model"
    if reason is not None:
        key = "train.mlp_tile_size"
        yield ctx.finding(
            f"`{key}` is not built for {reason}",
            key,
            fix=ctx.fix_to_remove(key, effect="each MLP processes all tokens of a micro-batch at once"),
        )
