"""ZeRO-2 that trains on the last micro-batch alone.

## What it checks
`zero.stage: 2` with more than one accumulation step and no offloaded optimizer, on DeepSpeed 0.17.6 to 0.18.2. Where
the Trainer or accelerate fills in the number of steps, or it follows from unknown ranks, it warns.

## Why it fails
In these releases each micro-batch overwrites the gradients of the one before, where it should add to them: of N
micro-batches a step, N - 1 are computed and dropped, without a word. This is so in fp32, bf16 and bf16 autocast, with
any bucket, with and without overlapped communication, on one rank and two, for a script's calls and the Trainer's (run
on 0.17.5, 0.17.6, 0.18.0 to 0.18.4 and 0.19.8: after two steps the weights are off by half their length and more).
0.17.5 and 0.18.3 add them up, and so do stages 0, 1 and 3 in all of these. An offloaded optimizer has another fault,
see `offload-loses-accumulated-gradients`. It is DeepSpeed's issue 7718.

## Example
```yaml
zero:
  stage: 2
train:
  gradient_accumulation_steps: 4
```

## Use instead
```yaml
zero:
  stage: 1
train:
  gradient_accumulation_steps: 4
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "ZR040",
    "zero-2-keeps-the-last-micro-batch",
    upstream="wrong",
    since="0.17.6",
    until="0.18.2",
    when=lambda ctx: ctx.stage == 2 and ctx.offload_device("offload_optimizer") == "none",
)
def check(ctx: Context) -> Iterator[Finding]:
    """One micro-batch of each step counts."""
    steps = ctx.accumulation
    if steps == 1:
        return
    right = "0.18.4" if ctx.consumer == "hf" else "0.18.3"
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} trains on the last of {steps} micro-batches alone at ZeRO stage 2"
        if steps
        else f"DeepSpeed {ctx.target.text} trains on the last micro-batch of each step alone at ZeRO stage 2",
        "zero.stage",
        label="each micro-batch overwrites the gradients of the one before",
        related=[("train.gradient_accumulation_steps", f"{steps} micro-batches a step" if steps else "not known here")],
        notes=[
            *([] if steps else ["with one micro-batch a step it is right; how many there are is not known here"]),
            *(
                ["0.18.3 keeps all of them, and divides their gradients twice under the Trainer"]
                if right == "0.18.4"
                else []
            ),
            "what was trained with these releases saw a part of its rows: do not compare its losses with a right run's",
        ],
        fix=Fix(
            f"upgrade to DeepSpeed {right}, or set {ctx.key('zero.stage')} to 1",
            {"zero.stage": 1},
            effect="all micro-batches count; every rank holds whole gradients",
        ),
        severity="error" if steps else "warning",
    )
