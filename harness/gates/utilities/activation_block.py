"""DeepSpeed's activation checkpointing for a model that does not use it.

## What it checks
An `activation_checkpointing` block that asks for something, in a run spec or in a JSON for the Hugging Face Trainer
or accelerate.

## Why it fails
The block configures `deepspeed.checkpointing.checkpoint`, which a model has to call itself. Hugging Face models do
not: nothing is recomputed, partitioned or moved to the CPU (run on 0.19.8 with a Llama model). Their own gradient
checkpointing is another mechanism. In a run spec, `train.gradient_checkpointing: true` and
`train.offload_activations: true` put DeepSpeed's function in its place, for `cpu_checkpointing`.

## Example
```json
{
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 1},
  "activation_checkpointing": {"cpu_checkpointing": true}
}
```

## Use instead
```json
{
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "zero_optimization": {"stage": 1}
}
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.registry import Cite, Context, gate

_SWITCHES = ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization")


@gate(
    "UT010",
    "activation-checkpointing-block-that-is-not-read",
    upstream="silent",
    cites=(Cite("runtime/activation_checkpointing/checkpointing.py", "def configure("),),
    when=lambda ctx: ctx.has_key("activation_checkpointing"),
)
def check(ctx: Context) -> Iterator[Finding]:
    """Another mechanism."""
    if ctx.run.kind == "deepspeed-json" and ctx.consumer not in ("hf", "accelerate"):
        return
    block = ctx.ds("activation_checkpointing")
    asked = [name for name in _SWITCHES if isinstance(block, dict) and block.get(name) is True]
    if ctx.run.kind == "spec" and ctx.run.spec.train.gradient_checkpointing and "cpu_checkpointing" in asked:
        asked.remove("cpu_checkpointing")
    if not asked:
        return
    key = ctx.spec_key("activation_checkpointing")
    own = "`train.gradient_checkpointing`" if ctx.run.kind == "spec" else "the Trainer's `gradient_checkpointing`"
    yield ctx.finding(
        f"{ctx.key(ctx.spec_key(f'activation_checkpointing.{asked[0]}'))} does nothing for Hugging Face models",
        ctx.spec_key(f"activation_checkpointing.{asked[0]}"),
        severity="warning",
        label="has no effect",
        notes=["only a model that calls `deepspeed.checkpointing.checkpoint` itself reads the block"],
        fix=Fix(
            f"remove {ctx.key(key)}; {own} is what recomputes activations",
            {key: None},
            effect="the same for Hugging Face models",
        ),
    )
