# SPDX-License-Identifier: Apache-2.0
"""The choice of an optimizer: names, and where DeepSpeed refuses one."""

from __future__ import annotations

from harness.gates.optimizer_facts import (
    BY_SHAPE,
    OWN,
    TORCH,
    UNUSABLE,
    ZERO_TESTED,
    find_intended_optimizer,
    find_signature,
    has_misspelt_type,
    is_one_bit,
)
from harness.gates.registry import Cite, Context, Findings, Fix, gate, spec_gate
from harness.spec.deepspeed_optimizer import NAME_BY_CLASS

_TYPE = "deepspeed.optimizer.type"
_ALLOW = "deepspeed.zero_allow_untested_optimizer"


@gate(
    "OP001 unknown-optimizer",
    upstream="asserts",
    cites=Cite("runtime/engine.py", "{} is not a supported DeepSpeed Optimizer"),
    when=lambda ctx: ctx.has_key("optimizer.type"),
)
def unknown_optimizer(ctx: Context) -> Findings:
    """An optimizer that DeepSpeed does not have.

    `optimizer.type` of the DeepSpeed configuration: one of DeepSpeed's own names in any case (`Adam`, `AdamW`,
    `Adagrad`, `Lamb`, `Lion`, `MuAdam`, `MuAdamW`, `MuSGD`, `Muon`), or the exact name of a class in `torch.optim`.

    Why: `AssertionError: DeepSpeedCPUAdam is not a supported DeepSpeed Optimizer`, on every rank when the engine is
    built (run on 0.19.8). Names of classes such as `FusedAdam` or `DeepSpeedCPUAdam` are not names of the
    configuration: DeepSpeed picks the class itself. Muon is known from 0.17.6 on, the 1-bit optimizers up to 0.19.6.

    Example:
        zero.stage: 2
        zero.offload_optimizer.device: cpu
        deepspeed.optimizer.type: DeepSpeedCPUAdam
        deepspeed.optimizer.params.lr: 1.0e-5
        deepspeed.optimizer.params.weight_decay: 0.0
    """
    name = _read_type(ctx)
    better = find_intended_optimizer(ctx, name) if name is not None else None
    if name is None or better is None:
        return
    yield ctx.finding(
        f"`{name[:40]}` is no optimizer of DeepSpeed {ctx.target.text} or torch",
        _TYPE,
        notes=[_explain_refusal(name)],
        fix=Fix(
            f"use `{better}`", {_TYPE: better, **_remove_unknown(ctx, name, better)}, effect=f"trains with {better}"
        ),
    )


def _remove_unknown(ctx: Context, name: str, better: str) -> dict[str, None]:
    """The parameters of a 1-bit optimizer that the one in its place does not have. OP005 has those of others."""
    signature = find_signature(ctx, better) if is_one_bit(name) else None
    known = signature[1] if signature else frozenset(ctx.optimizer.params)
    return {f"deepspeed.optimizer.params.{key}": None for key in ctx.optimizer.params if key not in known}


def _read_type(ctx: Context) -> str | None:
    """The `type` of the DeepSpeed `optimizer` block, as it is written; None if there is none, or no such block."""
    name: object = ctx.optimizer.type
    if ctx.optimizer.key == "optimizer":
        if ctx.run.kind == "spec":
            return None
        # A JSON's block has become the run spec's section, whose `sgd` stands for `SGD`; DeepSpeed itself has no `sgd`.
        block = ctx.source.data.get("optimizer")
        name = block.get("type") if isinstance(block, dict) else None
    return name if isinstance(name, str) else None


def _explain_refusal(name: str) -> str:
    if name.lower() in NAME_BY_CLASS:
        return "this is the name of a class; DeepSpeed picks the class by the device and the offload settings"
    if name.lower() == "muon":
        return "DeepSpeed's Muon came with 0.17.6, and torch's takes matrices alone"
    if is_one_bit(name):
        return "the 1-bit optimizers were removed in 0.19.7"
    if name.lower() in {torch_name.lower() for torch_name in TORCH}:
        return "names of torch.optim must be written exactly as torch writes them"
    return "DeepSpeed asserts this when it builds the engine"


