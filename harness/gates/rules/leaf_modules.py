# SPDX-License-Identifier: Apache-2.0
"""ZeRO-3 leaf modules."""

from __future__ import annotations

from harness.gates.autoep_block import is_autoep_enabled
from harness.gates.registry import Cite, Context, Findings, Fix, gate

_EXPERT_BLOCKS = {
    "mixtral": "MixtralSparseMoeBlock",
    "qwen2_moe": "Qwen2MoeSparseMoeBlock",
    "qwen3_moe": "Qwen3MoeSparseMoeBlock",
    "gpt_oss": "GptOssMLP",
    "deepseek_v2": "DeepseekV2Moe",
    "deepseek_v3": "DeepseekV3MoE",
}
_CLASSES = "deepspeed.zero_optimization.leaf_module.classes"
_EFFECT = "gathers all experts of a layer at once"


@gate(
    "EX016 leaf-modules-without-the-experts",
    upstream="hangs",
    severity="warning",
    cites=Cite("runtime/zero/leaf_module_config.py", "DEFAULT_LEAF_MODULE_CLASSES: List[str] = ["),
    since="0.18.0",
    when=lambda ctx: ctx.stage == 3 and ctx.has_key("zero_optimization.leaf_module.classes"),
    unseen="transformers 5 keeps all experts in one weight, which cannot deadlock",
)
def classes_without_experts(ctx: Context) -> Findings:
    """ZeRO-3 leaf modules that leave the experts out.

    A mixture of experts at ZeRO stage 3 whose `leaf_module.classes` names none of the model's expert blocks; or an
    empty `classes`.

    Why: Under ZeRO-3 each rank gathers the experts that its tokens need. Ranks that need different ones deadlock,
    unless the whole block is marked as a leaf, which is gathered at once. DeepSpeed marks Mixtral's and Qwen's blocks
    by itself, but `classes` replaces that list, and a name that matches nothing gives only a warning (run on 0.19.8).
    `transformers` 5 keeps all experts of a layer in one weight, which cannot deadlock; older ones do not.

    Example:
        model.name_or_path: mistralai/Mixtral-8x7B-v0.1
        zero.stage: 3
        deepspeed.zero_optimization.leaf_module.classes: [MixtralMoeBlock]
    """
    classes = ctx.ds("zero_optimization.leaf_module.classes")
    names = [classes] if isinstance(classes, str) else classes
    if not isinstance(names, list):
        return
    if any(ctx.ds(f"zero_optimization.leaf_module.{option}") for option in ("names", "name_suffixes")):
        return
    block = _EXPERT_BLOCKS.get(ctx.model.family) if ctx.model and ctx.model.experts else None
    is_named = any(str(name).rpartition(".")[2] == block for name in names)
    if not names:
        message = "an empty `leaf_module.classes` switches off DeepSpeed's own list of expert blocks"
    elif block and not is_named:
        message = f"`leaf_module.classes` names no `{block}`, the block with this model's experts"
    else:
        return
    yield ctx.finding(
        message,
        _CLASSES,
        related=[("model.name_or_path", "the model"), ("zero.stage", "the stage")],
        notes=[
            "ranks whose tokens need different experts would wait for each other for ever"
            if _may_have_expert_modules(ctx)
            else "the models of `transformers` 5 cannot deadlock without it: all experts of a layer are one weight"
        ],
        fix=Fix(f"set {ctx.key(_CLASSES)} to `{block}`", {_CLASSES: [block]}, effect=_EFFECT)
        if block
        else ctx.fix_to_remove(_CLASSES, effect="DeepSpeed's own list is used"),
    )


def _may_have_expert_modules(ctx: Context) -> bool:
    """May each expert be a module? A run spec trains with transformers 5, whose own models have none."""
    return ctx.run.kind != "spec" or ctx.run.spec.model.trust_remote_code


_FAMILIES_OF_DEEPSPEED = ("mixtral", "qwen2_moe", "qwen3_moe")


