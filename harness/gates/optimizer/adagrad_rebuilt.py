"""Adagrad whose learning rate never changes.

## What it checks
`optimizer.type: adagrad` at ZeRO stages 1 to 3 with the optimizer on the device, with a schedule of the run spec or a
decay of weights.

## Why it fails
There Adagrad is torch's, and ZeRO makes a new one from its defaults after the first is built: the run spec's schedule
goes on changing the rate of the old one. A run with warm-up and cosine trained at the peak rate from the first step on,
its losses off by a third. The new one has a single group of parameters; with a decay there are two (norms and biases
have none), and the first backward pass ends with `IndexError: list index out of range`. A `scheduler` of DeepSpeed's
own is made later and follows the new one. An offloaded Adagrad is DeepSpeed's own, which is kept, and agreed with
torch's to seven digits (all run on 0.19.8).

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
    if ctx.stage == 0 or offloaded(ctx):
        return
    schedule = ctx.run.spec.scheduler
    if ctx.optimizer.params.get("weight_decay"):
        what = (
            "fails in the first backward pass: a decay of weights makes two groups of parameters, of which it keeps one"
        )
    elif not ctx.scheduler and (schedule.type != "constant" or schedule.warmup_steps or schedule.warmup_ratio):
        what = "trains at its peak rate throughout, whatever the schedule says"
    else:
        return
    place = "zero.offload_optimizer.device"
    yield ctx.finding(
        f"`adagrad` at ZeRO stage {ctx.stage} {what}",
        f"{ctx.optimizer.key}.type",
        related=[("zero.stage", "ZeRO makes a new optimizer from the defaults of the first")],
        fix=Fix(f"set {ctx.key(place)} to `cpu`", {place: "cpu"}, effect="steps on the CPU"),
    )
