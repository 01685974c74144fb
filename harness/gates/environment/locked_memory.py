"""A limit on locked memory, with offload to NVMe.

## What it checks
With offload to NVMe, the limit on locked memory (`ulimit -l`) is off or 1 GiB at least on every host.

## Why it fails
DeepSpeed's aio pins its buffers. Where the limit is small, `mlock` fails deep inside it; a shell that ssh starts
often has another limit than the one at hand.

## Example
```yaml
model:
  config: {model_type: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80,
           num_attention_heads: 64, num_key_value_heads: 8, max_position_embeddings: 4096}
zero:
  stage: 3
  offload_optimizer: {device: nvme, nvme_path: /nvme}
```
```hostfile
worker-0 slots=8
worker-1 slots=8
```
```probe
worker-1: {memlock: 65536}
```

## Use instead
```yaml
model:
  config: {model_type: llama, vocab_size: 32000, hidden_size: 8192, intermediate_size: 28672, num_hidden_layers: 80,
           num_attention_heads: 64, num_key_value_heads: 8, max_position_embeddings: 4096}
zero:
  stage: 3
  offload_optimizer: {device: nvme, nvme_path: /nvme}
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

_ENOUGH = 2**30


@gate(
    "EN050",
    "little-lockable-memory",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    when=lambda ctx: "nvme" in (ctx.offload_device("offload_optimizer"), ctx.offload_device("offload_param")),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Not to be pinned."""
    survey = ctx.survey
    small = [h for h in survey.reachable_hosts if h.memlock is not None and h.memlock < _ENOUGH] if survey else []
    if small:
        least = min(small, key=lambda host: host.memlock or 0)
        yield ctx.finding(
            f"a process on {format_hosts(small)} may lock {format_bytes(least.memlock or 0)} of memory",
            "launch.hostfile",
            notes=["DeepSpeed's aio locks the buffers that it reads and writes through"],
            fix=Fix("set `memlock` to unlimited in /etc/security/limits.conf there"),
            severity="warning",
        )
