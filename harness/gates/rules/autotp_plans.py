# SPDX-License-Identifier: Apache-2.0
"""AutoTP's partition plans: models, presets and layer specs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.facts import model_table
from harness.facts.tensor_parallel_plans import KNOWN_STYLES, UNSUPPORTED_FAMILIES
from harness.gates.registry import Cite, Context, Findings, Fix, gate
from harness.plan.weights.layer_specs import assign_roles, compile_pattern, compile_patterns, read_layer_specs
from harness.spec.suggestions import nearest_name

_DEGREE = "parallel.tensor_parallel_size"
_PRESET = "deepspeed.tensor_parallel.preset_model"
_PARTITION = "deepspeed.tensor_parallel.partition_config"


def _read_preset(ctx: Context) -> str:
    """The preset in lower case, as DeepSpeed compares it; empty if there is none."""
    return str(ctx.ds("tensor_parallel.preset_model", "")).lower()


@gate(
    "TP006 model-without-tensor-plan",
    upstream="asserts",
    cites=Cite("module_inject/auto_tp.py", "AutoTP not supported for model. Please provide policy."),
    since="0.16.4",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1 and not ctx.ds("tensor_parallel.partition_config"),
)
def unsupported_model(ctx: Context) -> Findings:
    """A model that AutoTP has no plan for.

    With tensor parallelism and no `tensor_parallel.partition_config`, the model is not one of those that DeepSpeed's
    list of unsupported models names: GPT-2 among the causal language models.

    Why: "AutoTP not supported for model. Please provide policy.": an assertion at initialisation, after every rank has
    built the model (run on 0.19.8). GPT-2 keeps its weights input first, which AutoTP would cut along the wrong side.

    Example:
        model.name_or_path: openai-community/gpt2
        parallel.tensor_parallel_size: 2

    Use instead:
        model.name_or_path: Qwen/Qwen2.5-0.5B
        parallel.tensor_parallel_size: 2
    """
    model = ctx.model
    if model is None or model.family not in UNSUPPORTED_FAMILIES or _read_preset(ctx) in PRESETS:
        return
    yield ctx.finding(
        f"AutoTP does not support `{model.family}` models, {ctx.key(_DEGREE)} is {ctx.autotp_size}",
        _DEGREE,
        label="refused for this model",
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=["DeepSpeed asserts this at initialisation, after every rank has built the model"],
        fix=ctx.fix_to_set(_DEGREE, 1, effect="trains data parallel, with more memory a rank"),
    )


@gate(
    "TP007 tensor-plan-with-unknown-styles",
    upstream="raises",
    cites=Cite("module_inject/tp_plan_converter.py", "HuggingFace tp_plan contains unsupported partition style(s)"),
    since="0.19.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1 and not ctx.ds("tensor_parallel.partition_config"),
)
def unknown_plan_styles(ctx: Context) -> Findings:
    """A model whose own tensor plan has parts that DeepSpeed does not know.

    With tensor parallelism and neither `preset_model` nor `partition_config`, the family is one whose Hugging Face plan
    DeepSpeed can convert, by the table of models. It cannot for phi3, OLMo 2 (`rowwise_split_input`) and for mixtures
    of experts (`packed_colwise`, `moe_tp_experts`).

    Why: Since 0.19.6 DeepSpeed takes the `tp_plan` that `transformers` ships with the model, and rejects the whole plan
    when one style in it is unknown: `ValueError: HuggingFace tp_plan contains unsupported partition style(s)` at
    initialisation (run on 0.19.8 with transformers 5.24 for six families). A preset or a `partition_config` takes
    precedence over that plan and avoids the error: see `experts-whole-under-autotp` and `latent-keys-drift-apart`.

    Example:
        model.name_or_path: mistralai/Mixtral-8x7B-v0.1
        parallel.tensor_parallel_size: 2
    """
    model = ctx.model
    styles = sorted({*model_table.tensor_plan(model.family).values()} - KNOWN_STYLES) if model is not None else []
    if model is None or not styles or _read_preset(ctx) in PRESETS:
        return
    notes = ["DeepSpeed raises ValueError at initialisation", "a `partition_config` of your own is taken instead"]
    if model.experts:
        notes[1] += "; it shards attention, not the experts"
    yield ctx.finding(
        f"the tensor plan of `{model.family}` models has `{'`, `'.join(styles)}`, which DeepSpeed rejects",
        _DEGREE,
        label="refused for this model",
        related=[("model.name_or_path", "the model"), ("model.config", "the model")],
        notes=notes,
        fix=ctx.fix_to_set(_DEGREE, 1, effect="trains data parallel, with more memory a rank"),
    )


@gate(
    "TP008 unknown-tensor-preset",
    cites=Cite("module_inject/autotp_config.py", "preset_fn = presets.get(model_type.lower())"),
    since="0.18.6",
    when=lambda ctx: ctx.autotp_size > 1,
)
def unknown_preset(ctx: Context) -> Findings:
    """A tensor-parallel preset that does not exist.

    `tensor_parallel.preset_model` is one of `llama`, `bloom`, `chatglm`, `mixtral`, `deepseek_v2`, `qwen2`, `phi3`.

    Why: DeepSpeed looks the name up, finds nothing and silently continues without a preset: the model is sharded by
    the plan of `transformers` or by guesses from the names of its layers (run on 0.19.8 with `lama`).

    Example:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.preset_model: lama
    """
    preset = ctx.ds("tensor_parallel.preset_model")
    if not isinstance(preset, str) or not preset or preset.lower() in PRESETS:
        return
    suggestion = nearest_name(preset.lower(), PRESETS)
    if suggestion:
        fix = Fix(f"did you mean `{suggestion}`?", {_PRESET: suggestion}, effect="shards what the preset names")
    else:
        fix = ctx.fix_to_remove(_PRESET, effect="as DeepSpeed does anyway")
    yield ctx.finding(
        f"`{preset}` is none of AutoTP's presets: {', '.join(f'`{name}`' for name in PRESETS)}",
        _PRESET,
        related=[(_DEGREE, "tensor parallelism is set here")],
        notes=["DeepSpeed silently continues without a preset"],
        fix=fix,
    )


@gate(
    "TP009 tensor-preset-of-another-model",
    cites=Cite("module_inject/auto_tp.py", "With partition_config, rely only on explicit specs and skip unmatched"),
    since="0.18.6",
    needs=("model facts",),
    when=lambda ctx: (
        ctx.autotp_size > 1 and _read_preset(ctx) in PRESETS and not ctx.ds("tensor_parallel.partition_config")
    ),
)
def preset_of_another_model(ctx: Context) -> Findings:
    """A tensor-parallel preset for another architecture.

    `tensor_parallel.preset_model` names the layers that this model has.

    Why: A preset is a list of patterns for names of weights. Where none matches, nothing is sharded: DeepSpeed still
    treats the ranks as a tensor group, so they all silently repeat the same work on the same samples (run on 0.19.8:
    `bloom` on a Llama). Where only one half of a pair of layers matches, the first forward pass fails with "mat1 and
    mat2 shapes cannot be multiplied" (run: `phi3` on a Llama). `phi3` fits no model any more: the code of
    `transformers` cuts query, key and value out of the whole width, and fails in the same way (run with 4 heads and 4
    key-value heads; with fewer key-value heads the preset is refused while it shards).

    Example:
        model.name_or_path: meta-llama/Llama-3.1-8B
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.preset_model: bloom
    """
    model = ctx.model
    preset = _read_preset(ctx)
    if model is None or model.built or model.counted_only or model.family in PRESETS[preset]:
        return
    if preset == model.family == "phi3":
        problem = "the preset `phi3` shards what a `phi3` model's own code still cuts at full width"
    else:
        problem = f"the preset `{preset}` names other layers than a `{model.family}` model has"
    yield ctx.finding(
        problem,
        _PRESET,
        label="matches nothing, or one half of a pair",
        related=[("model.name_or_path", "the model"), (_DEGREE, "tensor parallelism is set here")],
        notes=["DeepSpeed checks nothing: unsharded layers are computed by every rank of the group"],
        fix=_fix_preset(ctx, model.family),
    )


def _fix_preset(ctx: Context, family: str) -> Fix:
    """The fix that takes the plan or the preset which fits this family, or ends AutoTP where neither does."""
    if family in SPLIT_HEAD_NORMS or family == "phi":  # no preset sums the gradients of head norms, or knows phi
        return ctx.fix_to_remove(_PRESET, effect="the plan of `transformers` counts")
    preset = next((name for name, families in PRESETS.items() if family in families), None)
    if preset:
        return ctx.fix_to_set(_PRESET, preset, effect="shards the layers")
    return Fix(f"set {ctx.key(_DEGREE)} to 1", {_DEGREE: 1, _PRESET: None}, effect="trains data parallel")


@gate(
    "TP016 preset-without-default-specs",
    severity="warning",
    cites=Cite("runtime/tensor_parallel/config.py", "if config and custom_config.use_default_specs:"),
    since="0.18.6",
)
def preset_without_default_specs(ctx: Context) -> Findings:
    r"""A preset that a partition plan switches off.

    `tensor_parallel.preset_model` together with a `partition_config` that says `use_default_specs: false`.

    Why: With `use_default_specs: false` the plan replaces the preset instead of adding to it; DeepSpeed silently drops
    the preset, and layers that only it names are not sharded (read in 0.19.8).

    Example:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.preset_model: llama
        deepspeed.tensor_parallel.partition_config.use_default_specs: false
        deepspeed.tensor_parallel.partition_config.layer_specs:
          - patterns: ['.*\.mlp\.gate\.weight$']
            partition_type: skip
    """
    if (
        ctx.autotp_size > 1
        and ctx.ds("tensor_parallel.partition_config.use_default_specs") is False
        and _read_preset(ctx) in PRESETS
    ):
        preset = ctx.ds("tensor_parallel.preset_model")
        switch = f"{_PARTITION}.use_default_specs"
        yield ctx.unread(
            f"the preset `{preset}` is dropped: `partition_config` says `use_default_specs: false`",
            _PRESET,
            related=[(switch, "switches the preset off")],
            notes=["layers that only the preset names are not sharded"],
            fix=ctx.fix_to_set(switch, True, effect="the preset's layers are sharded as well"),
        )


@gate(
    "TP014 unreadable-layer-spec",
    upstream="raises",
    cites=Cite("module_inject/autotp_config.py", "AutoTP shape must contain only integers or a tuple at"),
    since="0.18.6",
    when=lambda ctx: ctx.autotp_size > 1 and isinstance(ctx.ds("tensor_parallel.partition_config.layer_specs"), list),
)
def unreadable_layer_spec(ctx: Context) -> Findings:
    r"""A layer spec that DeepSpeed cannot read.

    In `tensor_parallel.partition_config.layer_specs`: each pattern is a regular expression; `shape` is a list of whole
    numbers (-1 once, for what is left), with at most one list of sizes inside, which stands at `partition_dim`; a shape
    has `partition_dim`'s dimension; `shape` does not go with `gather_output`.

    Why: DeepSpeed compiles the patterns and reads the shapes while it shards the model, after every rank has built it:
    `re.error`, `ValueError: AutoTP shape ...` or NotImplementedError (a bad pattern was run on 0.19.8, the others
    read).

    Example:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.partition_config.layer_specs:
          - patterns: ['*.o_proj.weight$']
            partition_type: row
          - patterns: ['.*\.[qkv]_proj\.weight$']
            partition_type: column

    Use instead:
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.partition_config.layer_specs:
          - patterns: ['.*\.o_proj\.weight$']
            partition_type: row
          - patterns: ['.*\.[qkv]_proj\.weight$']
            partition_type: column
    """
    for index, spec in enumerate(ctx.ds("tensor_parallel.partition_config.layer_specs")):
        if not isinstance(spec, dict):
            continue
        for name, problem in _iter_problems(spec):
            key = f"{_PARTITION}.layer_specs.{index}.{name}"
            yield ctx.finding(
                f"layer spec {index + 1}: {problem}",
                key,
                notes=["DeepSpeed fails on it while it shards the model"],
                fix=_fix_layer_spec(spec, name, key),
            )


def _iter_problems(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a layer spec that DeepSpeed cannot read, each with the reason."""
    patterns = spec.get("patterns")
    if isinstance(patterns, list):
        invalid_patterns = [p for p in patterns if not isinstance(p, str) or compile_pattern(p) is None]
        if invalid_patterns:
            yield "patterns", f"`{str(invalid_patterns[0])[:60]}` is no regular expression"
    shape = spec.get("shape")
    if isinstance(shape, list):
        is_row = str(spec.get("partition_type", "column")).lower() == "row"
        dim = spec.get("partition_dim")
        problem = _describe_shape_problem(shape, dim if isinstance(dim, int) else int(is_row))
        if problem:
            yield "shape", problem
        elif spec.get("gather_output") and not is_row:
            yield "shape", "`shape` does not go with `gather_output`"


