"""Keys of stages 1 and 2 at another stage.

## What it checks
Keys of `zero_optimization` that only stages 1 and 2 read, such as `allgather_bucket_size`, `round_robin_gradients:
true`, `parameter_alignment: true` or `use_multi_rank_bucket_allreduce: false`, with stage 3 or 0; at stage 0 also
`overlap_comm: true` and `reduce_bucket_size`.

## Why it fails
DeepSpeed accepts them and does not read them: the losses are the same without (`round_robin_gradients`,
`parameter_alignment` and `allgather_bucket_size` at stage 3 and `overlap_comm` at stage 0 were run on 0.19.8, the
others were read there).

## Example
```yaml
zero:
  stage: 3
  round_robin_gradients: true
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
from harness.gates.registry import Cite, Context, gate

_STAGES_1_2 = {
    "allgather_bucket_size": None,
    "round_robin_gradients": False,
    "use_multi_rank_bucket_allreduce": True,
    "parameter_alignment": False,
}
"""Each with the value that asks for nothing."""
_SHARDED = {"overlap_comm": False, "reduce_bucket_size": None}


@gate(
    "ZR003",
    "keys-that-this-stage-does-not-read",
    upstream="silent",
    cites=(Cite("runtime/engine.py", "round_robin_gradients = self.zero_round_robin_gradients()"),),
    when=lambda ctx: ctx.stage in (0, 3) and ctx.has_key("zero_optimization.stage"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Stage 3 and stage 0 do not read these."""
    if ctx.is_auto("zero_optimization.stage"):
        return
    keys = {**_STAGES_1_2, **_SHARDED} if ctx.stage == 0 else _STAGES_1_2
    names = [name for name, idle in keys.items() if ctx.ds(f"zero_optimization.{name}", idle) != idle]
    if not names:
        return
    first, more = ctx.spec_key(f"zero_optimization.{names[0]}"), len(names) - 1
    what = ctx.key(first) + (f" and {more} other key{'s' if more > 1 else ''}" if more else "")
    yield ctx.finding(
        f"{what} {'are' if more else 'is'} not read at ZeRO stage {ctx.stage}",
        first,
        label="has no effect",
        related=[("zero.stage", "the stage is set here")],
        notes=[f"not read: {', '.join(f'`{name}`' for name in names)}"] if more else [],
        fix=Fix(
            f"remove {'them' if more else 'it'}",
            {ctx.spec_key(f"zero_optimization.{name}"): None for name in names},
            safe=True,
        ),
        severity="info",
        of_key=True,
    )
