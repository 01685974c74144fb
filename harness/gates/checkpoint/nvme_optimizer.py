"""An optimizer on NVMe in a DeepSpeed JSON, whose checkpoints DeepSpeed itself does not load whole.

## What it checks
A DeepSpeed JSON with `offload_optimizer.device: nvme` at stage 3. A run spec is not meant: the harness saves and loads
these states by itself.

## Why it fails
`engine.save_checkpoint` writes empty tensors for what is swapped out and copies the swap files beside them;
`engine.load_checkpoint` skips the optimizer: Adam starts again at step 0 with its moments lost, the learning rate is
the freshly built one, and the exit code is 0. Neither `zero_to_fp32` nor `ds_to_universal` can read such shards.
(Recorded from runs on 0.19.8 and read again in its source; a program that uses the Trainer or accelerate is no better
off.) A run spec trained by `harness launch` has none of this: its shards hold the values, and a resume is exact.

## Example
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true}
  }
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 1,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true}
  }
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "CK003",
    "nvme-optimizer-that-deepspeed-cannot-resume",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "load_zero_checkpoint and not self.zero_nvme_offload_optimizer()"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Only where DeepSpeed's own loading is used."""
    zero = ctx.run.spec.zero
    if ctx.run.kind != "deepspeed-json" or zero.stage != 3:
        return
    if zero.offload_optimizer is None or zero.offload_optimizer.device != "nvme":
        return
    key = "zero.offload_optimizer.device"
    yield ctx.finding(
        "DeepSpeed does not load the optimizer of a checkpoint back when it is on NVMe",
        key,
        severity="warning",
        notes=["a resume loses Adam's state in silence; `harness launch` of a run spec does not"],
        fix=Fix(
            f"set {ctx.key(key)} to cpu",
            {key: "cpu", "zero.offload_optimizer.nvme_path": None},
            effect="the optimizer moves to host memory, which must hold it",
        ),
    )
