"""A global batch under AutoTP that DeepSpeed counts over the whole world.

## What it checks
`train_batch_size` in a DeepSpeed JSON with a tensor degree.

## Why it fails
The ranks of a tensor group work on the same samples, so a step consumes micro-batch x accumulation x (ranks / tensor
degree) sequences. DeepSpeed multiplies by all ranks instead. The true number is refused, or divided down to other
accumulation steps ("Gradient accumulation steps: 0 has to be greater than 0"); a number that is accepted is too large
by the tensor degree, and so are its sample counts and samples a second (run on 0.19.8 with 2 and 4 ranks). Leave the
key out. (In a run spec the harness does.)

## Example
```json
{
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "tensor_parallel": {"autotp_size": 2}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 1,
  "tensor_parallel": {"autotp_size": 2}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "BT005",
    "global-batch-counted-over-tensor-ranks",
    upstream="silent",
    cites=(Cite("runtime/config.py", "micro_batch_per_gpu * gradient_acc_step * world_size"),),
    since="0.16.4",
    when=lambda ctx: (
        ctx.tensor_parallel_size > 1 and ctx.run.kind == "deepspeed-json" and ctx.has_key("train_batch_size")
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """DeepSpeed's product has the world where the data-parallel ranks belong."""
    train, world, key = ctx.run.spec.train, ctx.world_size, "train.global_batch_size"
    total, micro, steps = train.global_batch_size, train.per_device_train_batch_size, train.gradient_accumulation_steps
    if total is None:
        return
    refused = world is not None and not _accepted(total, micro, steps, world)
    consumed = "" if world is None or refused else f": a step consumes {total // ctx.tensor_parallel_size}"
    yield ctx.finding(
        f"DeepSpeed makes a global batch of {total} over all {world} ranks, and refuses it"
        if refused
        else f"DeepSpeed counts {ctx.key(key)} {total} over tensor ranks as well{consumed}",
        key,
        label="not the sequences of a step",
        related=[("parallel.tensor_parallel_size", "these ranks work on the same samples")],
        notes=[f"sample counts come out {ctx.tensor_parallel_size} times too large"],
        fix=Fix(
            f"remove {ctx.key(key)} and set {ctx.key('train.gradient_accumulation_steps')}",
            _instead(ctx, total, micro, steps, refused=refused),
            effect="the same micro-batches, without the wrong count",
        ),
        severity="error" if refused else "warning",
    )


def _accepted(total: int, micro: int | None, steps: int | None, world: int) -> bool:
    unit = (micro or 1) * (steps or 1) * world
    return total == unit if micro and steps else total % unit == 0


def _instead(ctx: Context, total: int, micro: int | None, steps: int | None, *, refused: bool) -> dict[str, int | None]:
    """Without the key: the sequences that were asked for where DeepSpeed refuses, else what it trains today."""
    ranks = ctx.world_size if ctx.world_size is not None and not refused else ctx.data_parallel_size
    micro = micro or max(1, total // ((ranks or 1) * (steps or 1)))
    wanted = steps or max(1, total // (micro * (ranks or 1)))
    return {
        "train.global_batch_size": None,
        "train.per_device_train_batch_size": micro,
        "train.gradient_accumulation_steps": wanted,
    }
