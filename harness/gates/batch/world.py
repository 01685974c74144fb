"""Degrees that do not divide the world.

## What it checks
The ranks divide by tensor x pipeline x sequence degree, and there are at least that many.

## Why it fails
DeepSpeed finds out while it makes its process groups: with an IndexError for AutoTP, a bare AssertionError when there
are too few ranks, a message about `num_stages` for a pipeline (run on 0.19.8).

## Example
```yaml
train:
  per_device_train_batch_size: 1
parallel:
  tensor_parallel_size: 4
launch:
  num_gpus: 6
```

## Use instead
```yaml
train:
  per_device_train_batch_size: 1
parallel:
  tensor_parallel_size: 3
launch:
  num_gpus: 6
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_DEGREES = ("tensor", "pipeline", "sequence")


@gate(
    "BT003",
    "degrees-that-do-not-divide-the-world",
    upstream="crashes",
    cites=(Cite("runtime/pipe/module.py", "must divide distributed world size"),),
    needs=("world size",),
)
def check(ctx: Context) -> Iterator[Finding]:
    """world = data x tensor x pipeline x sequence."""
    degrees = ctx.run.parallel_dims
    if degrees.data is not None or degrees.world_size is None:
        return
    used = [name for name in _DEGREES if getattr(degrees, name) > 1]
    product = " x ".join(f"{name} {getattr(degrees, name)}" for name in used)
    first, *rest = (f"parallel.{name}_parallel_size" for name in used)
    short = degrees.world_size < degrees.model_parallel_size
    have = f"{degrees.world_size} {'rank is' if degrees.world_size == 1 else 'ranks are'}"
    yield ctx.finding(
        f"{have} {'fewer than' if short else 'no multiple of'} {product}"
        + (f" = {degrees.model_parallel_size}" if len(used) > 1 else ""),
        first,
        related=[(key, "and here") for key in rest] + [("launch.num_gpus", "the ranks are set here")],
        notes=["DeepSpeed fails on this when it makes its process groups, on every rank"],
        fix=Fix(
            "choose degrees whose product divides the ranks",
            {first: _divisor(degrees.world_size), **dict.fromkeys(rest, 1)},
            effect="other memory and speed",
        ),
    )


def _divisor(world: int) -> int:
    return next((d for d in (2, 3, 5, 7) if world % d == 0 and d < world), 1)
