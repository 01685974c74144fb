"""Training with the optimizer on NVMe, whose checkpoints this version cannot resume or export.

## What it checks
On `harness launch`: `zero.offload_optimizer.device` is not `nvme` at stage 3.

## Why it fails
DeepSpeed saves the swap files beside the checkpoint and, on resume, skips the optimizer's own state: Adam starts
again at step 0 with its moments lost, the learning rate is the freshly built one, and the exit code is 0. The
shards themselves hold empty tensors, so that neither DeepSpeed's `zero_to_fp32.py` nor `harness export` can read
weights from them. (Recorded from runs on 0.19.8 and read again in its source; not run by this project's tests.) A
run whose result cannot be kept is not started.

## Example
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: nvme
    nvme_path: /local_nvme
```

## Use instead
```yaml
zero:
  stage: 3
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CK003",
    "nvme-optimizer-that-cannot-be-resumed",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "load_zero_checkpoint"),),
    needs=("a run spec", "a launch"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Neither resume nor export, for now."""
    zero = ctx.run.spec.zero
    if zero.stage != 3 or zero.offload_optimizer is None or zero.offload_optimizer.device != "nvme":
        return
    key = "zero.offload_optimizer.device"
    yield ctx.finding(
        "a checkpoint with the optimizer on NVMe can neither be resumed nor exported by this version",
        key,
        notes=["DeepSpeed loses Adam's state on resume in silence, and its shards hold no weights"],
        fix=Fix(
            f"set `{key}` to cpu",
            {key: "cpu", "zero.offload_optimizer.nvme_path": None},
            safe=True,
            effect="the same steps with more host memory",
        ),
    )
