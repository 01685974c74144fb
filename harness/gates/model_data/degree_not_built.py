"""Tensor, pipeline or sequence parallelism asked of a runtime that trains data parallel.

## What it checks
On `harness launch`: `parallel.tensor_parallel_size`, `parallel.pipeline_parallel_size` and
`parallel.sequence_parallel_size` are 1.

## Why it fails
This version of the harness validates, plans and renders these degrees, but its training loop hands DeepSpeed a plain
model and gives every rank its own samples. Started with a tensor degree, DeepSpeed compares the samples of a tensor
group in the first step only; with a sequence degree and no attention wrapper it splits nothing, in silence. So the
launch is refused.

## Example
```yaml
parallel:
  tensor_parallel_size: 2
```

## Use instead
```yaml
zero:
  stage: 3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate("MD004", "degree-that-this-version-does-not-train", upstream="silent", needs=("a run spec", "a launch"))
def check(ctx: Context) -> Iterator[Finding]:
    """Data parallel only, for now."""
    for name in ("tensor", "pipeline", "sequence"):
        size = getattr(ctx.run.degrees, name)
        if size > 1:
            key = f"parallel.{name}_parallel_size"
            yield ctx.finding(
                f"`{key}` is {size}, this version of the harness trains data parallel only",
                key,
                notes=[
                    "`validate-config`, `plan` and `render` work with it; ZeRO stage 3 is the way to large models today"
                ],
                fix=Fix(f"set `{key}` to 1", {key: 1}, effect="more data-parallel ranks, other memory"),
            )
