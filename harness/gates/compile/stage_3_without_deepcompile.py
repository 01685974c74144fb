"""`torch.compile` at stage 3 without DeepCompile.

## What it checks
On `harness launch`: `train.torch_compile: true` at ZeRO stage 3 only with `compile.deepcompile: true`.

## Why it fails
Stage 3 gathers and frees weights in hooks around every module. Each hook breaks the compiled graph, so that little is
compiled and much is compiled again: a tiny model with `aot_eager` was not through its first step after minutes (seen on
0.19.8 on the CPU, on a busy machine; not timed further). DeepCompile puts the gathering into the graph; it needs CUDA.

## Example
```yaml
zero:
  stage: 3
train:
  torch_compile: true
```

## Use instead
```yaml
zero:
  stage: 2
train:
  torch_compile: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("CC010", "compile-at-stage-3-without-deepcompile", upstream="hangs", needs=("a run spec", "a launch"))
def check(ctx: Context) -> Iterator[Finding]:
    """Hooks break the graph."""
    if ctx.run.spec.train.torch_compile and ctx.stage == 3 and ctx.ds("compile.deepcompile") is not True:
        yield ctx.finding(
            "`train.torch_compile` at ZeRO stage 3 breaks its graph at every module",
            "train.torch_compile",
            related=[("zero.stage", "gathers weights around every module")],
            fix=Fix("remove `train.torch_compile`", {"train.torch_compile": None}, effect="trains uncompiled"),
        )
