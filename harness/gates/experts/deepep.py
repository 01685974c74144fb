"""DeepEP's options without what they need.

## What it checks
With AutoEP on: `comm_backend: deepep` has a `comm_max_tokens_per_rank` above 0; `row_weighting_impl: fused` has the
`deepep` backend and an `autoep_size` above 1; `combine_impl: fused_weighted_sum` has neither; `gate_up_impl: fused`
has `use_grouped_mm`; `comm_num_sm` is at least 1 and `comm_qp_margin` at least 0.

## Why it fails
DeepSpeed checks each of these at initialisation and raises ValueError (read in 0.19.8).

## Example
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    comm_backend: deepep
```

## Use instead
```yaml
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
    comm_backend: deepep
    comm_max_tokens_per_rank: 4096
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled, value
from harness.gates.registry import Cite, Context, gate

_BLOCK = "deepspeed.expert_parallel"


@gate(
    "EX012",
    "expert-communication-options-refused",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_config.py", "must be a positive integer when comm_backend='deepep'"),
        Cite("module_inject/auto_ep_config.py", "only runs inside the DeepEP route"),
    ),
    since="0.19.7",
    when=enabled,
    unseen="needs CUDA and DeepEP",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Options that lean on each other."""
    for name, what, sets, effect in _faults(ctx):
        yield ctx.finding(
            what,
            f"{_BLOCK}.{name}",
            related=[(f"{_BLOCK}.comm_backend", "the backend")],
            notes=["DeepSpeed raises ValueError at initialisation"],
            fix=Fix(f"change {ctx.key(f'{_BLOCK}.{next(iter(sets))}')}", {f"{_BLOCK}.{k}": v for k, v in sets.items()},
                    effect=effect),
        )  # fmt: skip


def _faults(ctx: Context) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    def of(name: str) -> Any:
        return ctx.ds(f"expert_parallel.{name}")

    deepep, size = of("comm_backend") == "deepep", value(ctx, "autoep_size")
    if deepep and value(ctx, "comm_max_tokens_per_rank", 0) < 1:
        tokens = (ctx.run.batch.micro_batch or 1) * ctx.run.spec.data.max_length
        what = "the backend `deepep` wants `comm_max_tokens_per_rank`, micro-batch x sequence length"
        yield "comm_backend", what, {"comm_max_tokens_per_rank": tokens}, f"buffers for {tokens} tokens"
    if of("row_weighting_impl") == "fused" and not (deepep and size > 1):
        what = "`row_weighting_impl: fused` runs with the backend `deepep` over two ranks or more only"
        yield "row_weighting_impl", what, {"row_weighting_impl": None}, "another kernel"
    if of("combine_impl") == "fused_weighted_sum" and deepep and size > 1:
        what = "`combine_impl: fused_weighted_sum` does not go with the backend `deepep`"
        yield "combine_impl", what, {"combine_impl": None}, "another kernel"
    if of("gate_up_impl") == "fused" and of("use_grouped_mm") is False:
        what = "`gate_up_impl: fused` wants `use_grouped_mm`"
        yield "gate_up_impl", what, {"gate_up_impl": None}, "another kernel"
    for name, least in (("comm_num_sm", 1), ("comm_qp_margin", 0)):
        if value(ctx, name, least) < least:
            yield name, f"`{name}` is {of(name)}, it must be at least {least}", {name: None}, "DeepSpeed's default"
