# SPDX-License-Identifier: Apache-2.0
"""AutoEP together with other features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from harness.gates.autoep_block import is_autoep_enabled, read_int
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_BLOCK = "deepspeed.expert_parallel"
_SWITCH = f"{_BLOCK}.enabled"


@gate(
    "EX008 expert-internal-tensor-parallelism",
    upstream="raises",
    cites=Cite("module_inject/auto_ep_folding.py", "expert-internal tensor parallelism and is not supported yet"),
    since="0.19.3",
)
def expert_internal_tensor_parallelism(ctx: Context) -> Findings:
    """Tensor parallelism inside experts.

    `expert_parallel.expert_tensor_parallel_size` is 1.

    Why: The key is reserved: "expert-internal tensor parallelism ... is not supported yet", a ValueError at
    initialisation (run on 0.19.8, read in 0.19.3).

    Example:
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.expert_parallel.expert_tensor_parallel_size: 2
    """
    size = read_int(ctx, "expert_tensor_parallel_size")
    if is_autoep_enabled(ctx) and size != 1:
        key = f"{_BLOCK}.expert_tensor_parallel_size"
        yield ctx.finding(
            f"{ctx.key(key)} is {size}, DeepSpeed supports 1 only",
            key,
            notes=["DeepSpeed raises ValueError at initialisation"],
            fix=ctx.fix_to_remove(key, effect="experts stay whole"),
        )


@gate(
    "EX009 expert-folding-refused",
    upstream="raises",
    cites=(
        Cite(
            "module_inject/auto_ep_folding.py",
            "offload with AutoEP+AutoTP folding is not validated yet",
            since="0.19.3",
        ),
        Cite(
            "module_inject/auto_ep_folding.py",
            "AutoEP+AutoTP folding requires expert_parallel.autoep_size > 1",
            since="0.19.3",
        ),
        Cite("module_inject/auto_ep_config.py", "AutoEP does not currently support AutoTP", until="0.19.2"),
    ),
    since="0.19.2",
    when=lambda ctx: (
        is_autoep_enabled(ctx)
        and ctx.tensor_parallel_size > 1
        and ctx.pipeline_parallel_size == 1
        and ctx.sequence_parallel_size == 1
    ),
)
def refused_folding(ctx: Context) -> Findings:
    """AutoEP folded with AutoTP, where DeepSpeed refuses it.

    An enabled `expert_parallel` block with a tensor degree: `autoep_size` above 1, no offload, no DeepCompile, no
    `use_data_before_expert_parallelism`, no `async_split_plan`, no `combine_impl: fused_weighted_sum`, the same
    `preset_model` in both blocks. On 0.19.2 none of it works.

    Why: DeepSpeed folds expert groups across tensor groups only in the combinations that its authors have tried, and
    raises ValueError for the others at initialisation, each with its own message (run on 0.19.8, read in 0.19.3).

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        parallel.tensor_parallel_size: 2
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
    """
    refusal = next(_find_folding_refusals(ctx), None)
    if refusal is not None:
        yield ctx.finding(
            f"AutoEP with AutoTP over {ctx.tensor_parallel_size} ranks does not take {refusal.feature}",
            refusal.key,
            related=[("parallel.tensor_parallel_size", "the tensor degree"), (_SWITCH, "AutoEP")],
            notes=["DeepSpeed raises ValueError at initialisation"],
            fix=Fix(_describe_changes(ctx, refusal.changes), refusal.changes, effect=refusal.effect),
        )


def _describe_changes(ctx: Context, changes: Mapping[str, Any]) -> str:
    fixes = [ctx.fix_to_remove(k) if value is None else ctx.fix_to_set(k, value) for k, value in changes.items()]
    return " and ".join(fix.title for fix in fixes)


class _Refusal(NamedTuple):
    """A feature that does not go with the folding, the key that asks for it, and the fix."""

    feature: str
    key: str
    changes: dict[str, Any]
    effect: str


def _find_folding_refusals(ctx: Context) -> Iterator[_Refusal]:
    """Everything in the file that DeepSpeed refuses together with the folding."""
    degree_key = "parallel.tensor_parallel_size"
    if ctx.target.version < (0, 19, 3):
        yield _Refusal(f"DeepSpeed {ctx.target.text}", degree_key, {degree_key: 1}, "no tensor parallelism")
    if read_int(ctx, "autoep_size") == 1:
        size_key = f"{_BLOCK}.autoep_size"
        key = size_key if ctx.source.has_key(size_key) else degree_key
        yield _Refusal("an `autoep_size` of 1", key, {degree_key: 1, size_key: 2}, "experts alone")
    for section in ("offload_optimizer", "offload_param"):
        if getattr(ctx.run.spec.zero, section) is not None:
            key = f"zero.{section}"
            yield _Refusal(f"`{section}`", key, {key: None}, "keeps it on the device")
    if ctx.ds("compile.deepcompile") is True:
        key = "deepspeed.compile.deepcompile"
        yield _Refusal("DeepCompile", key, {key: False}, "ordinary execution")
    if ctx.ds("use_data_before_expert_parallelism"):
        key = "deepspeed.use_data_before_expert_parallelism"
        yield _Refusal("`use_data_before_expert_parallelism`", key, {key: None}, "other order of groups")
    if ctx.ds("expert_parallel.async_split_plan") is True:
        key = f"{_BLOCK}.async_split_plan"
        yield _Refusal("`async_split_plan`", key, {key: None}, "plans in turn")
    if ctx.ds("expert_parallel.combine_impl") == "fused_weighted_sum":
        key = f"{_BLOCK}.combine_impl"
        yield _Refusal("`combine_impl: fused_weighted_sum`", key, {key: None}, "another kernel")
    expert_preset, tensor_preset = ctx.ds("expert_parallel.preset_model"), ctx.ds("tensor_parallel.preset_model")
    if None not in (expert_preset, tensor_preset) and expert_preset != tensor_preset:
        key = "deepspeed.tensor_parallel.preset_model"
        yield _Refusal(f"two presets, `{expert_preset}` and `{tensor_preset}`", key, {key: None}, "one preset")


@gate(
    "EX010 experts-with-sequence-parallelism",
    upstream="raises",
    severity=("error", "warning"),
    cites=(
        Cite("runtime/engine.py", "AutoEP does not currently support tensor model parallelism from mpu"),
        Cite("runtime/engine.py", "AutoEP with ZeRO Stage 3 does not support sequence parallelism yet", since="0.19.3"),
    ),
    since="0.19.2",
    when=lambda ctx: is_autoep_enabled(ctx) and ctx.sequence_parallel_size > 1,
)
def experts_with_sequence_parallelism(ctx: Context) -> Findings:
    """AutoEP with sequence parallelism.

    An enabled `expert_parallel` block with a sequence degree above 1.

    Why: The `mpu` that comes with `UlyssesSPAttentionHF` calls its sequence groups model-parallel ones, and AutoEP
    refuses any model parallelism from an mpu: "AutoEP does not currently support tensor model parallelism from mpu", a
    ValueError at initialisation (run on 0.19.8 on four ranks). Groups made by the two keys of a JSON alone pass below
    ZeRO stage 3, and split nothing; at stage 3 DeepSpeed asserts that it "does not support sequence parallelism yet"
    (read).

    Example:
        zero.stage: 2
        parallel.sequence_parallel_size: 2
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2

    Use instead:
        zero.stage: 2
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
    """
    key = "parallel.sequence_parallel_size"
    has_only_mesh = ctx.run.kind == "deepspeed-json" and ctx.stage < 3
    yield ctx.finding(
        f"AutoEP does not run with a sequence degree of {ctx.sequence_parallel_size}",
        key,
        severity="warning" if has_only_mesh else "error",
        related=[(_SWITCH, "AutoEP is switched on here"), ("zero.stage", "the stage")],
        notes=["DeepSpeed refuses it at initialisation, after every rank has built the model"],
        fix=ctx.fix_to_set(key, 1, effect="whole sequences on every rank"),
    )


@gate(
    "EX015 expert-parallelism-in-a-pipeline",
    cites=(
        Cite("module_inject/auto_ep_folding.py", "folding currently supports pp_size=1 only", since="0.19.3"),
        Cite("runtime/engine.py", "auto_ep = AutoEP(model, autoep_config)"),
    ),
    since="0.19.2",
)
def experts_in_a_pipeline(ctx: Context) -> Findings:
    """AutoEP under a PipelineModule.

    An enabled `expert_parallel` block with pipeline stages.

    Why: The expert groups are made for the ranks of one stage, but the layers of a PipelineModule are not those that
    AutoEP's presets name, so nothing is found and every rank keeps all experts. With one data-parallel rank a stage it
    is refused: "must divide the stage size" (run on 0.19.8). With tensor parallelism too, DeepSpeed refuses any
    pipeline.

    Example:
        train.gradient_accumulation_steps: 8
        zero.stage: 1
        parallel.pipeline_parallel_size: 2
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2

    Use instead:
        zero.stage: 1
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
    """
    stages = ctx.pipeline_parallel_size
    if is_autoep_enabled(ctx) and stages > 1:
        yield ctx.finding(
            f"AutoEP finds no layers to replace in a pipeline of {stages} stages",
            _SWITCH,
            related=[("parallel.pipeline_parallel_size", "the pipeline is set here")],
            fix=ctx.fix_to_set(_SWITCH, False, effect="every rank of a stage owns all its experts"),
        )


@gate(
    "EX011 experts-with-zero-plus-plus",
    upstream="asserts",
    cites=(
        Cite("runtime/engine.py", "AutoEP with ZeRO Stage 3 does not support zero_quantized_gradients"),
        Cite("runtime/engine.py", "does not support hpZeRO secondary tensor groups yet"),
    ),
    since="0.19.3",
    when=lambda ctx: is_autoep_enabled(ctx) and ctx.stage == 3,
)
def experts_with_zeropp(ctx: Context) -> Findings:
    """AutoEP at stage 3 with ZeRO++.

    An enabled `expert_parallel` block at ZeRO stage 3 with `zero_quantized_gradients` or a `zero_hpz_partition_size`
    above 1.

    Why: "AutoEP with ZeRO Stage 3 does not support zero_quantized_gradients yet" and "... hpZeRO secondary tensor
    groups yet": assertions at initialisation (read in 0.19.3 and 0.19.8).

    Example:
        zero.stage: 3
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.zero_optimization.zero_hpz_partition_size: 8
    """
    options = {
        "zero_quantized_gradients": ctx.ds("zero_optimization.zero_quantized_gradients") is True,
        "zero_hpz_partition_size": ctx.ds("zero_optimization.zero_hpz_partition_size", 1) != 1,
    }
    for name, is_on in options.items():
        if is_on:
            key = f"deepspeed.zero_optimization.{name}"
            yield ctx.finding(
                f"AutoEP at ZeRO stage 3 does not run with {ctx.key(key)}",
                key,
                related=[(_SWITCH, "AutoEP")],
                notes=["DeepSpeed asserts this at initialisation"],
                fix=ctx.fix_to_remove(key, effect="more communication"),
            )


@gate(
    "EX018 compiling-around-experts-refused",
    upstream="raises",
    cites=Cite("runtime/engine.py", "compile.autoep_non_moe=True does not support ZeRO Stage 3 yet."),
    since="0.19.8",
    when=lambda ctx: ctx.ds("compile.autoep_non_moe") is True,
    unseen="seen only when the script calls engine.compile()",
)
def refused_compiling_around_experts(ctx: Context) -> Findings:
    """Compiling around AutoEP where it is refused.

    `compile.autoep_non_moe: true` with DeepCompile, a `comm_backend` other than `comm`, a tensor, pipeline or sequence
    degree, ZeRO stage 3, or offload.

    Why: `engine.compile()` raises ValueError for each of them: the key compiles the plain parts of the model around
    eager experts, and nothing that changes those parts (read in 0.19.8).

    Example:
        zero.stage: 3
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.compile.autoep_non_moe: true

    Use instead:
        zero.stage: 2
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.compile.autoep_non_moe: true
    """
    key = "deepspeed.compile.autoep_non_moe"
    features = {
        "zero.stage": (ctx.stage == 3, "ZeRO stage 3"),
        "deepspeed.compile.deepcompile": (ctx.ds("compile.deepcompile") is True, "DeepCompile"),
        f"{_BLOCK}.comm_backend": (ctx.ds("expert_parallel.comm_backend") == "deepep", "DeepEP"),
        "parallel.tensor_parallel_size": (ctx.tensor_parallel_size > 1, "tensor parallelism"),
        "parallel.pipeline_parallel_size": (ctx.pipeline_parallel_size > 1, "a pipeline"),
        "parallel.sequence_parallel_size": (ctx.sequence_parallel_size > 1, "sequence parallelism"),
        "zero.offload_optimizer": (ctx.is_optimizer_offloaded, "an offloaded optimizer"),
        "zero.offload_param": (ctx.offload_device("offload_param") != "none", "offloaded parameters"),
    }
    conflicts = {place: feature for place, (is_on, feature) in features.items() if is_on}
    if conflicts:
        yield ctx.finding(
            f"{ctx.key(key)} does not go with {', '.join(list(conflicts.values())[:4])}",
            key,
            related=list(conflicts.items()),
            notes=["`engine.compile()` raises ValueError"],
            fix=ctx.fix_to_remove(key, effect="the model is compiled as a whole, or not at all"),
        )


@gate(
    "EX014 expert-export-at-stage-3",
    upstream="raises",
    severity="warning",
    cites=Cite("runtime/engine.py", "_raise_if_autoep_zero3_consolidated_export"),
    since="0.19.3",
    when=lambda ctx: is_autoep_enabled(ctx) and ctx.stage == 3,
)
def expert_export_at_stage_3(ctx: Context) -> Findings:
    """A 16-bit export of experts at stage 3.

    `export.at_end` or `zero.stage3_gather_16bit_weights_on_model_save` with an enabled `expert_parallel` block at ZeRO
    stage 3.

    Why: `save_16bit_model` and the consolidated state dict raise NotImplementedError for AutoEP at stage 3; with the
    gather key the Trainer and accelerate call them at the first save. Convert a checkpoint to a universal one instead
    (read in 0.19.3 and 0.19.8).

    Example:
        zero.stage: 3
        zero.stage3_gather_16bit_weights_on_model_save: true
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
    """
    if ctx.run.spec.zero.stage3_gather_16bit_weights_on_model_save:
        key = "zero.stage3_gather_16bit_weights_on_model_save"
    elif ctx.run.spec.export.at_end:
        key = "export.at_end"
    else:
        return
    yield ctx.finding(
        "DeepSpeed cannot gather the experts of AutoEP into a 16-bit file at ZeRO stage 3",
        key,
        related=[(_SWITCH, "AutoEP"), ("zero.stage", "the stage")],
        notes=["`save_16bit_model` raises NotImplementedError at the first save"],
        fix=ctx.fix_to_remove(key, effect="no 16-bit file; convert a checkpoint to a universal one"),
    )


_RETARGETED = ("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_5_moe_text", "minimax_m3_vl_text")


@gate(
    "EX019 experts-whose-router-cannot-be-recorded",
    upstream="crashes",
    cites=Cite("module_inject/auto_ep_presets/base.py", "registry.get(registry_key, _MISSING_REGISTRY_ENTRY)"),
    since="0.19.2",
    needs=("a run spec", "model facts"),
    when=is_autoep_enabled,
)
def router_not_recorded(ctx: Context) -> Findings:
    """Experts of Mixtral or Qwen with the transformers that the harness needs.

    `expert_parallel.enabled` in a run spec, with a Mixtral, Qwen-MoE or MiniMax model.

    Why: AutoEP asks the list of recorded outputs of `transformers` for an entry or a default, and the list of
    transformers 5.23 takes no default: "_CanRecordRegistry.get() takes 2 positional arguments but 3 were given" when
    the engine is built (run on 0.19.8 with Mixtral, Qwen3-MoE and Qwen3.5-MoE, the first two with transformers 5.24,
    too; MiniMax and older releases were read). The harness needs transformers 5.23 or newer. DeepSeek V2 and V3 record
    nothing there, and train.

    Example:
        model.name_or_path: mistralai/Mixtral-8x7B-v0.1
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2

    Use instead:
        model.name_or_path: deepseek-ai/DeepSeek-V3
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
    """
    model = ctx.model
    if model is not None and model.family in _RETARGETED:
        yield ctx.finding(
            f"AutoEP of DeepSpeed {ctx.target.text} fails on a `{model.family}` model with transformers 5.23",
            _SWITCH,
            related=[("model.name_or_path", "the model")],
            notes=["DeepSpeed ends in a TypeError of `_CanRecordRegistry.get()` when the engine is built"],
            fix=ctx.fix_to_set(_SWITCH, False, effect="every rank has all experts"),
        )
