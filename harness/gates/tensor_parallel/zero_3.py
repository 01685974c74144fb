"""AutoTP with ZeRO stage 3.

## What it checks
`zero.stage: 3` together with `parallel.tensor_parallel_size` above 1.

## Why it fails
DeepSpeed 0.16.4 to 0.19.3 refuses the pair when the engine is built: "Currently, the compatibility between 'autotp' and
'zero_stage = 3' has not been validated" (run on 0.19.3; 0.18.2 by an AttributeError instead). From 0.19.4 on it is
documented and trains: on 0.19.4 and 0.19.8 with the losses of stage 0 without tensor parallelism (run on 2 ranks,
0.19.8 on 4 as well). Before 0.16.4 there is no AutoTP training at any stage: see `autotp-before-0-16-4`.

## Example
```yaml
zero:
  stage: 3
parallel:
  tensor_parallel_size: 2
```

## Use instead
```yaml
zero:
  stage: 2
parallel:
  tensor_parallel_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "TP001",
    "autotp-with-zero-3",
    upstream="raises",
    since="0.16.4",
    until="0.19.3",
    when=lambda ctx: ctx.tensor_parallel_size > 1 and ctx.stage == 3,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Refused until it was supported."""
    yield ctx.finding(
        f"AutoTP over {ctx.tensor_parallel_size} ranks does not run at ZeRO stage 3 before DeepSpeed 0.19.4",
        "zero.stage",
        label="shards parameters a second time",
        related=[("parallel.tensor_parallel_size", "tensor parallelism is asked for here")],
        notes=[f"DeepSpeed {ctx.target.text} refuses it when the engine is built"],
        fix=Fix(
            f"set {ctx.key('zero.stage')} to 2", {"zero.stage": 2}, safe=True, effect="the same steps with more memory"
        ),
    )