def _describe_shape_problem(shape: list[Any], dim: int) -> str:
    """The reason why DeepSpeed cannot read a shape; empty where it can."""
    if not 0 <= dim < len(shape):
        return f"`partition_dim` {dim} is outside a `shape` of {len(shape)} dimensions"
    for index, size in enumerate(shape):
        if isinstance(size, list):
            if index != dim:
                return f"sizes of parts stand at dimension {index}, `partition_dim` is {dim}"
            if not size or not all(isinstance(part, int) and part > 0 for part in size):
                return "the sizes of parts in `shape` are whole numbers above 0"
        elif not isinstance(size, int) or size == 0 or size < -1:
            return f"`shape` has {size!r} where a whole number above 0, or -1, belongs"[:150]
    return ""


def _fix_layer_spec(spec: Mapping[str, Any], name: str, key: str) -> Fix:
    """The fix that repairs the patterns of a layer spec, or removes what it cannot repair."""
    patterns = _repair_patterns(spec["patterns"]) if name == "patterns" else None
    if not patterns:
        return Fix(f"remove `{name}`", {key: None}, effect="shards the weight as it is")
    text = ", ".join(f"`{pattern}`" for pattern in patterns)
    return Fix(f"write {text}", {key: patterns}, effect="shards the layers that it matches")


