"""A swap buffer smaller than a parameter's shard.

## What it checks
`zero.offload_param.buffer_size`, in elements, against the largest shard that goes to NVMe: the largest parameter
divided by the ranks, if that is 1 MiB or more.

## Why it fails
Each parameter is swapped through one buffer. DeepSpeed asserts "More elements ... than buffer size ..." when the model
is built (run on 0.19.8). The default of 1e8 elements is too small for the embedding of many models on few ranks. Small
test models hide it: their shards stay in memory. A run spec that does not say it gets the size of the largest shard.

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
    buffer_size: 10000000
  offload_optimizer:
    device: cpu
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
    buffer_size: 33554432
  offload_optimizer:
    device: cpu
launch:
  num_gpus: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swap_sizes import shares, swapped_sizes, value
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF008",
    "swap-buffer-too-small",
    upstream="asserts",
    cites=(Cite("runtime/swap_tensor/partitioned_param_swapper.py", "than buffer size"),),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and ctx.offload_device("offload_param") == "nvme",
    unseen="needs shards of 1 MiB and more",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A shard has to fit into one buffer."""
    parts = shares(ctx)
    if parts is None:
        return
    size = value(ctx, "offload_param.buffer_size", 100_000_000)
    largest = max(swapped_sizes(ctx, parts), default=0)
    if largest <= size:
        return
    enough = -(-largest // (1 << 20)) << 20
    key = "zero.offload_param.buffer_size"
    yield ctx.finding(
        f"{ctx.key(key)} is {size:,} elements, the largest parameter has a shard of {largest:,}",
        key if ctx.source.has_key(key) else "zero.offload_param.device",
        label="too small",
        notes=["DeepSpeed asserts this while it builds the model"],
        fix=Fix(f"set {ctx.key(key)} to {enough}", {key: enough}, safe=True, effect="larger buffers in host memory"),
    )
