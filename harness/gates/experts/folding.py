"""AutoEP folded with AutoTP, where DeepSpeed refuses it.

## What it checks
An enabled `expert_parallel` block beside a tensor degree: `autoep_size` above 1, no offload, no DeepCompile, no
`use_data_before_expert_parallelism`, no `async_split_plan`, no `combine_impl: fused_weighted_sum`, the same
`preset_model` in both blocks. On 0.19.2 none of it works.

## Why it fails
DeepSpeed folds expert groups across tensor groups only in the combinations that its authors have tried, and raises
ValueError for the others at initialisation, each with its own message (run on 0.19.8, read in 0.19.3).

## Example
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
parallel:
  tensor_parallel_size: 2
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```

## Use instead
```yaml
zero:
  stage: 2
parallel:
  tensor_parallel_size: 2
deepspeed:
  expert_parallel:
    enabled: true
    autoep_size: 2
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.experts.autoep import enabled, value
from harness.gates.registry import Cite, Context, gate

Refusal = tuple[bool, str, str, dict[str, Any], str]
_BLOCK = "deepspeed.expert_parallel"


@gate(
    "EX009",
    "expert-folding-refused",
    upstream="raises",
    cites=(
        Cite("module_inject/auto_ep_folding.py", "offload with AutoEP+AutoTP folding is not validated yet"),
        Cite("module_inject/auto_ep_folding.py", "AutoEP+AutoTP folding requires expert_parallel.autoep_size > 1"),
    ),
    since="0.19.2",
    when=lambda ctx: (
        enabled(ctx)
        and ctx.tensor_parallel_size > 1
        and ctx.pipeline_parallel_size == 1
        and ctx.sequence_parallel_size == 1
    ),
)
def check(ctx: Context) -> Iterator[Finding]:
    """What the authors have not tried is refused."""
    for there, what, key, sets, effect in _refusals(ctx):
        if not there:
            continue
        yield ctx.finding(
            f"AutoEP with AutoTP over {ctx.tensor_parallel_size} ranks does not take {what}",
            key,
            related=[("parallel.tensor_parallel_size", "the tensor degree"), (f"{_BLOCK}.enabled", "AutoEP")],
            notes=["DeepSpeed raises ValueError at initialisation"],
            fix=Fix(f"change {ctx.key(key)}", sets, effect=effect),
        )
        return


def _refusals(ctx: Context) -> Iterator[Refusal]:
    degree = "parallel.tensor_parallel_size"
    old = ctx.target.version < (0, 19, 3)
    yield old, f"DeepSpeed {ctx.target.text}", degree, {degree: 1}, "no tensor parallelism"
    size = value(ctx, "autoep_size")
    key = f"{_BLOCK}.autoep_size"
    yield (
        size == 1,
        "an `autoep_size` of 1",
        key if ctx.source.has_key(key) else degree,
        {degree: 1, key: 2},
        "experts alone",
    )
    for section in ("offload_optimizer", "offload_param"):
        block = getattr(ctx.run.spec.zero, section)
        key = f"zero.{section}"
        yield block is not None, f"`{section}`", key, {key: None}, "keeps it on the device"
    deep = "deepspeed.compile.deepcompile"
    yield ctx.ds("compile.deepcompile") is True, "DeepCompile", deep, {deep: False}, "ordinary execution"
    name = "use_data_before_expert_parallelism"
    yield bool(ctx.ds(name)), f"`{name}`", f"deepspeed.{name}", {f"deepspeed.{name}": None}, "other order of groups"
    key = f"{_BLOCK}.async_split_plan"
    yield ctx.ds("expert_parallel.async_split_plan") is True, "`async_split_plan`", key, {key: None}, "plans in turn"
    key, fused = f"{_BLOCK}.combine_impl", ctx.ds("expert_parallel.combine_impl") == "fused_weighted_sum"
    yield fused, "`combine_impl: fused_weighted_sum`", key, {key: None}, "another kernel"
    ours, theirs = ctx.ds("expert_parallel.preset_model"), ctx.ds("tensor_parallel.preset_model")
    key = "deepspeed.tensor_parallel.preset_model"
    both = ours is not None and theirs is not None and ours != theirs
    yield both, f"two presets, `{ours}` and `{theirs}`", key, {key: None}, "one preset"