def _repair_patterns(patterns: list[Any]) -> list[Any] | None:
    """The patterns with `.*` for a shell's `*` at the beginning; None where some are no regular expressions even so."""
    repaired = [f".{p}" if isinstance(p, str) and p.startswith("*") else p for p in patterns]
    return repaired if all(isinstance(p, str) and compile_pattern(p) for p in repaired) else None


@gate(
    "TP015 partition-plan-that-shards-nothing",
    cites=Cite("module_inject/auto_tp.py", "With partition_config, rely only on explicit specs and skip unmatched"),
    since="0.18.6",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1 and isinstance(ctx.ds("tensor_parallel.partition_config"), dict),
)
def incomplete_partition_plan(ctx: Context) -> Findings:
    r"""A partition plan that matches nothing, or one half of a pair.

    `tensor_parallel.partition_config.layer_specs` against the names of the model's weights: some weight is sharded by
    row or by column, and no block (attention, MLP) has only one of the two.

    Why: With a `partition_config` DeepSpeed shards what it names and nothing else. A pattern that matches no weight is
    ignored: all ranks of the tensor group silently repeat the same work on the same samples. With one half of a pair
    the first forward pass fails: "mat1 and mat2 shapes cannot be multiplied" (both run on 0.19.8). Patterns are matched
    from the beginning of the name, and the names end in `.weight`.

    Example:
        model.name_or_path: meta-llama/Llama-3.1-8B
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.partition_config.layer_specs:
          - patterns: ['.*\.mlp\.down_proj\.weight$']
            partition_type: row

    Use instead:
        model.name_or_path: meta-llama/Llama-3.1-8B
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.partition_config.layer_specs:
          - patterns: ['.*\.mlp\.down_proj\.weight$']
            partition_type: row
          - patterns: ['.*\.mlp\.(up|gate)_proj\.weight$']
            partition_type: column
    """
    model = ctx.model
    config = ctx.ds("tensor_parallel.partition_config")
    is_added_to_preset = _read_preset(ctx) in PRESETS and config.get("use_default_specs", True)
    if model is None or model.built or is_added_to_preset:
        return
    roles = assign_roles(model, read_layer_specs(config))
    sharded = {name: role for name, role in roles.items() if role in ("row", "column", "gathered")}
    if sharded:
        problem = _describe_half_pair(sharded)
        note = "the first forward pass fails: the shapes of the two halves do not fit"
    else:
        problem = "`partition_config` matches no weight of the model, nothing is sharded"
        note = "DeepSpeed says nothing; every rank of the tensor group repeats the same work"
    if not problem:
        return
    yield ctx.finding(
        problem,
        f"{_PARTITION}.layer_specs",
        related=[("model.name_or_path", f"a `{model.family}` model"), (_DEGREE, "tensor parallelism is requested")],
        notes=[note],
        fix=ctx.fix_to_remove(
            _PARTITION,
            "so that DeepSpeed uses the plan of `transformers`, or name both halves",
            effect="shards every layer",
        ),
    )


