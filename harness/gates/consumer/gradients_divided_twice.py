"""Gradients that are divided twice under the Trainer.

## What it checks
A JSON for the Hugging Face Trainer with more than one accumulation step, on DeepSpeed 0.18.3. Where the number of steps
is left to the Trainer's arguments, it warns.

## Why it fails
The Trainer (transformers 4.49 and newer) divides the loss by the accumulation steps itself and calls
`engine.backward(loss, scale_wrt_gas=False)`. 0.18.3 divides the gradients all the same, so that they are too small by
the number of steps, and so is the norm that is logged and compared with the clipping limit. It is so at every stage,
with and without offload. SGD takes smaller steps; Adam with clipping clips too little; Adam without clipping takes the
same steps, only the norm is wrong. 0.18.2 and 0.18.4 are right (the Trainer's calls, run on all three with 2 ranks). A
script that calls `engine.backward(loss)` is not concerned (run), nor is accelerate without the Trainer, which calls it
so (read in accelerate 1.15).

## Example
```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 1}
}
```

## Use instead
The same file on DeepSpeed 0.18.4. On 0.18.3, one micro-batch a step, here and in TrainingArguments:

```json
{
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 1}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Context, gate


@gate(
    "HF012",
    "gradients-divided-twice",
    upstream="wrong",
    since="0.18.3",
    until="0.18.3",
    when=lambda ctx: ctx.consumer == "hf",
)
def check(ctx: Context) -> Iterator[Finding]:
    """Once by the Trainer, once by the engine."""
    steps = ctx.accumulation
    if steps == 1:
        return
    unclipped = ctx.gradient_clipping == 0 and not ctx.is_auto("gradient_clipping")
    by_norm_only = unclipped and ctx.optimizer.name in ("adam", "adamw")
    yield ctx.finding(
        f"DeepSpeed {ctx.target.text} divides the gradients of the Trainer by the accumulation steps a second time",
        "train.gradient_accumulation_steps",
        label=f"gradients are too small by a factor of {steps}" if steps else "not known here",
        notes=[
            *(
                []
                if steps
                else ["with one micro-batch a step it is right; the Trainer's arguments say how many there are"]
            ),
            "Adam without clipping takes nearly the same steps; the norm in the logs is too small"
            if by_norm_only
            else "the norm that is logged and clipped is too small as well",
        ],
        fix=Fix(
            f"upgrade to DeepSpeed 0.18.4, or remove {ctx.key('train.gradient_accumulation_steps')} here and set it to"
            " 1 in TrainingArguments",
            {"train.gradient_accumulation_steps": None},
            effect="gradients are whole; a step sees fewer rows unless the micro-batch grows by as much",
        ),
        severity="error" if steps and not by_norm_only else "warning",
    )
