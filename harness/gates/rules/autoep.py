# SPDX-License-Identifier: Apache-2.0
"""AutoEP: models, presets and groups of experts."""

from __future__ import annotations

from functools import partial

from harness.gates.autoep_block import PRESETS, is_autoep_enabled, read_int
from harness.gates.divisors import largest_divisor
from harness.gates.registry import Cite, Context, Finding, Findings, Fix, gate
from harness.spec.suggestions import nearest_name

_BLOCK = "deepspeed.expert_parallel"
_SWITCH = f"{_BLOCK}.enabled"
_SIZE = f"{_BLOCK}.autoep_size"
_MODEL_LABELS = (("model.name_or_path", "the model"), ("model.config", "the model"))


def _fix_size(ctx: Context, size: int) -> Fix:
    """Set `autoep_size` to another size."""
    return ctx.fix_to_set(_SIZE, size, effect="other memory and speed")


_autoep_gate = partial(gate, since="0.19.2")


@_autoep_gate(
    "EX001 expert-parallelism-not-enabled",
    cites=Cite("module_inject/auto_ep_config.py", 'config.enabled = param_dict.get("enabled", False)'),
    when=lambda ctx: ctx.has_key("expert_parallel") and not ctx.has_key("expert_parallel.enabled"),
)
def block_without_switch(ctx: Context) -> Findings:
    """Expert parallelism that is not switched on.

    An `expert_parallel` block with `autoep_size` above 1 and no `enabled`.

    Why: AutoEP is off unless the block says `enabled: true`. Without it the block is ignored silently: every rank
    holds all experts and trains data parallel (run on 0.19.8).

    Example:
        deepspeed.expert_parallel.autoep_size: 2
    """
    size = read_int(ctx, "autoep_size")
    if size > 1:
        yield ctx.finding(
            f"{ctx.key(_SIZE)} {size} has no effect without {ctx.key(_SWITCH)}",
            _SIZE,
            label="the block is ignored",
            notes=["every rank holds all experts and trains data parallel"],
            fix=ctx.fix_to_set(_SWITCH, True, effect=f"distributes the experts over {size} ranks"),
        )


@_autoep_gate(
    "EX002 expert-parallelism-over-one-rank",
    severity="warning",
    cites=Cite("module_inject/auto_ep_config.py", "autoep_size=1 means every rank owns all experts"),
    when=lambda ctx: is_autoep_enabled(ctx) and ctx.tensor_parallel_size == 1,
)
def group_of_one_rank(ctx: Context) -> Findings:
    """AutoEP over one rank.

    `expert_parallel.enabled` with an `autoep_size` of 1, which is the default.

    Why: DeepSpeed replaces the layers, but every rank owns all experts and sends no tokens. DeepSpeed warns and trains
    (run on 0.19.8). A misspelt `autoep_size` ends here too.

    Example:
        deepspeed.expert_parallel.enabled: true
    """
    if read_int(ctx, "autoep_size") == 1 and ctx.world_size != 1:
        yield ctx.finding(
            f"AutoEP is on, but {ctx.key(_SIZE)} is 1: every rank owns all experts",
            _SIZE if ctx.has_key("expert_parallel.autoep_size") else _SWITCH,
            fix=Fix(f"set {ctx.key(_SIZE)}", {_SIZE: 2}, effect="distributes the experts over two ranks"),
        )


@_autoep_gate(
    "EX003 expert-parallelism-of-a-dense-model",
    unread="a dense model has no experts",
    cites=Cite("module_inject/auto_ep.py", "no MoE layers detected in model"),
    needs=("model facts",),
    when=is_autoep_enabled,
    unseen="its other half needs a transformers whose router AutoEP of 0.19.8 can replace",
)
def dense_model(ctx: Context) -> Findings:
    """Expert parallelism on a model without experts.

    `expert_parallel.enabled` with a model that is known to be dense.

    Why: AutoEP finds no layer to replace, writes "AutoEP: no MoE layers detected in model." and trains data parallel
    (run on 0.19.8).

    Example:
        model.name_or_path: meta-llama/Llama-3.1-8B
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2

    Use instead:
        model.name_or_path: deepseek-ai/DeepSeek-V3
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
    """
    model = ctx.model
    if model is not None and not model.built and not model.experts:
        yield ctx.unread(
            f"a `{model.family}` model has no experts to distribute",
            _SWITCH,
            related=_MODEL_LABELS,
            notes=["DeepSpeed warns and trains data parallel"],
            fix=ctx.fix_to_set(_SWITCH, False, safe=True, effect="as DeepSpeed does anyway"),
        )