def _describe_half_pair(roles: Mapping[str, str]) -> str:
    """A sentence on the first block with layers split by row or by column alone; empty if there is none."""
    roles_by_block: dict[str, set[str]] = {}
    for name, role in roles.items():
        if name.count(".") > 1:  # `lm_head.weight` is in no block
            block = name.rsplit(".", 2)[0]
            roles_by_block.setdefault(block, set()).add(role)
    for block, block_roles in roles_by_block.items():
        if ("row" in block_roles) != ("column" in block_roles):
            half, other_half = ("row", "column") if "row" in block_roles else ("column", "row")
            return f"`{block}` has layers split by {half} and none split by {other_half}: one half of a pair"
    return ""


@gate(
    "TP010 head-norms-drift-apart",
    cites=Cite("module_inject/autotp_config.py", "so the gradients must be summed across the", since="0.19.6"),
    since="0.16.4",
    needs=("model facts",),
    when=lambda ctx: ctx.autotp_size > 1,
)
def partial_head_norm_gradients(ctx: Context) -> Findings:
    """Norms over split heads whose gradients are not summed.

    Families that normalise queries and keys head by head (qwen3, qwen3_moe, gemma3): AutoTP has a plan that sums the
    gradients of `q_norm` and `k_norm` over the tensor group. A preset has no such plan, nor does any release up to
    0.19.5. A `partition_config` has one if a spec with `partition_type: skip` and `grad_allreduce: true` matches them.

    Why: `q_norm` and `k_norm` are one small weight for all heads. Each tensor rank has some of the heads, so it
    computes a part of the gradient, and steps with that part alone: the copies of the weight silently drift apart from
    the first step on. Run on 0.19.8 with a small qwen3 on two ranks: after three steps the preset `llama` had left sums
    of 16.0218 and 16.0142 on the two ranks, the plan of `transformers` and a `partition_config` with `grad_allreduce`
    16.0362 on both, as one rank does. With gemma3 the preset drifts as well. What releases up to 0.19.5 do was read.

    Example:
        model.name_or_path: Qwen/Qwen3-8B
        parallel.tensor_parallel_size: 2
        deepspeed.tensor_parallel.preset_model: llama
    """
    model = ctx.model
    if model is None or model.family not in SPLIT_HEAD_NORMS:
        return
    if ctx.target.version < (0, 19, 6):
        key, subject = _DEGREE, f"DeepSpeed {ctx.target.text}"
        fix = ctx.fix_to_set(key, 1, effect="trains data parallel")
    else:
        preset = _read_preset(ctx)
        partition = ctx.ds("tensor_parallel.partition_config")
        if partition and not has_norm_sums(partition, model.layer_path):
            key, subject = _PARTITION, "the `partition_config`"
        elif not partition and preset in PRESETS:
            key, subject = _PRESET, f"the preset `{preset}`"
        else:
            return
        fix = Fix(
            f"remove {ctx.key(key)}",
            {_PRESET: None, _PARTITION: None},
            effect="the plan of `transformers` is used, which sums them",
        )
    yield ctx.finding(
        f"{subject} does not sum the gradients of `q_norm` and `k_norm` over {ctx.autotp_size} tensor ranks",
        key,
        label="the ranks' copies drift apart",
        related=[("model.name_or_path", f"a `{model.family}` model"), (_DEGREE, "the heads are split here")],
        notes=["DeepSpeed checks and reports nothing; the losses stay plausible"],
        fix=fix,
    )


