"""Less space on NVMe than the plan needs.

## What it checks
The disk of each `nvme_path` has, on every host, the space that the plan counts for it.

## Why it fails
DeepSpeed writes the states at start-up and says nothing when the disk is full: the write fails in a C++ thread, and
what is read back is something else.

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
worker-1: {folders: {zero.offload_optimizer.nvme_path: {path: /nvme, free: 1000000000}}}
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


@gate(
    "EN045",
    "nvme-too-full",
    upstream="wrong",
    needs=("the hosts' answers", "hosts"),
    unseen="needs several hosts",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The states do not fit."""
    memory = ctx.plan.memory
    if memory is None or not memory.nvme_bytes:
        return
    for host in ctx.survey.reachable_hosts if ctx.survey else ():
        for key, folder in host.folders.items():
            if key.endswith("nvme_path") and folder.free is not None and folder.free < memory.nvme_bytes:
                yield ctx.finding(
                    f"`{folder.path}` has {format_bytes(folder.free)} free on {format_hosts([host])}, "
                    f"the plan needs {format_bytes(memory.nvme_bytes)} a host",
                    key,
                    fix=Fix("make room there, or spread the states over more hosts"),
                )
                return
