"""Fast initialisation with small parameter buffers.

## What it checks
`zero.offload_optimizer.fast_init` with optimizer and parameters on NVMe at stage 3, when a sub-group of the optimizer
is larger than `zero.offload_param.buffer_size`.

## Why it fails
Fast initialisation reads whole sub-groups through the parameter buffers and asserts "numel of fp16 buffers ... is too
small" when the engine is built (run on 0.19.8). With the defaults, 1e9 elements in a sub-group and 1e8 in a buffer,
only small models pass.

## Example
```yaml
model:
  config:
    model_type: llama
    hidden_size: 2048
    intermediate_size: 5504
    num_hidden_layers: 2
    num_attention_heads: 16
    vocab_size: 32000
zero:
  stage: 3
  offload_param:
    device: nvme
    nvme_path: /local_nvme
    max_in_cpu: 0
    buffer_count: 16
    buffer_size: 33554432
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
    fast_init: true
launch:
  num_gpus: 2
```

## Use instead
```yaml
model:
  config:
    model_type: llama
    hidden_size: 2048
    intermediate_size: 5504
    num_hidden_layers: 2
    num_attention_heads: 16
    vocab_size: 32000
zero:
  stage: 3
  offload_param:
    device: nvme
    nvme_path: /local_nvme
    max_in_cpu: 0
    buffer_count: 16
    buffer_size: 33554432
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
launch:
  num_gpus: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swap_sizes import fits_in_host_memory, shares, sub_group_limit, value
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF012",
    "fast-init-buffer-too-small",
    upstream="asserts",
    cites=(Cite("runtime/swap_tensor/optimizer_utils.py", "is too small for initializing fp32 params"),),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and ctx.ds("zero_optimization.offload_optimizer.fast_init") is True,
    unseen="needs shards of 1 MiB and more",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A sub-group has to fit into a parameter buffer."""
    if {ctx.offload_device("offload_optimizer"), ctx.offload_device("offload_param")} != {"nvme"}:
        return
    parts = shares(ctx)
    if parts is None or fits_in_host_memory(ctx, parts):
        return
    group = min(sub_group_limit(ctx), sum(parts))
    size = value(ctx, "offload_param.buffer_size", 100_000_000)
    if group <= size:
        return
    key = "zero.offload_optimizer.fast_init"
    yield ctx.finding(
        f"{ctx.key(key)} reads sub-groups of {group:,} elements through buffers of {size:,}",
        key,
        related=[("zero.offload_param.buffer_size", "buffers")],
        fix=Fix(f"remove {ctx.key(key)}", {key: None}, safe=True, effect="the first write to the disk takes longer"),
    )
