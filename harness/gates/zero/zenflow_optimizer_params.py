"""Optimizer parameters that ZenFlow's AdamW does not know.

## What it checks
`zenflow` at stage 1 or 2 with an `optimizer` block that has no `params`, or one of DeepSpeed's own parameters in it:
`adam_w_mode`, `torch_adam`, `bias_correction`, `fp32_optimizer_states`, `adamw_mode`.

## Why it fails
ZenFlow hands `optimizer.params` as they are written to a torch AdamW, which takes none of these: TypeError when the
engine is built. Without `params` it unpacks nothing at all, with the same end (run on 0.19.8).

## Example
```yaml
zero:
  stage: 2
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: Adam
    params:
      lr: 0.0001
      weight_decay: 0.0
      adam_w_mode: false
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
ignore:
  ZR030: an example for older releases
```

## Use instead
```yaml
zero:
  stage: 2
  overlap_comm: true
  offload_optimizer:
    device: cpu
deepspeed:
  optimizer:
    type: AdamW
    params:
      lr: 0.0001
      weight_decay: 0.0
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 1
      update_interval: 1
ignore:
  ZR030: an example for older releases
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_OWN = ("adam_w_mode", "adamw_mode", "torch_adam", "bias_correction", "fp32_optimizer_states")
"""Parameters that DeepSpeed's own classes take and torch's AdamW does not."""


@gate(
    "ZR039",
    "zenflow-parameters-that-adamw-lacks",
    upstream="crashes",
    cites=(Cite("runtime/zenflow/zenflow_stage_1_and_2.py", "**optimizer_params)"),),
    since="0.17.5",
    when=lambda ctx: ctx.stage in (1, 2) and ctx.ds("zero_optimization.zenflow") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """ZenFlow passes the parameters on as they are."""
    optimizer = ctx.optimizer
    if optimizer.name not in ("adam", "adamw") or ctx.offload_device("offload_optimizer") == "none":
        return
    if ctx.has_key("optimizer.type") and not ctx.has_key("optimizer.params"):
        yield ctx.finding(
            f"{ctx.key(optimizer.key)} has no `params`, which ZenFlow needs for an AdamW of its own",
            f"{optimizer.key}.type",
            fix=Fix(
                "write `params` with a learning rate, 0.001 being DeepSpeed's default",
                {"deepspeed.optimizer.params.lr": 0.001},
                safe=True,
            ),
        )
    wrong = [name for name in _OWN if name in optimizer.params]
    if not wrong:
        return
    key = f"{optimizer.key}.params.{wrong[0]}"
    yield ctx.finding(
        f"{ctx.key(key)} is no parameter of the torch AdamW that ZenFlow builds",
        key,
        label="a TypeError when the engine is built",
        related=[(ctx.spec_key("zero_optimization.zenflow"), "ZenFlow is asked for here")],
        fix=Fix(
            f"set {ctx.key(f'{optimizer.key}.type')} to `AdamW` and remove {', '.join(f'`{name}`' for name in wrong)}",
            {f"{optimizer.key}.type": "AdamW", **{f"{optimizer.key}.params.{name}": None for name in wrong}},
            effect="weights decay apart from the gradient",
        ),
        of_key=True,
    )
