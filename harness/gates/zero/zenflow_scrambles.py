"""ZenFlow scrambles the weights at stages 1 and 2.

## What it checks
`zenflow` in `zero_optimization` at stage 1 or 2, on DeepSpeed 0.19.7 and newer.

## Why it fails
ZenFlow keeps matrices transposed in its flat buffer; the code that gives the module its weights back from that buffer
does not turn them again since 0.19.7. Right after `initialize` every matrix holds the elements of its transpose in the
wrong order: a pretrained model is lost, and is saved like that. There is no error (run on 0.19.7 and 0.19.8; 0.19.3 is
right).

## Example
```yaml
zero:
  stage: 2
  overlap_comm: true
  offload_optimizer:
    device: cpu
train:
  gradient_accumulation_steps: 2
deepspeed:
  zero_optimization:
    zenflow:
      select_strategy: step
      select_interval: 2
      update_interval: 2
```

## Use instead
```yaml
zero:
  stage: 2
  offload_optimizer:
    device: cpu
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate


@gate(
    "ZR030",
    "zenflow-scrambles-weights",
    upstream="wrong",
    cites=(
        Cite(
            "runtime/zenflow/zenflow_utils.py", "transposed_tensors = [t.transpose(0, 1).contiguous() if t.dim() == 2"
        ),
    ),
    since="0.19.7",
    when=lambda ctx: ctx.stage in (1, 2) and ctx.ds("zero_optimization.zenflow") is not None,
)
def check(ctx: Context) -> Iterator[Finding]:
    """The weights come back transposed."""
    if ctx.offload_device("offload_optimizer") == "none":
        return  # refused: ZR031
    key = ctx.spec_key("zero_optimization.zenflow")
    yield ctx.finding(
        f"{ctx.key(key)} at ZeRO stage {ctx.stage} scrambles every weight matrix on DeepSpeed {ctx.target.text}",
        key,
        label="the model is lost at initialisation",
        related=[("zero.stage", "the stage is set here")],
        notes=["there is no error: the run starts from, and saves, a model that nobody made"],
        fix=Fix("remove it", {key: None}, effect="ordinary offload: every step waits for the optimizer on the CPU"),
        of_key=True,
    )
