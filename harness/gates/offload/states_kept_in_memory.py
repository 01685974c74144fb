"""Pipelined swapping that keeps the first step's optimizer states in host memory.

## What it checks
A DeepSpeed JSON that another program trains with, at stage 3, with the optimizer on `nvme` and `pipeline_read` or
`pipeline_write`.

## Why it fails
The first step makes the states, writes them to the disk and keeps them: `_complete_swap_out` assigns an empty tensor to
the variable of its loop and releases nothing. With Adam that is 8 bytes a parameter over all ranks, 526 GiB for 70B,
until the second step reads each sub-group; a host without that memory ends there. Run on 0.16.9, 0.18.2, 0.19.3 and
0.19.8 with four sub-groups: either key alone does it, without both nothing is left. 0.14.5 has the same function
(read). A run spec is not affected: `harness launch` releases them.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "nvme",
      "nvme_path": "/local_nvme",
      "buffer_count": 12,
      "pipeline_read": true,
      "pipeline_write": true
    }
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.0}},
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "nvme",
      "nvme_path": "/local_nvme",
      "buffer_count": 12,
      "pipeline_read": false,
      "pipeline_write": false
    }
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_FLAGS = ("pipeline_read", "pipeline_write")
_STATES = {"adagrad": 1}
"""Tensors of fp32 that a step makes for a parameter; two with Adam, and with Lion on the CPU."""


@gate(
    "OF032",
    "pipelined-swapping-keeps-states",
    upstream="silent",
    cites=(Cite("runtime/swap_tensor/pipelined_optimizer_swapper.py", "buffer = torch.Tensor()"),),
    when=lambda ctx: (
        ctx.run.kind == "deepspeed-json" and ctx.stage == 3 and ctx.offload_device("offload_optimizer") == "nvme"
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Host memory after the first step."""
    flags = [name for name in _FLAGS if ctx.ds(f"zero_optimization.offload_optimizer.{name}") is True]
    if not flags:
        return
    width = 4 * _STATES.get(ctx.optimizer.name, 2)
    keys = {f"zero.offload_optimizer.{name}": False for name in flags}
    named = " and ".join(ctx.key(key) for key in keys)
    yield ctx.finding(
        f"the first step keeps its new optimizer states in host memory: {width} bytes a parameter over all ranks",
        next(iter(keys)),
        label="releases nothing of what it writes",
        notes=["the second step reads each sub-group back into the swap buffers, and the memory is free from then on"],
        fix=Fix(
            f"set {named} to false where hosts have no room for them",
            dict(keys),
            effect="a step then waits for the disk before and after each sub-group",
        ),
        severity="warning",
    )
