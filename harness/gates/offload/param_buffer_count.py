"""Too few swap buffers for the parameters in use.

## What it checks
`zero.offload_param.buffer_count` against the number of parameters that are gathered at the same time when parameters
are on NVMe, as far as `max_in_cpu` does not keep them in host memory.

## Why it fails
Every parameter that is gathered or fetched ahead holds a swap buffer, and `zero.stage3_max_reuse_distance` (1e9
elements by default) keeps them gathered for long: "Not enough buffers 0 for swapping 1" in the forward pass. One Llama
layer of width 2048 on two ranks failed with the default 5 and with 8 and ran with 12; two layers failed with 12 and ran
with 16 (run on 0.19.8). For models larger than the reuse distance the number is an estimate and the finding a warning.
A run spec that does not say it gets as many as are needed, unless `tuned_defaults: false`.

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
    buffer_count: 8
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
    max_in_cpu: 0
    buffer_count: 16
  offload_optimizer:
    device: cpu
launch:
  num_gpus: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swap_sizes import fits_in_host_memory, shares, swapped_sizes, value
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF009",
    "too-few-swap-buffers",
    upstream="asserts",
    cites=(Cite("runtime/swap_tensor/partitioned_param_swapper.py", "Not enough buffers"),),
    needs=("world size", "model facts"),
    when=lambda ctx: ctx.stage == 3 and ctx.offload_device("offload_param") == "nvme",
    unseen="needs shards of 1 MiB and more",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Each live parameter holds a buffer."""
    parts, model = shares(ctx), ctx.model
    if parts is None or model is None or fits_in_host_memory(ctx, parts):
        return
    count, total = len(swapped_sizes(ctx, parts)), model.num_parameters
    reuse = ctx.ds("zero_optimization.stage3_max_reuse_distance", 1_000_000_000)
    ahead = ctx.ds("zero_optimization.stage3_prefetch_bucket_size", 50_000_000)
    live = min(total, reuse // 2 + model.largest_module + ahead)
    needed, have = -(-count * live // total), value(ctx, "offload_param.buffer_count", 5)
    if needed <= have:
        return
    key, certain = "zero.offload_param.buffer_count", live == total
    yield ctx.finding(
        f"{ctx.key(key)} is {have}, about {needed} parameters are gathered at the same time",
        key if ctx.source.has_key(key) else "zero.offload_param.device",
        label="each holds a swap buffer",
        notes=[f"a smaller {ctx.key('zero.stage3_max_reuse_distance')} lets parameters go sooner"],
        fix=Fix(f"set {ctx.key(key)} to {needed}", {key: needed}, safe=certain, effect="more host memory for buffers"),
        severity="error" if certain else "warning",
    )
