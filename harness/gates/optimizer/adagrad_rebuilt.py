"""Adagrad whose learning rate never changes.

## What it checks
`optimizer.type: adagrad` at ZeRO stages 1 to 3 with the optimizer on the device, with a schedule of the run spec or a
decay of weights.

## Why it fails
There Adagrad is torch's, and ZeRO makes a new one from its defaults after the first is built: the schedule goes on
changing the rate of the old one. A run with warm-up and cosine trained at the peak rate from the first step on, its
losses off by a third (run on 0.19.8); the groups that do not decay are lost in the same way (read). A `scheduler` of
DeepSpeed's own is made later and follows the new one (run). An offloaded Adagrad is DeepSpeed's own, which is kept,
and agreed with torch's to seven digits (run).

## Example
```yaml
optimizer:
  type: adagrad
zero:
  stage: 1
```

## Use instead
```yaml
optimizer:
  type: adagrad
zero:
  stage: 1
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import offloaded
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP041",
    "adagrad-rebuilt-by-zero",
    upstream="wrong",
    cites=(
        Cite(
            "runtime/zero/stage_1_and_2.py",
            "torch.optim.Adagrad(self.single_partition_of_fp32_groups, **self.optimizer.defaults)",
        ),
        Cite(
            "runtime/zero/stage3.py",
            "torch.optim.Adagrad(self.fp32_partitioned_groups_flat, **self.optimizer.defaults)",
        ),
    ),
    needs=("a run spec",),
    when=lambda ctx: ctx.optimizer.name == "adagrad",
)
def check(ctx: Context) -> Iterator[Finding]:
    """A rate that follows its schedule."""
    schedule = ctx.run.spec.scheduler
    falls = not ctx.scheduler and (schedule.type != "constant" or schedule.warmup_steps or schedule.warmup_ratio)
    if ctx.stage == 0 or offloaded(ctx) or not (falls or ctx.optimizer.params.get("weight_decay")):
        return
    place = "zero.offload_optimizer.device"
    what = "trains at its peak rate throughout, whatever the schedule says" if falls else "decays norms and biases too"
    yield ctx.finding(
        f"`adagrad` at ZeRO stage {ctx.stage} {what}",
        f"{ctx.optimizer.key}.type",
        related=[("zero.stage", "ZeRO makes a new optimizer from the defaults of the first")],
        fix=Fix(f"set {ctx.key(place)} to `cpu`", {place: "cpu"}, effect="steps on the CPU"),
    )