@_autoep_gate(
    "EX004 expert-groups-that-do-not-divide-the-ranks",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_folding.py", "must divide the stage size ", since="0.19.3"),
        Cite("module_inject/auto_ep_config.py", "must divide the stage size", until="0.19.2"),
        Cite("module_inject/auto_ep_folding.py", "must be a positive integer, got", since="0.19.3"),
    ),
    needs=("world size",),
    when=is_autoep_enabled,
)
def indivisible_ranks(ctx: Context) -> Findings:
    """Expert groups that do not fit the ranks.

    `expert_parallel.autoep_size` divides the ranks of a pipeline stage.

    Why: "expert_parallel.autoep_size * expert_parallel.expert_tensor_parallel_size (3 * 1 = 3) must divide the stage
    size": a ValueError at initialisation (run on 0.19.8). An AutoEP size below 1 is refused as well.

    Example:
        launch.num_gpus: 4
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 3
    """
    size = read_int(ctx, "autoep_size")
    stages = ctx.pipeline_parallel_size
    ranks, remainder = divmod(ctx.world_size or 1, stages)
    if remainder or (size >= 1 and ranks % size == 0):
        return
    divisor = largest_divisor(min(size, ranks), ranks)
    place = f" in each of {stages} pipeline stages" if stages > 1 else ""
    yield ctx.finding(
        f"expert groups of {size} do not divide {ranks} {'rank' if ranks == 1 else 'ranks'}{place}",
        _SIZE,
        related=[("launch.num_gpus", "the ranks are set here"), ("parallel.pipeline_parallel_size", "the stages")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=_fix_size(ctx, divisor)
        if divisor > 1
        else Fix("switch AutoEP off", {_SWITCH: False}, effect="every rank owns all experts"),
    )


@_autoep_gate(
    "EX005 experts-not-divided-by-expert-groups",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_config.py", "Suggested autoep_size values"),
        Cite("module_inject/auto_ep_config.py", "Each rank must own at least one expert"),
    ),
    needs=("model facts",),
    when=is_autoep_enabled,
    unseen="its other half needs a transformers whose router AutoEP of 0.19.8 can replace",
)
def indivisible_experts(ctx: Context) -> Findings:
    """Experts that do not divide over the expert group.

    The model's experts are a multiple of `expert_parallel.autoep_size`, and there are at least that many.

    Why: "num_experts=3 in layer ... is not divisible by autoep_size=2", "autoep_size=8 exceeds num_experts=4": a
    ValueError at initialisation, after every rank has built the model (run on 0.19.8).

    Example:
        model.name_or_path: deepseek-ai/DeepSeek-V3
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 3
    """
    experts = ctx.model.experts if ctx.model else 0
    size = read_int(ctx, "autoep_size")
    if experts and size >= 1 and experts % size:
        yield ctx.finding(
            f"{experts} experts do not divide over expert groups of {size}",
            _SIZE,
            related=_MODEL_LABELS,
            notes=["DeepSpeed raises ValueError at initialisation, after every rank has built the model"],
            fix=_fix_size(ctx, largest_divisor(min(size, experts), experts)),
        )


