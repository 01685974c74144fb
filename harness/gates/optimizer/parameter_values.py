"""Parameters of an optimizer that are no sensible numbers.

## What it checks
`lr`, `weight_decay`, `eps`, `momentum` and `betas` in `optimizer.params`: numbers, not texts; none negative; two betas
below 1; a learning rate above 0; and Muon's `ns_method`.

## Why it fails
A text such as `"1e-3"` is passed on and fails in the first step. A negative learning rate is accepted by DeepSpeed's
own optimizers and climbs (losses 4.4, 1264, 22713 in a run on 0.19.8); torch's classes refuse it. With a rate of 0
nothing is trained.

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: -1.0e-5
```

## Use instead
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 1.0e-5
```
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import number
from harness.gates.registry import Cite, Context, gate

_RATES = ("lr", "muon_lr", "adam_lr")
_NUMBERS = (*_RATES, "weight_decay", "eps", "momentum")


@gate(
    "OP006",
    "optimizer-parameter-value",
    upstream="silent",
    cites=(Cite("ops/adam/fused_adam.py", "defaults = dict(lr=lr, bias_correction=bias_correction, betas=betas"),),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Numbers that an optimizer can use."""
    for key, value in ctx.optimizer.params.items():
        if value == "auto" or (value is None and key not in _NUMBERS):
            continue
        said = _wrong(ctx, str(key), value)
        if said is None:
            continue
        words, better = said
        place = _place(ctx, str(key))
        still = value == 0 and str(key) in _RATES
        yield ctx.finding(
            f"{ctx.key(place)} is {words}",
            place,
            fix=Fix(
                f"remove {ctx.key(place)}" if better is None else f"set {ctx.key(place)} to {better}",
                {place: better},
                safe=isinstance(value, str) and better is not None,
                effect="takes the optimizer's default" if better is None else f"trains with {better}",
            ),
            severity="warning" if still else "error",
        )


def _place(ctx: Context, key: str) -> str:
    if ctx.optimizer.key == "optimizer":
        return "optimizer.learning_rate" if key == "lr" else f"optimizer.{key}"
    return f"deepspeed.optimizer.params.{key}"


def _wrong(ctx: Context, key: str, value: Any) -> tuple[str, Any] | None:
    """What is wrong with a value, and what could stand there instead; None when nothing is."""
    if key == "betas":
        return _betas(value)
    if key == "ns_method" and ctx.optimizer.name == "muon" and value not in ("standard", "gram"):
        return f"`{value}`, Muon knows `standard` and `gram`", "gram"
    if key not in _NUMBERS or (key == "eps" and isinstance(value, (list, tuple))):
        return None
    if value is None:
        return "null, which is no number", None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or number(value) is None:
        return f'"{str(value)[:20]}", which is no number', number(value)
    return _size(key, value, bool(ctx.scheduler))


def _size(key: str, value: float, scheduled: bool) -> tuple[str, Any] | None:
    if value < 0:
        return f"{value:g}, below 0", -value if key in _RATES else 0.0
    if key in _RATES and value == 0 and not scheduled:
        return "0, which trains nothing", 1e-5
    return None


def _betas(value: Any) -> tuple[str, Any] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return "not a pair of numbers", [0.9, 0.999]
    if all(isinstance(b, (int, float)) and not isinstance(b, bool) and 0 <= b < 1 for b in value):
        return None
    return f"{list(value)}, and each must be from 0 to below 1"[:80], [0.9, 0.999]
