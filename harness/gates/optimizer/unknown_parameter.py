"""A parameter that the optimizer does not take.

## What it checks
Each key of `optimizer.params` against the signature of the class that DeepSpeed picks: FusedAdam, DeepSpeedCPUAdam for
an offloaded optimizer, torch's own with `torch_adam`, and so on.

## Why it fails
The parameters go to the class as they are: `TypeError: FusedAdam.__init__() got an unexpected keyword argument
'learning_rate'` when the engine is built. Muon alone drops what it does not know, in silence (both run on 0.19.8).

## Example
```yaml
zero:
  stage: 1
deepspeed:
  optimizer:
    type: AdamW
    params:
      learning_rate: 1.0e-5
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

from harness.findings import Finding, Fix
from harness.gates.optimizer.known import accepted
from harness.gates.registry import Cite, Context, gate
from harness.spec.suggestions import Suggestions

_OFTEN = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps", "beta": "betas", "adamw_mode": "adam_w_mode"}


@gate(
    "OP005",
    "unknown-optimizer-parameter",
    upstream="raises",
    cites=(
        Cite("runtime/engine.py", "optimizer = adam_optimizer(model_parameters, **optimizer_parameters"),
        Cite("runtime/engine.py", "_MUON_HALF_KEYS = "),
    ),
    when=lambda ctx: ctx.optimizer.key == "deepspeed.optimizer",
)
def check(ctx: Context) -> Iterator[Finding]:
    """The class decides."""
    taken = accepted(ctx)
    if taken is None:
        return
    name, known = taken
    wrong = [key for key in ctx.optimizer.params if key not in known and key != "max_grad_norm"]
    suggestions = Suggestions()
    for key in wrong:
        place = f"deepspeed.optimizer.params.{key}"
        better = _better(str(key), known, suggestions)
        usable = better is not None and better not in ctx.optimizer.params
        value = ctx.optimizer.params[key]
        yield ctx.finding(
            f"{ctx.key(place)} is no parameter of {name}" + (", which drops it in silence" if name == "Muon" else ""),
            place,
            of_key=True,
            label=f"did you mean `{better}`?" if better else "",
            notes=["it takes " + ", ".join(sorted(known))],
            fix=Fix(
                f"write `{better}`" if usable else f"remove {ctx.key(place)}",
                {place: None} | ({f"deepspeed.optimizer.params.{better}": value} if usable else {}),
                effect=f"sets `{better}`" if usable else "trains without it",
            ),
        )


def _better(key: str, known: frozenset[str], suggestions: Suggestions) -> str | None:
    if _OFTEN.get(key.lower()) in known:
        return _OFTEN[key.lower()]
    return suggestions.nearest_name(key, sorted(known))
