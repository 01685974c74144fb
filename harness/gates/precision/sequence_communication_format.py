"""The communication format under sequence parallelism.

## What it checks
`communication_data_type` with a sequence-parallel degree above 1.

## Why it fails
With sequence groups the engine replaces `communication_data_type` by `seq_parallel_communication_data_type` for all
reductions of gradients; its default is fp32 (read in 0.19.8).

## Example
```yaml
precision:
  bf16: true
zero:
  stage: 2
parallel:
  sequence_parallel_size: 2
deepspeed:
  communication_data_type: bf16
```

## Use instead
```yaml
precision:
  bf16: true
zero:
  stage: 2
parallel:
  sequence_parallel_size: 2
deepspeed:
  seq_parallel_communication_data_type: bf16
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "PR029",
    "communication-format-of-sequence-groups",
    upstream="silent",
    cites=(
        Cite("runtime/engine.py", "self.communication_data_type = self._config.seq_parallel_communication_data_type"),
    ),
    when=lambda ctx: ctx.sequence_parallel_size > 1 and not ctx.is_enabled("torch_autocast"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Another key counts."""
    old = ctx.target.version < (0, 16, 5)
    counts = "seq_parallel_comm_data_type" if old else "seq_parallel_communication_data_type"
    asked = ctx.ds("communication_data_type")
    if not isinstance(asked, str) or asked.lower() == str(ctx.ds(counts, "fp32")).lower():
        return
    place, other = "deepspeed.communication_data_type", f"deepspeed.{counts}"
    sets = {place: None} | ({} if ctx.has_key(counts) else {other: asked})
    yield ctx.finding(
        f"{ctx.key(place)} is not read with sequence parallelism; {ctx.key(other)} is",
        place,
        label="has no effect",
        related=[("parallel.sequence_parallel_size", "the degree"), (other, "this one counts")],
        notes=["gradients are reduced in " + str(ctx.ds(counts, "fp32"))],
        fix=Fix(f"write {ctx.key(other)} instead", sets, effect=f"reduces gradients in {ctx.ds(counts, asked)}"),
        severity="warning",
    )
