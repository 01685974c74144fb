"""A scheduler that DeepSpeed does not have.

## What it checks
`scheduler.type` of the DeepSpeed configuration: `LRRangeTest`, `OneCycle`, `WarmupLR`, `WarmupDecayLR`,
`WarmupCosineLR`, or a class of `torch.optim.lr_scheduler`, written exactly so.

## Why it fails
`AssertionError: DeepSpeed does not recognize LR scheduler warmuplr` on every rank, after the optimizer has been built
(run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: CosineWarmup
    params:
      total_num_steps: 100
      warmup_num_steps: 10
      warmup_type: linear
      warmup_min_ratio: 0.1
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupCosineLR
    params:
      total_num_steps: 100
      warmup_num_steps: 10
      warmup_type: linear
      warmup_min_ratio: 0.1
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import SCHEDULERS, TORCH_SCHEDULERS, schedule
from harness.gates.registry import Cite, Context, gate

_OFTEN = {"linear": "WarmupDecayLR", "cosine": "WarmupCosineLR", "constant": "WarmupLR", "decay": "WarmupDecayLR"}


@gate(
    "OP021",
    "unknown-scheduler",
    upstream="asserts",
    cites=(Cite("runtime/engine.py", "DeepSpeed does not recognize LR scheduler {scheduler_name}"),),
    when=lambda ctx: bool(ctx.scheduler),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Names are exact."""
    name = schedule(ctx)
    if name in ("", "auto") or name in SCHEDULERS or name in TORCH_SCHEDULERS:
        return
    place = "deepspeed.scheduler.type"
    better = _better(name)
    yield ctx.finding(
        f"`{name[:40]}` is no scheduler of DeepSpeed's or torch's",
        place,
        label=f"did you mean `{better}`?",
        notes=["DeepSpeed has " + ", ".join(SCHEDULERS)],
        fix=Fix(f"use `{better}`", {place: better}, safe=name.lower() == better.lower(), effect=f"runs {better}"),
    )


def _better(name: str) -> str:
    same = next((known for known in (*SCHEDULERS, *TORCH_SCHEDULERS) if known.lower() == name.lower()), None)
    often = next((known for word, known in _OFTEN.items() if word in name.lower()), None)
    if same or often:
        return same or often or ""
    from harness.spec.suggestions import nearest_name

    return nearest_name(name, SCHEDULERS) or "WarmupLR"