@gate(
    "OP002 optimizer-without-type",
    cites=(
        Cite("runtime/config.py", "return OPTIMIZER_TYPE_DEFAULT"),
        Cite("runtime/engine.py", "zero stage {} requires an optimizer"),
    ),
)
def optimizer_without_type(ctx: Context) -> Findings:
    """An optimizer block without a type.

    A DeepSpeed `optimizer` block without `type`, or with an empty one.

    Why: DeepSpeed then has no optimizer at all: ZeRO stages 1 and 2 fail when the engine is built (`zero stage 2
    requires an optimizer`), stage 3 and stage 0 at the first backward (run on 0.19.8). With an optimizer of the
    script's own the block does nothing.

    Example:
        zero.stage: 2
        deepspeed.optimizer.params.lr: 1.0e-5
    """
    key = "deepspeed.optimizer"
    is_block = ctx.has_key("optimizer") and ctx.optimizer.key == key
    has_type = isinstance(ctx.optimizer.type, str) or ctx.is_auto("optimizer.type")
    if is_block and not has_type and not has_misspelt_type(ctx.ds("optimizer")):
        yield ctx.finding(
            f"{ctx.key(key)} has no `type`, so DeepSpeed builds no optimizer",
            key,
            fix=ctx.fix_to_set(_TYPE, "AdamW", effect="trains with AdamW"),
            of_key=True,
        )


@gate(
    "OP003 optimizer-not-usable",
    upstream="raises",
    cites=Cite("runtime/engine.py", "getattr(torch.optim, optimizer_name, None) is not None"),
)
def unusable_optimizer(ctx: Context) -> Findings:
    """A name of torch.optim that is no usable optimizer.

    `optimizer.type` among the names that torch.optim has and an engine cannot use: `Optimizer`, `lr_scheduler`,
    `swa_utils`, `LBFGS`, `SparseAdam`.

    Why: DeepSpeed only asks whether torch.optim has something of that name. The base class and modules fail when the
    engine is built, LBFGS and SparseAdam at the first step (run on 0.19.8).

    Example:
        zero.stage: 0
        deepspeed.optimizer.type: LBFGS
        deepspeed.optimizer.params.lr: 1.0e-2

    Use instead:
        zero.stage: 0
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 1.0e-5
    """
    name = str(ctx.optimizer.type)
    if name in UNUSABLE:
        yield ctx.finding(
            f"`{name}` cannot train with DeepSpeed: {UNUSABLE[name]}",
            _TYPE,
            notes=["DeepSpeed accepts every name that torch.optim has"],
            fix=Fix("use `AdamW`", {_TYPE: "AdamW"}, effect="trains with AdamW"),
        )


_SECTION_KEYS = tuple(
    f"optimizer.{name}" for name in ("type", "learning_rate", "weight_decay", "betas", "eps", "momentum")
)


@spec_gate(
    "OP038 two-optimizers",
    severity="warning",
    unread="`deepspeed.optimizer` decides",
    cites=Cite("runtime/config.py", "return param_dict[OPTIMIZER][OPTIMIZER_PARAMS]"),
    when=lambda ctx: ctx.run.kind == "spec" and ctx.optimizer.key == "deepspeed.optimizer",
)
def two_optimizers(ctx: Context) -> Findings:
    """Two optimizers, one of them unused.

    The run spec's own `optimizer` section next to `deepspeed.optimizer`.

    Why: DeepSpeed builds one optimizer. The harness renders `deepspeed.optimizer` when it is there, and the other
    section, its learning rate too, is not read.

    Example:
        zero.stage: 1
        optimizer.learning_rate: 3.0e-4
        deepspeed.optimizer.type: AdamW
        deepspeed.optimizer.params.lr: 1.0e-3
    """
    key = next(filter(ctx.source.has_key, _SECTION_KEYS), None)
    if key is not None:
        yield ctx.finding(
            f"{ctx.key(key)} is not used: {ctx.key('deepspeed.optimizer')} counts",
            key,
            label="not used",
            related=[(_TYPE, "this one counts")],
            fix=ctx.fix_to_remove("optimizer", safe=True),
        )


