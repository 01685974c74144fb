# SPDX-License-Identifier: Apache-2.0
"""Compile passes for tensor and sequence parallelism."""

from __future__ import annotations

from harness.gates.registry import Cite, Context, Findings, Fix, gate

_PASSES = "deepspeed.compile.passes"


@gate(
    "CC005 autotp-pass-with-others",
    upstream="raises",
    cites=Cite("runtime/engine.py", "The AutoTP compile pass cannot yet be combined with AutoSP or the ZeRO "),
    since="0.19.7",
    when=lambda ctx: ctx.has_key("compile"),
    unseen="refused by engine.compile(), which needs CUDA",
)
def autotp_pass_with_others(ctx: Context) -> Findings:
    """The AutoTP pass with other passes.

    `compile.passes` has `autotp` and something else.

    Why: The passes are not made to be composed yet: `engine.compile()` raises NotImplementedError (run on 0.19.8 with
    `autotp` and `z1`).

    Example:
        zero.stage: 1
        parallel.tensor_parallel_size: 2
        deepspeed.compile.passes: [autotp, z1]
    """
    passes = ctx.ds("compile.passes")
    if not isinstance(passes, list) or "autotp" not in passes:
        return
    others = [f"`{name}`" for name in passes if name != "autotp"]
    if others:
        yield ctx.finding(
            f"the pass `autotp` cannot run together with {', '.join(others)}",
            _PASSES,
            notes=["`engine.compile()` refuses it, after the engine has been built"],
            fix=Fix(
                f"set {ctx.key(_PASSES)} to autotp alone", {_PASSES: ["autotp"]}, effect="the other passes do not run"
            ),
        )


@gate(
    "CC006 parallel-pass-without-its-degree",
    severity="warning",
    unread="the pass shards nothing at a degree of 1",
    cites=Cite("runtime/engine.py", "AutoTP compile pass requires tensor_parallel.autotp_size > 1. "),
    since="0.19.7",
    unseen="seen in a log line of engine.compile(), which needs CUDA",
)
def autotp_pass_without_degree(ctx: Context) -> Findings:
    """A parallel compile pass without its degree.

    `compile.passes: [autotp]` without a tensor degree.

    Why: The pass shards layers over the tensor-parallel group. With a degree of 1 DeepSpeed logs a line at level info
    and uses the plain torch compiler; the ZeRO passes, which the list does not name, do not run either (run on 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.compile.passes: [autotp]

    Use instead:
        zero.stage: 1
        parallel.tensor_parallel_size: 2
        deepspeed.compile.passes: [autotp]
    """
    if ctx.has_key("compile") and ctx.ds("compile.passes") == ["autotp"] and ctx.tensor_parallel_size <= 1:
        yield ctx.unread(
            f"the pass `autotp` shards nothing while {ctx.key('parallel.tensor_parallel_size')} is 1",
            _PASSES,
            fix=ctx.fix_to_remove(_PASSES, "or set a tensor degree", safe=True),
        )


@gate(
    "SQ007 autosp-above-stage-1",
    cites=Cite("runtime/engine.py", "Currently AutoSP does not compose with ZeRO stage 2 and 3"),
    since="0.18.9",
    when=lambda ctx: ctx.stage > 1 and "autosp" in (ctx.ds("compile.passes") or ()),
    unseen="DeepCompile needs CUDA",
)
def autosp_above_stage_1(ctx: Context) -> Findings:
    """AutoSP at a ZeRO stage that it does not support.

    `autosp` in `compile.passes` at ZeRO stage 2 or 3.

    Why: DeepSpeed writes a line at level info, "AutoSP does not compose with ZeRO stage 2 and 3", and falls back to the
    plain torch compiler: no sequence is split (read in 0.19.8).

    Example:
        zero.stage: 2
        parallel.sequence_parallel_size: 2
        deepspeed.compile.deepcompile: true
        deepspeed.compile.passes: [autosp]
    """
    key = "zero.stage"
    yield ctx.finding(
        f"the pass `autosp` splits no sequence at ZeRO stage {ctx.stage}, only at stages 0 and 1",
        key,
        related=[(_PASSES, "AutoSP is set here")],
        notes=["DeepSpeed falls back to the plain torch compiler with a line at level info"],
        fix=ctx.fix_to_set(key, 1, effect="the same steps with more memory"),
    )


@gate(
    "SQ008 autosp-without-a-sequence-degree",
    cites=Cite("compile/init_sp.py", "sp_size, dp_size = extract_mesh_size(config._param_dict)"),
    since="0.18.9",
    when=lambda ctx: ctx.sequence_parallel_size == 1 and "autosp" in (ctx.ds("compile.passes") or ()),
    unseen="DeepCompile needs CUDA",
)
def autosp_without_degree(ctx: Context) -> Findings:
    """AutoSP without a sequence degree.

    `autosp` in `compile.passes` while the sequence degree is 1.

    Why: AutoSP takes the mesh of `sequence_parallel_size` and `data_parallel_size` from the JSON, and there is nothing
    to split over one rank (read in 0.19.8).

    Example:
        zero.stage: 1
        deepspeed.compile.deepcompile: true
        deepspeed.compile.passes: [autosp]
    """
    degree_key = "parallel.sequence_parallel_size"
    yield ctx.finding(
        f"the pass `autosp` has nothing to split: {ctx.key(degree_key)} is 1",
        _PASSES,
        fix=Fix(
            f"set {ctx.key(degree_key)}, or take `autosp` out of {ctx.key(_PASSES)}",
            {degree_key: 2},
            effect="splits each sequence over two ranks",
        ),
    )