def has_norm_sums(partition: object, layer_path: str) -> bool:
    """Has the `partition_config` specs that sum the gradients of both norms?"""
    names = [f"{layer_path}.0.self_attn.{name}.weight" for name in ("q_norm", "k_norm")]
    regexes = [
        regex
        for spec in read_layer_specs(partition)
        if spec.get("grad_allreduce") and str(spec.get("partition_type", "")).lower() == "skip"
        for regex in compile_patterns(spec)
    ]
    return all(any(regex.match(name) for regex in regexes) for name in names)


_LLAMA_FAMILIES = frozenset(
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text gemma3 mixtral qwen2_moe qwen3_moe".split()
)
"""Families whose layers have the names of Llama's."""
PRESETS: dict[str, frozenset[str]] = {
    "llama": _LLAMA_FAMILIES,
    "qwen2": _LLAMA_FAMILIES,
    "mixtral": frozenset(("mixtral", "qwen2_moe", "qwen3_moe")),
    "phi3": frozenset(),
    "bloom": frozenset(("bloom", "falcon", "gpt_neox")),
    "chatglm": frozenset(("chatglm",)),
    "deepseek_v2": frozenset(("deepseek_v2", "deepseek_v3")),
}
"""The families whose modules have the names in each preset (`module_inject/autotp_config.py`). A family of which it
shards only one half of a pair of layers is left out: the first forward pass would not multiply. The preset `phi3` fits
no family, since its models cut query, key and value out of the whole width.
"""
SPLIT_HEAD_NORMS = frozenset(("qwen3", "qwen3_moe", "gemma3_text", "gemma3"))
"""Families that normalise queries and keys head by head, with one weight for all heads."""