@_autoep_gate(
    "EX006 expert-preset-of-no-or-another-model",
    upstream="raises",
    cites=Cite("module_inject/auto_ep_config.py", "Unknown preset_model '{config.preset_model}'"),
    when=lambda ctx: is_autoep_enabled(ctx) and isinstance(ctx.ds("expert_parallel.preset_model"), str),
)
def wrong_expert_preset(ctx: Context) -> Findings:
    """An expert preset that does not exist, or belongs to another model.

    `expert_parallel.preset_model` is one of `mixtral`, `qwen3_moe`, `qwen3_5_moe`, `deepseek_v2`, `deepseek_v3`,
    `minimax_m3` (from 0.19.8), and where the model is known, the one for its type.

    Why: An unknown name is refused: "Unknown preset_model 'mixtrall'. Available presets: ..." (run on 0.19.8). A preset
    for another architecture names other modules, so that layers are not found or their weights not read (read in
    0.19.8). Without the key DeepSpeed takes the preset for the model's type by itself.

    Example:
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.expert_parallel.preset_model: mixtrall
    """
    key = f"{_BLOCK}.preset_model"
    preset = ctx.ds("expert_parallel.preset_model")
    presets = [name for name in PRESETS if name != "minimax_m3" or ctx.target.version >= (0, 19, 8)]
    if preset not in presets:
        substitute = nearest_name(preset, presets)
        message = f"`{preset}` is none of AutoEP's presets: {', '.join(f'`{name}`' for name in presets)}"
        note = "DeepSpeed raises ValueError at initialisation"
    elif ctx.model is not None and ctx.model.experts and ctx.model.family not in PRESETS[preset]:
        substitute = next((name for name in presets if ctx.model.family in PRESETS[name]), None)
        message = f"the preset `{preset}` names other modules than a `{ctx.model.family}` model has"
        note = "its layers are not found, or their weights not read"
    else:
        return
    yield ctx.finding(
        message,
        key,
        related=[("model.name_or_path", "the model")],
        notes=[note],
        fix=Fix(f"did you mean `{substitute}`?", {key: substitute}, effect="the layers that it names")
        if substitute
        else ctx.fix_to_remove(key, effect="DeepSpeed goes by the model's type"),
    )


@_autoep_gate(
    "EX007 expert-load-balancing-refused",
    upstream="raises",
    cites=Cite("module_inject/auto_ep_presets/base.py", "is not supported in this AutoEP build"),
)
def refused_load_balancing(ctx: Context) -> Findings:
    """Load balancing that AutoEP does not have.

    `expert_parallel.load_balance_coeff` is null or left out.

    Why: "load_balance_coeff=0.01 is not supported in this AutoEP build": a ValueError while the configuration is read,
    even where AutoEP is off (run on 0.19.8).

    Example:
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.expert_parallel.load_balance_coeff: 0.01
    """
    coefficient = ctx.ds("expert_parallel.load_balance_coeff")
    if coefficient is not None:
        key = f"{_BLOCK}.load_balance_coeff"
        yield ctx.finding(
            f"AutoEP does not take {ctx.key(key)} {coefficient}",
            key,
            notes=["DeepSpeed raises ValueError while it reads the configuration"],
            fix=ctx.fix_to_remove(key, effect="no auxiliary loss from AutoEP"),
        )


@gate(
    "EX012 expert-communication-options-refused",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_config.py", "must be a positive integer when comm_backend='deepep'"),
        Cite("module_inject/auto_ep_config.py", "only runs inside the DeepEP route", since="0.19.8"),
    ),
    since="0.19.7",
    when=is_autoep_enabled,
    unseen="needs CUDA and DeepEP",
)
def refused_communication_options(ctx: Context) -> Findings:
    """DeepEP's options without the settings that they need.

    With AutoEP on: `comm_backend: deepep` has a `comm_max_tokens_per_rank` above 0; `row_weighting_impl: fused` has the
    `deepep` backend and an `autoep_size` above 1; `combine_impl: fused_weighted_sum` has neither; `gate_up_impl: fused`
    has `use_grouped_mm`; `comm_num_sm` is at least 1 and `comm_qp_margin` at least 0.

    Why: DeepSpeed checks each of these at initialisation and raises ValueError (read in 0.19.8).

    Example:
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.expert_parallel.comm_backend: deepep
    """
    names = ("comm_backend", "row_weighting_impl", "combine_impl", "gate_up_impl", "use_grouped_mm")
    options = {name: ctx.ds(f"expert_parallel.{name}") for name in names}
    is_deepep = options["comm_backend"] == "deepep"
    is_deepep_over_ranks = is_deepep and read_int(ctx, "autoep_size") > 1
    if is_deepep and read_int(ctx, "comm_max_tokens_per_rank", 0) < 1:
        tokens = (ctx.run.batch.micro_batch or 1) * ctx.run.spec.data.max_length
        message = "the backend `deepep` needs `comm_max_tokens_per_rank`, micro-batch x sequence length"
        fix = _fix_option(ctx, "comm_max_tokens_per_rank", f"buffers for {tokens} tokens", tokens)
        yield _report_option(ctx, "comm_backend", message, fix)
    if options["row_weighting_impl"] == "fused" and not is_deepep_over_ranks:
        message = "`row_weighting_impl: fused` runs with the backend `deepep` over two ranks or more only"
        fix = _fix_option(ctx, "row_weighting_impl", "another kernel")
        yield _report_option(ctx, "row_weighting_impl", message, fix)
    if options["combine_impl"] == "fused_weighted_sum" and is_deepep_over_ranks:
        message = "`combine_impl: fused_weighted_sum` does not go with the backend `deepep`"
        fix = _fix_option(ctx, "combine_impl", "another kernel")
        yield _report_option(ctx, "combine_impl", message, fix)
    if options["gate_up_impl"] == "fused" and options["use_grouped_mm"] is False:
        message = "`gate_up_impl: fused` needs `use_grouped_mm`"
        fix = _fix_option(ctx, "gate_up_impl", "another kernel")
        yield _report_option(ctx, "gate_up_impl", message, fix)
    for name, minimum in (("comm_num_sm", 1), ("comm_qp_margin", 0)):
        value = read_int(ctx, name, minimum)
        if value < minimum:
            message = f"`{name}` is {value}, it must be at least {minimum}"
            yield _report_option(ctx, name, message, _fix_option(ctx, name, "DeepSpeed's default"))


