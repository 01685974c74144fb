"""Lion that moves weights without a gradient.

## What it checks
`optimizer.type: Lion`.

## Why it fails
Lion moves each weight by the sign of its update, and the sign of 0 is 0: what has no gradient stays. DeepSpeed's Lion
takes 0 for a number with a sign: its CPU version moves such weights by the learning rate in one direction (run on
0.19.8), its CUDA kernel in the other (read). Embeddings of tokens that never come drift further with each step.

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: Lion
    params:
      lr: 1.0e-4
```

## Use instead
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "OP039",
    "lion-moves-what-has-no-gradient",
    upstream="silent",
    cites=(
        Cite("ops/csrc/lion/cpu_lion_impl.cpp", "tmp = -std::copysignf(alpha, tmp);"),
        Cite("ops/csrc/lion/multi_tensor_lion.cu", "MATH_T update = c > 0 ? (-lr) : lr;"),
    ),
    when=lambda ctx: ctx.optimizer.name == "lion",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The sign of 0 is 0."""
    place = "deepspeed.optimizer.type"
    yield ctx.finding(
        "DeepSpeed's Lion also moves weights that have no gradient, by the learning rate at each step",
        place,
        notes=["embeddings of tokens that are not in the data drift away"],
        fix=Fix("use `AdamW`, with a learning rate of its own", {place: "AdamW"}, effect="trains with AdamW"),
        severity="warning",
    )
