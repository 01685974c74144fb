"""Less host memory than the plan needs.

## What it checks
Every host has the memory that the plan counts for it.

## Why it fails
The kernel kills a rank of that host once the states are there, minutes after the start; the others wait for it.

## Example
```yaml
model:
  config: {model_type: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80,
           num_attention_heads: 64, num_key_value_heads: 8, max_position_embeddings: 4096}
zero:
  stage: 3
  offload_optimizer: {device: cpu}
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
```probe
worker-1: {memory_total: 64000000000}
```

## Use instead
```yaml
model:
  config: {model_type: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80,
           num_attention_heads: 64, num_key_value_heads: 8, max_position_embeddings: 4096}
zero:
  stage: 3
  offload_optimizer: {device: cpu}
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.host_names import format_hosts
from harness.gates.registry import Context, gate
from harness.units import format_bytes


@gate(
    "EN046",
    "host-memory-below-plan",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The plan does not fit."""
    need = ctx.plan.memory.host_peak if ctx.plan.memory else 0
    short = [host for host in (ctx.survey.reachable_hosts if ctx.survey else ()) if host.memory_total < need]
    if short:
        least = min(short, key=lambda host: host.memory_total)
        yield ctx.finding(
            f"{format_hosts(short)} has {format_bytes(least.memory_total)} of memory, "
            f"the plan needs {format_bytes(need)}",
            "launch.hostfile",
            notes=["`harness plan` says what it is for"],
            fix=Fix("choose a row of `harness plan` that fits, take larger hosts, or more of them"),
        )
