"""NVMe offload on a host without libaio.

## What it checks
With offload to NVMe, a program that uses libaio compiles and links on every host.

## Why it fails
DeepSpeed compiles its op `async_io` on each host. Without the headers the ranks there fail at start-up, and the
others wait for them.

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
worker-1: {libaio: false}
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


@gate(
    "EN047",
    "no-libaio-there",
    upstream="raises",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Its op cannot be compiled."""
    survey = ctx.survey
    lacking = [host for host in survey.reachable_hosts if host.libaio is False] if survey else []
    if lacking:
        key = (
            "zero.offload_optimizer.device"
            if ctx.offload_device("offload_optimizer") == "nvme"
            else "zero.offload_param.device"
        )
        yield ctx.finding(
            f"{format_hosts(lacking)} has no libaio, which offload to nvme needs",
            key,
            fix=Fix("install it there: apt install libaio-dev (or libaio-devel)"),
        )