def _report_option(ctx: Context, name: str, message: str, fix: Fix) -> Finding:
    """The finding at an option of the block."""
    return ctx.finding(
        message,
        f"{_BLOCK}.{name}",
        related=[(f"{_BLOCK}.comm_backend", "the backend")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=fix,
    )


def _fix_option(ctx: Context, name: str, effect: str, value: int | None = None) -> Fix:
    """Set an option of the block to a value; without one, remove it."""
    key = f"{_BLOCK}.{name}"
    return ctx.fix_to_remove(key, effect=effect) if value is None else ctx.fix_to_set(key, value, effect=effect)


@_autoep_gate(
    "EX013 expert-groups-of-routing-refused",
    upstream="raises",
    cites=Cite("module_inject/auto_ep_config.py", "num_limited_groups ({config.num_limited_groups}) must be <= "),
    when=is_autoep_enabled,
)
def refused_routing_groups(ctx: Context) -> Findings:
    """Group-limited routing with one of its two numbers.

    With AutoEP on: `num_expert_groups` and `num_limited_groups` are given together, both at least 1, the second not
    above the first, and the experts divide over the groups.

    Why: DeepSpeed checks them at initialisation, partly after the layers have been found, and raises ValueError (run on
    0.19.8). A model whose own configuration has `n_group` and `topk_group` (DeepSeek) needs neither.

    Example:
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.expert_parallel.num_expert_groups: 4
        deepspeed.expert_parallel.num_limited_groups: 8

    Use instead:
        deepspeed.expert_parallel.enabled: true
        deepspeed.expert_parallel.autoep_size: 2
        deepspeed.expert_parallel.num_expert_groups: 4
        deepspeed.expert_parallel.num_limited_groups: 2
    """
    groups_key = f"{_BLOCK}.num_expert_groups"
    groups = ctx.ds("expert_parallel.num_expert_groups")
    limit_key = f"{_BLOCK}.num_limited_groups"
    limit = ctx.ds("expert_parallel.num_limited_groups")
    experts = ctx.model.experts if ctx.model else 0
    if isinstance(limit, int) and (limit < 1 or (isinstance(groups, int) and limit > groups >= 1)):
        key = limit_key
        message = f"{ctx.key(key)} is {limit}" + (f" of {groups} groups" if groups else "")
    elif isinstance(groups, int) and groups < 1:
        key = groups_key
        message = f"{ctx.key(key)} is {groups}, it must be at least 1"
    elif isinstance(groups, int) and experts and experts % groups:
        key = groups_key
        message = f"{experts} experts do not divide over {groups} groups"
    else:
        return
    yield ctx.finding(
        message,
        key,
        related=[(groups_key, "the groups"), ("model.name_or_path", "the model")],
        notes=["DeepSpeed raises ValueError at initialisation"],
        fix=Fix(
            "remove both, so that the model's own routing counts", {groups_key: None, limit_key: None}, effect="its own"
        ),
    )
