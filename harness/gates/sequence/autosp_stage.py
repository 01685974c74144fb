"""AutoSP at a ZeRO stage that it does not go with.

## What it checks
`autosp` in `compile.passes` at ZeRO stage 2 or 3.

## Why it fails
DeepSpeed writes a line at level info, "AutoSP does not compose with ZeRO stage 2 and 3", and falls back to the plain
torch compiler: no sequence is split (read in 0.19.8).

## Example
```yaml
zero:
  stage: 2
parallel:
  sequence_parallel_size: 2
deepspeed:
  compile:
    deepcompile: true
    passes: [autosp]
```

## Use instead
```yaml
zero:
  stage: 1
parallel:
  sequence_parallel_size: 2
deepspeed:
  compile:
    deepcompile: true
    passes: [autosp]
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "SQ007",
    "autosp-above-stage-1",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "Currently AutoSP does not compose with ZeRO stage 2 and 3"),),
    since="0.18.9",
    when=lambda ctx: ctx.stage > 1 and "autosp" in (ctx.ds("compile.passes") or ()),
    unseen="DeepCompile needs CUDA",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Stages 0 and 1."""
    key = "deepspeed.compile.passes"
    yield ctx.finding(
        f"the pass `autosp` splits no sequence at ZeRO stage {ctx.stage}, only at stages 0 and 1",
        "zero.stage",
        related=[(key, "AutoSP is asked for here")],
        notes=["DeepSpeed falls back to the plain torch compiler with a line at level info"],
        fix=Fix(f"set {ctx.key('zero.stage')} to 1", {"zero.stage": 1}, effect="the same steps with more memory"),
    )