@gate(
    "EX017 experts-without-leaf-modules",
    upstream="hangs",
    severity="warning",
    cites=(
        Cite("runtime/zero/leaf_module_config.py", "DEFAULT_LEAF_MODULE_CLASSES: List[str] = [", since="0.18.0"),
        Cite("utils/z3_leaf_module.py", "def set_z3_leaf_modules("),
    ),
    needs=("model facts",),
    when=lambda ctx: ctx.stage == 3 and not ctx.has_key("zero_optimization.leaf_module") and not is_autoep_enabled(ctx),
    unseen="needs a model's own code: transformers 5 keeps all experts in one weight, which cannot deadlock",
)
def experts_without_leaf_modules(ctx: Context) -> Findings:
    """A mixture of experts under ZeRO-3 without leaf modules.

    A model with experts and code of its own (`model.trust_remote_code`) at ZeRO stage 3 and no `leaf_module`: on
    releases before 0.18.0, and for families that are not on DeepSpeed's own list (Mixtral, Qwen2-MoE, Qwen3-MoE).

    Why: Under ZeRO-3 each rank gathers the experts that its tokens need; ranks that need different ones deadlock. A
    leaf module is gathered as a whole. `transformers` 5, which the harness needs, keeps all experts of a layer in one
    weight, which cannot deadlock; a model's own code may have a module for each.

    Example:
        model.trust_remote_code: true
        model.config.model_type: deepseek_v2
        model.config.hidden_size: 64
        model.config.num_hidden_layers: 2
        model.config.num_attention_heads: 4
        model.config.n_routed_experts: 8
        model.config.vocab_size: 256
        model.tokenizer: bytes
        zero.stage: 3
    """
    model = ctx.model
    is_old = ctx.target.version < (0, 18, 0)
    if model is None or not model.experts or (model.family in _FAMILIES_OF_DEEPSPEED and not is_old):
        return
    if not _may_have_expert_modules(ctx):
        return
    block = _EXPERT_BLOCKS.get(model.family)
    if is_old:
        title = f"set {ctx.key('zero.stage')} to 2, or upgrade to DeepSpeed 0.18.0 or newer"
        fix = Fix(title, {"zero.stage": 2}, effect="the same steps with more memory")
    elif block is None:
        title = f"set {ctx.key('zero.stage')} to 2, or name the block in {ctx.key(_CLASSES)}"
        fix = Fix(title, {"zero.stage": 2}, effect="the same steps with more memory")
    else:
        fix = Fix(f"set {ctx.key(_CLASSES)} to `[{block}]`", {_CLASSES: [block]}, effect=_EFFECT)
    yield ctx.finding(
        f"ZeRO stage 3 marks no leaf modules in a `{model.family}` model: {model.experts} experts may deadlock",
        "model.name_or_path" if ctx.run.spec.model.name_or_path else "model.config",
        related=[("zero.stage", "the stage")],
        notes=["the models of `transformers` 5 keep all experts of a layer in one weight, which cannot deadlock"],
        fix=fix,
    )


@gate(
    "ZR028 leaf-modules-picked-by-size",
    upstream="crashes",
    severity="warning",
    cites=Cite("runtime/zero/parameter_offload.py", "module.ds_model_granularity <= granularity_treshhold"),
    since="0.16.0",
    when=lambda ctx: ctx.stage == 3,
)
def leaf_modules_by_size(ctx: Context) -> Findings:
    """Leaf modules selected by their size.

    `stage3_module_granularity_threshold` above 0 at stage 3.

    Why: Every module whose parameters per submodule are fewer becomes a leaf that is fetched as a whole. Which ones
    depends on the model's size, and not every module takes it: on a small Llama a threshold of 1 changed nothing; 3000
    made the attention a leaf, which Hugging Face models call with keyword arguments, and the backward pass failed with
    "output with shape [1] doesn't match the broadcast shape"; 100000 made the whole model one and failed as well (run
    on 0.19.8). Leaves by class name are predictable.

    Example:
        zero.stage: 3
        deepspeed.zero_optimization.stage3_module_granularity_threshold: 100000

    Use instead:
        zero.stage: 3
        deepspeed.zero_optimization.leaf_module.classes: [LlamaDecoderLayer]
    """
    name = "stage3_module_granularity_threshold"
    if not ctx.has_key(f"zero_optimization.{name}"):
        name = "module_granularity_threshold"
    threshold = ctx.ds(f"zero_optimization.{name}", 0)
    if isinstance(threshold, int) and threshold > 0:
        key = ctx.spec_key(f"zero_optimization.{name}")
        yield ctx.finding(
            f"{ctx.key(key)} is {threshold}, which may pick a module that cannot be a leaf",
            key,
            label="which modules it picks depends on the model's size",
            notes=["attention of Hugging Face models fails as a leaf in the backward pass"],
            fix=Fix(
                "remove it, or name the classes in `leaf_module`", {key: None}, effect="modules are fetched one by one"
            ),
        )
