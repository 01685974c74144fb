"""Values that a scheduler refuses.

## What it checks
Numbers in `scheduler.params` of DeepSpeed's schedulers: rates, ratios and steps are numbers, `warmup_num_steps` and
`lr_range_test_step_size` whole ones above 0, `cycle_first_step_size` above 0, `cycle_second_step_size` not below 0.

## Why it fails
From 0.19.3 on DeepSpeed refuses steps that are no positive whole numbers (`ValueError: warmup_num_steps must be a
positive integer, got 0`). Texts fail as soon as they are computed with, and before 0.19.3 so did the others, later or
not at all (run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 0
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_num_steps: 1
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import SCHEDULERS, number, schedule
from harness.gates.registry import Cite, Context, gate

_WHOLE = ("warmup_num_steps", "lr_range_test_step_size")
_NO_NUMBERS = ("warmup_type", "cycle_momentum", "lr_range_test_staircase", "cycle_second_step_size")
_LEAST = {"cycle_first_step_size": (1, "must be above 0"), "cycle_second_step_size": (0, "must not be below 0")}


@gate(
    "OP024",
    "scheduler-value",
    upstream="raises",
    cites=(
        Cite("runtime/lr_schedules.py", "warmup_num_steps must be a positive integer, got {warmup_num_steps}"),
        Cite("runtime/lr_schedules.py", "cycle_first_step_size must be positive, got {cycle_first_step_size}"),
    ),
    since="0.19.3",
    when=lambda ctx: schedule(ctx) in SCHEDULERS,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Steps are whole, rates are numbers."""
    params = ctx.scheduler.get("params")
    known = SCHEDULERS[schedule(ctx)].split()
    for key, value in params.items() if isinstance(params, dict) else ():
        if key not in known or value is None or value == "auto":
            continue
        said = _wrong(str(key), value)
        if said is None:
            continue
        words, better = said
        place = f"deepspeed.scheduler.params.{key}"
        safe = isinstance(value, (str, float)) and better == number(value)
        yield ctx.finding(
            f"{ctx.key(place)} is {_shown(value)}, it {words}",
            place,
            fix=Fix(
                f"remove {ctx.key(place)}" if better is None else f"set {ctx.key(place)} to {better:g}",
                {place: better},
                safe=safe,
                effect="" if safe else "runs with another value",
            ),
        )


def _wrong(key: str, value: Any) -> tuple[str, float | None] | None:
    """What a value must be, and what could stand there instead; None when it is fine."""
    found = number(value)
    if key in _WHOLE:
        fine = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return None if fine else ("must be a whole number above 0", int(found) if found and found >= 1 else 1)
    if key in _LEAST and isinstance(value, (int, float)):
        least, words = _LEAST[key]
        return None if value > 0 or value >= least else (words, float(least))
    if key in _NO_NUMBERS or isinstance(value, (int, float, list, tuple)):
        return None
    return "must be a number", found


def _shown(value: Any) -> str:
    return f'"{value[:20]}"' if isinstance(value, str) else f"{value}"[:30]
