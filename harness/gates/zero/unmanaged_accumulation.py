"""Unmanaged gradient accumulation where it is refused.

## What it checks
`managed_gradient_accumulation: false` with `zero.overlap_comm: true` at stage 0 or 1, with pipeline stages, or with
DeepCompile.

## Why it fails
DeepSpeed asserts each of the three at initialisation, after every rank has its weights (run on 0.19.8). The message
speaks of stage 2 alone; stage 3 trains as well.

## Example
```yaml
zero:
  stage: 1
  overlap_comm: true
deepspeed:
  managed_gradient_accumulation: false
```

## Use instead
```yaml
zero:
  stage: 1
  overlap_comm: false
deepspeed:
  managed_gradient_accumulation: false
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR014",
    "unmanaged-accumulation-where-it-is-refused",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/engine.py", "managed_gradient_accumulation=False supports ZeRO overlap_comm only with ZeRO stage 2"
        ),
    ),
    since="0.19.4",
    when=lambda ctx: ctx.ds("managed_gradient_accumulation") is False,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Three features want the engine to count micro-batches."""
    key = ctx.spec_key("managed_gradient_accumulation")
    fix: dict[str, bool | None]
    if ctx.stage < 2 and ctx.ds("zero_optimization.overlap_comm") is True:
        what, where, fix = (
            f"`overlap_comm` at ZeRO stage {ctx.stage}",
            "zero.overlap_comm",
            {"zero.overlap_comm": False},
        )
    elif ctx.pipeline_parallel_size > 1:
        what, where, fix = "a pipeline", "parallel.pipeline_parallel_size", {key: None}
    elif ctx.ds("compile.deepcompile") is True:
        what, where = "DeepCompile", ctx.spec_key("compile.deepcompile")
        fix = {where: None}
    else:
        return
    only = next(iter(fix))
    yield ctx.finding(
        f"{ctx.key(key)} is `false`, which DeepSpeed refuses with {what}",
        key,
        related=[(where, "set here")],
        fix=Fix(
            f"set {ctx.key(only)} to `false`" if fix[only] is False else f"remove {ctx.key(only)}",
            fix,
            safe=only == "zero.overlap_comm",
            effect="" if only == "zero.overlap_comm" else "who decides where a step ends changes: look at the script",
        ),
    )
