"""An "auto" that DeepSpeed fails on.

## What it checks
"auto" for batch sizes, `gradient_clipping`, parameters of optimizer and scheduler, and other values without a default
to fall back on, where neither the Hugging Face Trainer nor accelerate reads the file first.

## Why it fails
Batch sizes end with a TypeError while the configuration is read, `gradient_clipping` at the first step, a learning rate
inside the first optimizer step, parameters of a scheduler while the engine is built (run on 0.19.8). None of the
messages names the key.

## Example
```yaml
deepspeed:
  communication_data_type: auto
```

## Use instead
```yaml
deepspeed:
  communication_data_type: fp32
```
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.findings import Finding, Fix
from harness.gates.consumer.autos import left_to_deepspeed, read_by_deepspeed
from harness.gates.registry import Cite, Context, gate

_WHEN = {
    "train_batch_size": "DeepSpeed ends with a TypeError while it reads the configuration",
    "train_micro_batch_size_per_gpu": "DeepSpeed ends with a TypeError while it reads the configuration",
    "gradient_accumulation_steps": "DeepSpeed ends with a TypeError while it reads the configuration",
    "gradient_clipping": "DeepSpeed ends with a TypeError at the first step",
    "optimizer": "DeepSpeed ends with an error inside the optimizer, at the first step at the latest",
    "scheduler": "DeepSpeed ends with an error while it builds the scheduler",
}


@gate(
    "HF003",
    "auto-that-fails",
    upstream="raises",
    cites=(Cite("runtime/engine.py", "if self.gradient_clipping() > 0.0:"),),
    when=read_by_deepspeed,
)
def check(ctx: Context) -> Iterator[Finding]:
    """Values that have to be there."""
    for name in left_to_deepspeed(ctx, "fails"):
        key = ctx.spec_key(name)
        note = _WHEN.get(name.split(".")[0], "DeepSpeed takes the text as it stands and fails on it later")
        yield ctx.finding(
            f'{ctx.key(key)} is "auto", which DeepSpeed itself does not fill in',
            key,
            notes=[note],
            fix=Fix("write the value, or remove the key", {key: None}, effect="DeepSpeed's default, if it has one"),
            # only a PipelineModule reads this block
            severity="warning" if name.startswith("pipeline.") and ctx.pipeline_parallel_size == 1 else "error",
        )
