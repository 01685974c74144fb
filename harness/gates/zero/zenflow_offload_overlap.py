"""ZenFlow's own offload without overlapped communication.

## What it checks
`zenflow.offload: true` while `zero.overlap_comm` is off, which is the default at stages 1 and 2.

## Why it fails
The states of the selective optimizer are copied while gradients are reduced, and DeepSpeed asserts that both may
overlap when the optimizer is built (run on 0.19.8 at stage 2; stage 3 has the same assertion).

## Example
```yaml
zero:
  stage: 3
  overlap_comm: false
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
      offload: true
```

## Use instead
```yaml
zero:
  stage: 3
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
      offload: true
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR038",
    "zenflow-offload-without-overlap",
    upstream="asserts",
    cites=(
        Cite(
            "runtime/zenflow/zenflow_stage_1_and_2.py", "offload selective optimizer should be used with overlap_comm"
        ),
        Cite("runtime/zenflow/engine_stage3.py", "offload selective optimizer should be used with overlap_comm"),
    ),
    since="0.17.5",
    when=lambda ctx: ctx.stage > 0 and ctx.ds("zero_optimization.zenflow.offload") is True,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Copies and reductions have to overlap."""
    if ctx.ds("zero_optimization.overlap_comm", ctx.stage == 3) is True:
        return
    key = ctx.spec_key("zero_optimization.zenflow.offload")
    yield ctx.finding(
        f"{ctx.key(key)} needs {ctx.key('zero.overlap_comm')}",
        key,
        related=[("zero.overlap_comm", "switched off here"), ("zero.stage", "off by default below stage 3")],
        fix=Fix(f"set {ctx.key('zero.overlap_comm')} to `true`", {"zero.overlap_comm": True}, safe=True),
    )