@gate(
    "OP011 optimizer-untested-with-zero",
    upstream="asserts",
    cites=Cite("runtime/engine.py", "You are using an untested ZeRO Optimizer."),
    when=lambda ctx: ctx.stage > 0,
)
def untested_optimizer(ctx: Context) -> Findings:
    """An optimizer that ZeRO refuses.

    At ZeRO stages 1 to 3, optimizers outside ZeRO's own list (Adam, AdamW, Adagrad, Lion, and Muon from 0.18.5 on)
    without `zero_allow_untested_optimizer`; the 1-bit optimizers of releases up to 0.19.6 with it, too.

    Why: `AssertionError: You are using an untested ZeRO Optimizer` on every rank when the engine is built (run on
    0.19.8). Optimizers that compute each element by itself, such as SGD or RMSprop, train the same under ZeRO and may
    be allowed; those that look at a whole tensor do not. `1bit-Adam is not compatible with ZeRO` was read in 0.16.4.

    Example:
        zero.stage: 2
        deepspeed.optimizer.type: RMSprop
        deepspeed.optimizer.params.lr: 1.0e-4
    """
    optimizer = ctx.optimizer
    if ctx.run.kind == "spec" and optimizer.key == "optimizer":
        return  # the harness renders the switch where it is right
    if is_one_bit(optimizer.name) and ctx.target.version < (0, 19, 7):
        yield ctx.finding(
            f"ZeRO stage {ctx.stage} refuses `{optimizer.type}`: a 1-bit optimizer reduces the gradients itself",
            f"{optimizer.key}.type",
            related=[("zero.stage", "the stage is set here")],
            fix=Fix(
                "use `AdamW`",
                {_TYPE: "AdamW", **_remove_unknown(ctx, optimizer.name, "AdamW")},
                effect="trains with AdamW under ZeRO, and sends whole gradients",
            ),
        )
    is_known = str(optimizer.type) in TORCH or optimizer.name in {name.lower() for name in OWN}
    is_early_muon = optimizer.name == "muon" and (0, 17, 6) <= ctx.target.version < (0, 18, 5)
    is_tested = optimizer.name in ZERO_TESTED and not is_early_muon
    if is_known and not is_tested and not ctx.ds("zero_allow_untested_optimizer"):
        yield ctx.finding(
            f"ZeRO stage {ctx.stage} refuses `{optimizer.type}` without {ctx.key(_ALLOW)}",
            f"{optimizer.key}.type",
            related=[("zero.stage", "the stage is set here")],
            notes=[
                "DeepSpeed asserts this when it builds the engine",
                *(
                    ["with that key it trains, but its steps depend on the stage and the number of ranks"]
                    if optimizer.name in BY_SHAPE
                    else []
                ),
            ],
            fix=Fix("use `AdamW`", {_TYPE: "AdamW"}, effect="trains with AdamW, which computes each element by itself")
            if optimizer.name in BY_SHAPE
            else ctx.fix_to_set(_ALLOW, True, effect=f"ZeRO steps {optimizer.type}"),
        )


