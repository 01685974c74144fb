"""Too few swap buffers for the optimizer's states.

## What it checks
`zero.offload_optimizer.buffer_count` with `device: nvme` at stage 3, against what one step holds at once: the master
weights, each state and the gradient. That is 4 with Adam and Lion (whose second state nothing
reads) and 3 with Adagrad.

## Why it fails
Fewer buffers end in a bare AssertionError or in "range() arg 3 must not be zero", at initialisation or in the first
step (run on 0.19.8 with 1, 2 and 3 buffers and Adam; 4 runs). A model whose sub-groups are smaller than 1 MiB is not
swapped at all and hides it.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
    buffer_count: 2
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
    buffer_count: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.offload.swap_sizes import BUFFERS
from harness.gates.registry import Cite, Context, gate


@gate(
    "OF010",
    "too-few-optimizer-swap-buffers",
    upstream="asserts",
    cites=(
        Cite("runtime/swap_tensor/partitioned_optimizer_swapper.py", "required_buffer_count = swap_info.num_tensors()"),
    ),
    when=lambda ctx: ctx.stage == 3 and ctx.offload_device("offload_optimizer") == "nvme",
    policy="a model of a few thousand parameters runs: nothing of it is swapped",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Weights, states and gradient each need one."""
    needed = BUFFERS.get(ctx.optimizer.name, 2)
    have = ctx.ds("zero_optimization.offload_optimizer.buffer_count", 4)
    if have >= needed:
        return
    key = "zero.offload_optimizer.buffer_count"
    yield ctx.finding(
        f"{ctx.key(key)} is {have}, a step of {ctx.optimizer.type} holds {needed} buffers",
        key,
        label="weights, states and gradient",
        fix=Fix(f"set {ctx.key(key)} to {needed}", {key: needed}, safe=True, effect="larger buffers in host memory"),
    )
