"""Parameters that a scheduler lacks, or does not take.

## What it checks
`scheduler.params` of DeepSpeed's schedulers: that there are any, that those without a default are given
(`total_num_steps` of WarmupDecayLR and WarmupCosineLR, `cycle_min_lr` and `cycle_max_lr` of OneCycle), and that there
are no others. Of torch's schedulers, where they can run at all (fp32 without ZeRO): that what they need is there.

## Why it fails
The parameters go to the class as they are: `TypeError: WarmupLR.__init__() got an unexpected keyword argument
'warmup_steps'`, or `argument after ** must be a mapping, not NoneType` without any, after the optimizer has been
built (run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  scheduler:
    type: WarmupLR
    params:
      warmup_min_lr: 1.0e-6
      warmup_steps: 10
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
      warmup_num_steps: 10
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.dtypes import model_dtype
from harness.gates.optimizer.known import REQUIRED, SCHEDULERS, schedule
from harness.gates.registry import Cite, Context, gate
from harness.spec.suggestions import Suggestions

_LIKELY: dict[str, Any] = {
    "total_num_steps": 1000,
    "cycle_min_lr": 1e-6,
    "cycle_max_lr": 1e-4,
    "step_size": 1000,
    "milestones": [1000],
    "gamma": 0.999,
    "T_max": 1000,
    "T_0": 1000,
    "base_lr": 1e-6,
    "max_lr": 1e-4,
}


def _takes(ctx: Context) -> bool:
    """Is it one of DeepSpeed's, or one of torch's where those run (OP025 says where not)?"""
    name = schedule(ctx)
    return name in SCHEDULERS or (name in REQUIRED and ctx.stage == 0 and model_dtype(ctx) == "fp32")


@gate(
    "OP023",
    "scheduler-parameters",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "instantiated_scheduler = scheduler(optimizer, **scheduler_params)"),),
    when=_takes,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The class decides."""
    name, place = schedule(ctx), "deepspeed.scheduler"
    missing = [key for key in REQUIRED.get(name, ()) if not ctx.has_key(f"scheduler.params.{key}")]
    if missing or not ctx.has_key("scheduler.params"):
        lacks = " and ".join(f"`{key}`" for key in missing) or "a `params` block, even an empty one"
        sets: dict[str, Any] = {f"{place}.params.{key}": _given(ctx, key) for key in missing}
        yield ctx.finding(
            f"{ctx.key(place)} lacks {lacks}, which `{name}` cannot do without",
            f"{place}.params" if ctx.has_key("scheduler.params") else place,
            of_key=True,
            fix=Fix(
                f"add {lacks}", sets or {f"{place}.params": {}}, effect="runs with these values; put in what is meant"
            ),
        )
    params = ctx.scheduler.get("params")
    known = SCHEDULERS.get(name, "").split()
    suggestions = Suggestions()
    for key, value in params.items() if isinstance(params, dict) and known else ():
        if key not in known:
            yield _unknown(ctx, str(key), name, known, value, suggestions)


def _given(ctx: Context, key: str) -> Any:
    steps = ctx.run.spec.train.max_steps
    return steps if key in ("total_num_steps", "T_max") and steps else _LIKELY[key]


def _unknown(ctx: Context, key: str, name: str, known: list[str], value: object, suggestions: Suggestions) -> Finding:
    place = f"deepspeed.scheduler.params.{key}"
    better = suggestions.nearest_name(key, known)
    better = better if better is not None and ("max" in key) == ("max" in better) else None
    usable = better is not None and not ctx.has_key(f"scheduler.params.{better}")
    return ctx.finding(
        f"{ctx.key(place)} is no parameter of `{name}`",
        place,
        of_key=True,
        label=f"did you mean `{better}`?" if better else "",
        notes=["it takes " + ", ".join(sorted(known))],
        fix=Fix(
            f"write `{better}`" if usable else f"remove {ctx.key(place)}",
            {place: None} | ({f"deepspeed.scheduler.params.{better}": value} if usable else {}),
            effect=f"sets `{better}`" if usable else "runs without it",
        ),
    )
