"""Summed gradients grow with the number of ranks.

## What it checks
`gradient_allreduce_op: sum` where DeepSpeed takes it: stages 0 to 2.

## Why it fails
The gradient is the sum over the data-parallel ranks and not their average. The same file trains differently on every
number of ranks: plain gradient descent takes steps that are larger by that factor, and clipping acts on a larger norm
(run on 0.19.8 with two ranks).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  gradient_allreduce_op: sum
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  gradient_allreduce_op: mean
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR008",
    "summed-gradients-grow-with-ranks",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "self.gradient_average = config_class.gradient_allreduce_op"),),
    since="0.19.6",
    when=lambda ctx: str(ctx.ds("gradient_allreduce_op", "mean")).lower() == "sum" and ctx.stage < 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """A sum depends on the ranks."""
    if ctx.ds("zero_optimization.zenflow") is not None or ctx.ds("compile.deepcompile") is True:
        return  # refused: ZR007
    key = ctx.spec_key("gradient_allreduce_op")
    times = f", {ctx.data_parallel_size} times the average here" if ctx.data_parallel_size else ""
    yield ctx.finding(
        f"{ctx.key(key)} is `sum`: gradients grow with the number of data-parallel ranks{times}",
        key,
        label="depends on the number of ranks",
        fix=Fix(f"set {ctx.key(key)} to `mean`", {key: "mean"}, effect="gradients are averaged over the ranks"),
        severity="info",
    )
