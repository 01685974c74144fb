"""A memory report at every forward and backward.

## What it checks
`memory_breakdown: true`.

## Why it fails
DeepSpeed then prints the memory in use before and after each forward and backward, and collects Python's garbage each
time: at least four times a micro-batch on rank 0, while the other ranks wait (run on 0.19.8: seconds a step with a
tiny model on the CPU). Good for a look, slow for a run.

## Example
```yaml
deepspeed:
  memory_breakdown: true
```

## Use instead
```yaml
logging:
  deepspeed_level: info
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT015",
    "memory-report-at-every-step",
    upstream="silent",
    cites=(Cite("runtime/engine.py", 'see_memory_usage("Engine before forward", force=self.memory_breakdown())'),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """For a look only."""
    if ctx.ds("memory_breakdown") is not True:
        return
    key = ctx.spec_key("memory_breakdown")
    yield ctx.finding(
        f"{ctx.key(key)} prints a memory report four times a micro-batch",
        key,
        severity="warning",
        notes=["each collects Python's garbage on rank 0 while the others wait: fine for a look"],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, effect="no memory report"),
    )
