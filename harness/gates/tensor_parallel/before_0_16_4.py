"""AutoTP on a release that does not train with it.

## What it checks
`parallel.tensor_parallel_size` above 1 on DeepSpeed 0.16.3 and older.

## Why it fails
These releases have AutoTP for inference only. The training engine does not read the `tensor_parallel` block: every
rank keeps whole layers and trains data parallel, with another global batch than was asked and without a word (the
losses of 0.14.5 and 0.15.4 were those of plain data parallelism).

## Example
```yaml
parallel:
  tensor_parallel_size: 2
```

## Use instead
```yaml
zero:
  stage: 3
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "TP002",
    "autotp-before-0-16-4",
    upstream="silent",
    until="0.16.3",
    when=lambda ctx: ctx.tensor_parallel_size > 1 and ctx.run.kind == "spec",
    unseen="needs an older DeepSpeed",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The block came with 0.16.4. (In a JSON the key itself is refused.)"""
    key = "parallel.tensor_parallel_size"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} does not train with AutoTP, "
        f"{ctx.key(key)} {ctx.tensor_parallel_size} has no effect",
        key,
        label="needs 0.16.4",
        notes=["every rank keeps whole layers and trains data parallel, with another global batch"],
        fix=Fix(
            f"upgrade to DeepSpeed 0.16.4 or newer, or set {ctx.key(key)} to 1",
            {key: 1},
            effect="trains data parallel, with more memory a rank",
        ),
    )
