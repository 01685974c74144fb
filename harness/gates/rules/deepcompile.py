# SPDX-License-Identifier: Apache-2.0
"""DeepCompile and `torch.compile`."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_SWITCH = "deepspeed.compile.deepcompile"


def _is_deepcompile_on(ctx: Context) -> bool:
    """Is `compile.deepcompile` true?"""
    return ctx.ds("compile.deepcompile") is True


@gate(
    "CC001 compile-that-nobody-calls",
    unread="only `engine.compile()` reads it, which is not called",
    cites=Cite("runtime/engine.py", "def compile(self,"),
    since="0.16.6",
    needs=("a run spec", "a launch"),
    unseen="the loop of the harness is what is judged",
)
def uncalled_compile(ctx: Context) -> Findings:
    """DeepCompile in a run that does not compile.

    On `harness launch`: `compile.deepcompile` or `compile.autoep_non_moe` is true only with `train.torch_compile:
    true`.

    Why: The keys only prepare what `engine.compile()` does; a script that never calls it trains as if they were not
    there (run on 0.19.8 with stages 0, 1 and 3). The harness calls it for `train.torch_compile: true`.

    Example:
        zero.stage: 3
        deepspeed.compile.deepcompile: true
    """
    if ctx.run.spec.train.torch_compile:
        return
    for name in ("deepcompile", "autoep_non_moe"):
        if ctx.ds(f"compile.{name}") is True:
            key = f"deepspeed.compile.{name}"
            yield ctx.unread(f"{ctx.key(key)} has no effect without `train.torch_compile: true`", key)


@gate(
    "CC011 compile-that-the-script-must-call",
    severity="info",
    cites=Cite("runtime/engine.py", "def compile(self,"),
    since="0.16.6",
    when=lambda ctx: ctx.run.kind == "deepspeed-json" and _is_deepcompile_on(ctx),
)
def compile_of_the_script(ctx: Context) -> Findings:
    """DeepCompile in a DeepSpeed JSON.

    A DeepSpeed JSON with `compile.deepcompile: true`.

    Why: The key prepares what `engine.compile()` does, and nothing calls that but the script: without the call the
    model silently runs as it is (run on 0.19.8 with stages 0, 1 and 3). accelerate calls it where its dynamo back
    end is set, the Trainer with `torch_compile=True` (read in accelerate 1.15).

    Example: {
      "train_micro_batch_size_per_gpu": 1,
      "gradient_clipping": 1.0,
      "zero_optimization": {"stage": 3},
      "compile": {"deepcompile": true}
    }
    """
    yield ctx.finding(
        f"{ctx.key(_SWITCH)} compiles nothing until the script calls `engine.compile()`",
        _SWITCH,
        notes=["the Trainer calls it with `torch_compile=True`, accelerate with a dynamo back end"],
        fix=ctx.fix_to_remove(_SWITCH, effect="the same, where no script calls it"),
    )


@gate(
    "CC002 deepcompile-at-stage-0",
    severity=("warning", "error"),
    unread="DeepSpeed falls back to the plain compiler",
    cites=(
        Cite("runtime/engine.py", "Currently DeepCompile supports ZeRO stage 1, 2, or 3 only", since="0.17.2"),
        Cite(
            "runtime/engine.py", "Currently DeepCompile supports ZeRO stage 1 or 3 only", since="0.17.1", until="0.17.1"
        ),
        Cite("runtime/engine.py", "Currently DeepCompile supports stage 1 or 3 only", until="0.17.0"),
    ),
    since="0.16.6",
)
def deepcompile_at_stage_0(ctx: Context) -> Findings:
    """DeepCompile without ZeRO.

    `compile.deepcompile: true` at ZeRO stage 0, up to 0.17.1 also at stage 2, without `compile.passes`.

    Why: DeepCompile schedules ZeRO's collectives. At stage 0 there are no collectives: DeepSpeed logs a line at level
    info and uses the plain torch compiler (run on 0.19.8). Stage 2 came with 0.17.2; up to 0.17.0 `engine.compile()`
    asserts that the stage is 1 or 3 (read).

    Example:
        deepspeed.compile.deepcompile: true

    Use instead:
        zero.stage: 1
        deepspeed.compile.deepcompile: true
    """
    stages = (1, 2, 3) if ctx.target.version >= (0, 17, 2) else (1, 3)
    if ctx.stage in stages or not _is_deepcompile_on(ctx) or ctx.ds("compile.passes"):
        return
    is_refused = ctx.target.version < (0, 17, 1)
    effect = "is refused by `engine.compile()`" if is_refused else "falls back to the plain torch compiler"
    *others, last = map(str, stages)
    yield ctx.finding(
        f"{ctx.key(_SWITCH)} {effect} at ZeRO stage {ctx.stage}",
        _SWITCH,
        severity="error" if is_refused else "warning",
        label="refused" if is_refused else "has no effect",
        related=[("zero.stage", "the stage is set here")],
        fix=ctx.fix_to_remove(_SWITCH, f"or use stage {', '.join(others)} or {last}", safe=True),
    )


@gate(
    "CC003 two-offloads-of-optimizer-states",
    upstream="raises",
    cites=Cite("compile/init_z3.py", "compile.offload_opt_states cannot be combined with ZeRO's "),
    since="0.19.4",
    unseen="refused by engine.compile(), which needs CUDA",
)
def two_offloads_of_optimizer_states(ctx: Context) -> Findings:
    """Optimizer offload by both ZeRO and DeepCompile.

    `compile.offload_opt_states` together with `zero.offload_optimizer` at stage 3.

    Why: Both move the same states. `engine.compile()` refuses: "compile.offload_opt_states cannot be combined with
    ZeRO's offload_optimizer" (run on 0.19.8), which is after the engine has been built.

    Example:
        zero.stage: 3
        zero.offload_optimizer.device: cpu
        deepspeed.compile.deepcompile: true
        deepspeed.compile.offload_opt_states: true

    Use instead:
        zero.stage: 3
        deepspeed.compile.deepcompile: true
        deepspeed.compile.offload_opt_states: true
    """
    if (
        ctx.stage == 3
        and _is_deepcompile_on(ctx)
        and ctx.ds("compile.offload_opt_states") is True
        and ctx.is_optimizer_offloaded
    ):
        key = "deepspeed.compile.offload_opt_states"
        yield ctx.finding(
            f"{ctx.key(key)} and {ctx.key('zero.offload_optimizer')} both offload the optimizer states",
            key,
            related=[("zero.offload_optimizer.device", "offloaded by ZeRO here")],
            fix=ctx.fix_to_remove(key, effect="ZeRO alone offloads the states"),
        )


@gate(
    "CC004 several-offloads-of-deepcompile",
    upstream="raises",
    cites=(
        Cite("compile/init_z3.py", "compile.offload_activation cannot be combined with offload_parameters or "),
        Cite("compile/init_z3.py", "offload_parameters and offload_opt_states cannot be enabled together; "),
    ),
    since="0.19.7",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="refused by engine.compile(), which needs CUDA",
)
def several_offloads(ctx: Context) -> Findings:
    """More than one offload target of DeepCompile.

    `compile.offload_activation`, `compile.offload_parameters` and `compile.offload_opt_states`: at most one is true.

    Why: Each plans the whole free memory for itself, so `engine.compile()` refuses two of them at stage 3 (run on
    0.19.8).

    Example:
        zero.stage: 3
        deepspeed.compile.deepcompile: true
        deepspeed.compile.offload_activation: true
        deepspeed.compile.offload_parameters: true
    """
    targets = ("offload_activation", "offload_parameters", "offload_opt_states")
    names = [name for name in targets if ctx.ds(f"compile.{name}") is True]
    if ctx.stage == 3 and _is_deepcompile_on(ctx) and len(names) > 1:
        first, second, *_ = names
        yield ctx.finding(
            f"{' and '.join(f'`{name}`' for name in names)} of {ctx.key('deepspeed.compile')} exclude each other",
            f"deepspeed.compile.{second}",
            related=[(f"deepspeed.compile.{first}", "the other one")],
            notes=["each plans the whole free memory for itself"],
            fix=Fix(
                f"remove the others and keep `{first}`",
                {f"deepspeed.compile.{name}": None for name in names[1:]},
                effect="nothing else is offloaded",
            ),
        )


_OPTIONS = (
    "free_activation",
    "offload_activation",
    "offload_opt_states",
    "offload_parameters",
    "symmetric_memory",
    "debug_log",
)


@gate(
    "CC007 deepcompile-options-while-it-is-off",
    severity="warning",
    unread="read with `deepcompile: true` alone",
    cites=Cite("runtime/engine.py", "compile_config = self._config.compile_config"),
    since="0.16.6",
    when=lambda ctx: ctx.has_key("compile"),
)
def options_without_deepcompile(ctx: Context) -> Findings:
    """Options of DeepCompile while it is off.

    `compile.free_activation`, `offload_activation`, `offload_opt_states`, `offload_parameters`, `symmetric_memory` and
    `debug_log` without `compile.deepcompile: true`.

    Why: They are read by DeepCompile's passes alone. With `deepcompile` false, which is the default, `engine.compile()`
    is the plain torch compiler and nothing is offloaded (read in 0.19.8).

    Example:
        zero.stage: 3
        deepspeed.compile.offload_parameters: true

    Use instead:
        zero.stage: 3
        deepspeed.compile.deepcompile: true
        deepspeed.compile.offload_parameters: true
    """
    keys = [f"deepspeed.compile.{name}" for name in _OPTIONS if ctx.ds(f"compile.{name}") is True]
    if keys and not _is_deepcompile_on(ctx) and not ctx.ds("compile.passes"):
        key, *other_keys = keys
        yield ctx.unread(
            f"{ctx.key(key)} is read only when `deepcompile` is true",
            key,
            related=[(other, "nor has this") for other in other_keys],
            fix=Fix("set `deepcompile` to true, or remove it", dict.fromkeys(keys), safe=True),
        )


@gate(
    "CC008 parameter-offload-switched-on-by-deepcompile",
    severity="info",
    cites=Cite("runtime/engine.py", "compile_config.offload_parameters = True"),
    since="0.19.8",
    unseen="needs CUDA",
)
def automatic_parameter_offload(ctx: Context) -> Findings:
    """Parameter offload that DeepCompile switches on by itself.

    `compile.deepcompile: true` at stage 3 with parameters and optimizer offloaded to the CPU, and
    `compile.offload_parameters` not true.

    Why: DeepSpeed sets `compile.offload_parameters` itself when both ZeRO offloads say `cpu`, whatever the JSON says
    (read in 0.19.8). This can explain a surprising memory use or speed.

    Example:
        zero.stage: 3
        zero.offload_param.device: cpu
        zero.offload_optimizer.device: cpu
        deepspeed.compile.deepcompile: true
    """
    if (
        ctx.stage == 3
        and _is_deepcompile_on(ctx)
        and ctx.ds("compile.offload_parameters") is not True
        and ctx.offload_device("offload_param") == ctx.offload_device("offload_optimizer") == "cpu"
    ):
        option = "deepspeed.compile.offload_parameters"
        yield ctx.finding(
            f"{ctx.key(option)} is switched on by DeepSpeed itself, since both offloads are `cpu`",
            _SWITCH,
            related=[("zero.offload_param.device", "offloaded here")],
            fix=Fix(f"write {ctx.key(option)}: true, which is what happens", {option: True}, safe=True),
        )


@gate("CC010 compile-at-stage-3-without-deepcompile", upstream="hangs", needs=("a run spec", "a launch"))
def compile_without_deepcompile(ctx: Context) -> Findings:
    """`torch.compile` at stage 3 without DeepCompile.

    On `harness launch`: `train.torch_compile: true` at ZeRO stage 3 only with `compile.deepcompile: true`.

    Why: Stage 3 gathers and frees weights in hooks around every module. Each hook breaks the compiled graph, so that
    little is compiled and much is recompiled: a tiny model with `aot_eager` had not finished its first step after
    minutes (seen on 0.19.8 on the CPU, on a busy machine; not timed further). DeepCompile puts the gathering into the
    graph; it needs CUDA.

    Example:
        zero.stage: 3
        train.torch_compile: true

    Use instead:
        zero.stage: 2
        train.torch_compile: true
    """
    if ctx.run.spec.train.torch_compile and ctx.stage == 3 and not _is_deepcompile_on(ctx):
        key = "train.torch_compile"
        yield ctx.finding(
            f"{ctx.key(key)} at ZeRO stage 3 breaks its graph at every module",
            key,
            related=[("zero.stage", "gathers weights around every module")],
            fix=ctx.fix_to_remove(key, effect="trains uncompiled"),
        )
