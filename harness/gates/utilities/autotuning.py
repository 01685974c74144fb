"""Autotuning left in a file that trains.

## What it checks
`autotuning.enabled: true` in a file that is to train.

## Why it fails
Outside of `deepspeed --autotuning` the engine profiles a few steps and then ends the process with exit code 0: 9
steps were asked for, 6 were trained, and nobody complained (run on 0.19.8). In a DeepSpeed JSON it is a warning, since
that may be a file for the autotuner.

## Example
```yaml
deepspeed:
  autotuning:
    enabled: true
    fast: false
```

## Use instead
```yaml
train:
  max_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT012",
    "autotuning-in-a-training-run",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "def autotuning_enabled(self):"),),
    when=lambda ctx: ctx.has_key("autotuning"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A profile, not a training."""
    if ctx.ds("autotuning.enabled") is not True:
        return
    key = ctx.spec_key("autotuning.enabled")
    last = ctx.ds("autotuning.end_profile_step", 5)
    yield ctx.finding(
        f"{ctx.key(key)} ends the training after step {last + 1 if isinstance(last, int) else last}, with exit code 0",
        key,
        notes=["it belongs in a file for `deepspeed --autotuning` alone"],
        severity="error" if ctx.consumer is None else "warning",
        fix=Fix(
            f"remove {ctx.key(ctx.spec_key('autotuning'))}",
            {ctx.spec_key("autotuning"): None},
            effect="trains to the end",
        ),
    )