@gate(
    "OP012 optimizer-cut-by-zero",
    cites=Cite("runtime/engine.py", "You are using ZeRO with an untested optimizer, proceed with caution"),
)
def shape_dependent_optimizer(ctx: Context) -> Findings:
    """An optimizer that looks at whole tensors, under ZeRO.

    Adafactor and Lamb at ZeRO stages 1 to 3 with `zero_allow_untested_optimizer`.

    Why: ZeRO flattens parameters and cuts them among the ranks. An optimizer whose update depends on rows, columns or
    the norm of a tensor then computes something else at each stage and for each number of ranks (Adafactor in runs on
    0.19.8: second loss 4.654 at stage 0, 4.624 at stage 2, 4.510 at stage 3).

    Example:
        zero.stage: 2
        deepspeed.zero_allow_untested_optimizer: true
        deepspeed.optimizer.type: Adafactor
        deepspeed.optimizer.params.lr: 1.0e-4
    """
    if ctx.stage > 0 and ctx.optimizer.name in BY_SHAPE and ctx.ds("zero_allow_untested_optimizer"):
        yield ctx.finding(
            f"`{ctx.optimizer.type}` computes something else once ZeRO has flattened and cut the parameters",
            _TYPE,
            related=[(_ALLOW, "which is why DeepSpeed wants this"), ("zero.stage", "the stage is set here")],
            notes=["the result depends on the stage and on the number of ranks"],
            fix=Fix("use `AdamW`, or stage 0", {_TYPE: "AdamW", _ALLOW: None}, effect="trains with AdamW"),
        )


@gate(
    "OP014 optimizer-without-a-cpu-version",
    upstream="raises",
    cites=(
        Cite("runtime/engine.py", "optimizer = FusedLion(model_parameters, **optimizer_parameters)"),
        Cite("runtime/engine.py", "optimizer = FusedLamb(model_parameters, **optimizer_parameters)"),
    ),
    needs=("the accelerator",),
    when=lambda ctx: ctx.optimizer.name in ("lamb", "lion"),
)
def optimizer_without_cpu_version(ctx: Context) -> Findings:
    """An optimizer that has no CPU version.

    Lamb, and Lion without an offloaded optimizer, where the accelerator is the CPU.

    Why: DeepSpeed's FusedLamb and FusedLion are CUDA kernels: `ValueError: This op had not been implemented on CPU
    backend` when the engine is built (run on 0.19.8). Lion has a CPU version that is taken for an offloaded optimizer.

    Example:
        zero.stage: 0
        cluster.gpu: cpu
        deepspeed.optimizer.type: Lamb
        deepspeed.optimizer.params.lr: 1.0e-3
    """
    is_lion = ctx.optimizer.name == "lion"
    if ctx.accelerator == "cpu" and not (is_lion and ctx.is_optimizer_offloaded):
        yield ctx.finding(
            f"DeepSpeed's {ctx.optimizer.type} is not implemented for the CPU accelerator",
            _TYPE,
            fix=ctx.fix_to_set("zero.offload_optimizer.device", "cpu", effect="takes the CPU's version of Lion")
            if is_lion
            else Fix("use `AdamW`", {_TYPE: "AdamW"}, effect="trains with AdamW"),
        )


@gate(
    "OP015 optimizer-of-another-package",
    upstream="raises",
    severity=("error", "warning"),
    cites=Cite("runtime/engine.py", "Install mup to use MuAdam optimizer"),
    when=lambda ctx: ctx.optimizer.name in ("muadam", "muadamw", "musgd"),
)
def mup_optimizer(ctx: Context) -> Findings:
    """An optimizer of the package mup.

    `optimizer.type` MuAdam, MuAdamW or MuSGD.

    Why: DeepSpeed imports them from `mup`. Without the package it logs a line and fails with `UnboundLocalError` (run
    on 0.19.8), and the optimizers themselves want a model with base shapes set by `mup.set_base_shapes`, which a run
    spec does not do.

    Example:
        zero.stage: 1
        deepspeed.optimizer.type: MuAdamW
        deepspeed.optimizer.params.lr: 1.0e-4
    """
    better = "SGD" if ctx.optimizer.name == "musgd" else "AdamW"
    yield ctx.finding(
        f"`{ctx.optimizer.type}` needs the package `mup` and a model with its base shapes",
        _TYPE,
        severity="error" if ctx.run.kind == "spec" else "warning",
        notes=["without the package DeepSpeed fails with an UnboundLocalError when it builds the engine"],
        fix=Fix(f"use `{better}`", {_TYPE: better}, effect=f"trains with {better}, without mup's scaling"),
    )
