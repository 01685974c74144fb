"""The FLOPS profiler also times every step.

## What it checks
`flops_profiler.enabled: true` while `wall_clock_breakdown` is not written.

## Why it fails
DeepSpeed switches `wall_clock_breakdown` on together with the profiler, not for the profiled step alone but for the
whole run: each phase of each step then waits for the device (read in 0.19.8). Worth knowing before speeds are
compared.

## Example
```yaml
deepspeed:
  flops_profiler:
    enabled: true
```

## Use instead
```yaml
deepspeed:
  wall_clock_breakdown: true
  flops_profiler:
    enabled: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "UT003",
    "profiler-that-times-every-step",
    upstream="silent",
    cites=(Cite("runtime/config.py", "get_wall_clock_breakdown(param_dict) | self.flops_profiler_config.enabled"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """A switch that is thrown elsewhere."""
    if not ctx.is_enabled("flops_profiler") or ctx.has_key("wall_clock_breakdown"):
        return
    key = ctx.spec_key("wall_clock_breakdown")
    yield ctx.finding(
        f"{ctx.key(ctx.spec_key('flops_profiler.enabled'))} switches {ctx.key(key)} on for the whole run",
        ctx.spec_key("flops_profiler.enabled"),
        severity="info",
        notes=["each phase of each step then waits for the device, also long after the profiled step"],
        fix=Fix(f"write {ctx.key(key)}: true", {key: True}, effect="says what happens anyway"),
    )
