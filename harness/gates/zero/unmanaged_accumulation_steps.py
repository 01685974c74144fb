"""Accumulation steps that nobody counts.

## What it checks
`managed_gradient_accumulation: false` with more than one accumulation step.

## Why it fails
Every `engine.step()` is then an optimizer step: DeepSpeed does not count micro-batches any more, and still divides the
loss by `gradient_accumulation_steps`. A script has to call `step()` once in so many micro-batches. The harness's own
loop calls it after each, as all scripts for managed accumulation do: that is many small steps instead of one (run on
0.19.8 with two micro-batches: the weights go another way).

## Example
```yaml
zero:
  stage: 2
train:
  gradient_accumulation_steps: 4
deepspeed:
  managed_gradient_accumulation: false
```

## Use instead
```yaml
zero:
  stage: 2
train:
  gradient_accumulation_steps: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR027",
    "accumulation-steps-that-nobody-counts",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "``managed_gradient_accumulation=false``, every ``step()`` is the accumulation"),),
    since="0.19.4",
    when=lambda ctx: ctx.ds("managed_gradient_accumulation") is False and ctx.pipeline_parallel_size == 1,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The caller counts micro-batches."""
    steps = ctx.run.batch.accumulation
    if steps is None or steps < 2:
        return
    key, ours = ctx.spec_key("managed_gradient_accumulation"), ctx.run.kind == "spec"
    yield ctx.finding(
        f"{ctx.key(key)} is `false`: each `engine.step()` is an optimizer step, {steps} accumulation steps or not",
        key,
        label="nobody counts micro-batches",
        related=[("train.gradient_accumulation_steps", f"{steps} asked for here")],
        notes=[] if ours else [f"the script has to call `engine.step()` once in {steps} micro-batches"],
        fix=Fix(
            "remove it",
            {key: None},
            effect=f"an optimizer step every {steps} micro-batches, as asked"
            if ours
            else "DeepSpeed counts micro-batches",
        ),
        severity="error" if ours else "info",
    )
